"""Tables that show themselves."""

import builtins
from pathlib import Path

from cler.report.table import Table
from cler.runs.compare import compare
from cler.runs.results import Result, make_result


def test_a_table_in_a_notebook_is_shown_once_and_printed_when_asked(monkeypatch, capsys):
    settings = {"method": "er-ace", "regularizer": "none", "dataset": "toy", "tasks": 2, "buffer": 50, "epochs": 1}
    accuracy = {name: [[50.0], [25.0, 50.0]] for name in ("class_il", "task_il")}
    value = make_result(settings | {"lr": 0.01}, 0, accuracy, 1.0, 1, {})
    table = Table(compare([Result.from_dict(Path("run"), value)]))
    expected = repr(table)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do
    notebook = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: notebook, raising=False)
    assert repr(table) == expected
    assert "ER-ACE" in expected
    assert capsys.readouterr().out == ""


def test_a_table_in_a_notebook_says_which_dataset_and_buffer_a_row_is_of():
    def run(buffer):
        settings = {"method": "er-ace", "regularizer": "none", "dataset": "toy", "tasks": 2, "buffer": buffer}
        accuracy = {name: [[50.0], [25.0, 50.0]] for name in ("class_il", "task_il")}
        return Result.from_dict(Path(f"run{buffer}"), make_result(settings | {"epochs": 1}, 0, accuracy, 1.0, 1, {}))

    told = Table(compare([run(50), run(200)]))._repr_html_()
    assert "<caption>toy: results</caption>" in told
    first, second, row = (told.index(part) for part in ("buffer 50<", "buffer 200<", '<td style="text-align: left">ER'))
    assert first < row < second < told.rindex('<td style="text-align: left">ER')
