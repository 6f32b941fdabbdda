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
