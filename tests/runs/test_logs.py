import json
import os

import pytest

from cler.runs import logs as reading
from cler.runs.logs import LOG, LogReader, log_line, trim_log


def test_log_lines_are_appended_and_a_diverged_loss_is_null(tmp_path):
    log_line(tmp_path, {"step": 1, "loss": 2.5})
    log_line(tmp_path, {"step": 2, "loss": float("nan"), "parts": [float("inf"), 1]})
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": None, "parts": [None, 1]}]


def test_a_log_is_cut_back_to_the_tasks_that_stay(tmp_path):
    trim_log(tmp_path, 0, 0)  # there is none yet
    assert not list(tmp_path.iterdir())
    for task in range(3):
        log_line(tmp_path, {"event": "evaluated", "task": task, "name": "é\u2028"})
    log_line(tmp_path, {"event": "failed"})
    log = tmp_path / "log.jsonl"
    lines = log.read_text("utf-8").split("\n")
    log.write_bytes(log.read_bytes() + b'{"event": "evaluated", "task": 0, \xff')
    with log.open("a") as file:
        file.write(f'\n{{"task": 1{"0" * 400}}}\n{"[" * 100_000}')
    trim_log(tmp_path, 2, 7)
    assert log.read_text("utf-8").split("\n") == [*lines[:2], ""]
    trim_log(tmp_path, 0, 7)
    assert log.read_text() == ""


def test_a_log_is_cut_back_to_the_step_where_a_run_is_resumed(tmp_path):
    for task in range(2):
        for step in (3, 6):
            log_line(tmp_path, {"event": "progress", "task": task, "step": step, "losses": {}})
        log_line(tmp_path, {"event": "evaluated", "task": task})
    log = tmp_path / "log.jsonl"
    lines = log.read_text().splitlines()
    with log.open("a") as file:
        file.write('{"task": 0, "step": null}\n{"task": 0, "step": NaN}\n{"task": NaN}\n[]\n"task"\n')
    for position, kept in [((1, 6), 5), ((1, 5), 4), ((1, 3), 4), ((1, 0), 3), ((0, 6), 2), ((0, 2), 0)]:
        trim_log(tmp_path, *position)
        assert log.read_text().splitlines() == lines[:kept]


def progress(folder, task, step, steps=10, **losses):
    log_line(
        folder,
        {"time": f"0{task}:{step}", "event": "progress", "task": task, "step": step, "steps": steps}
        | {"losses": losses},
    )


def test_a_log_is_read_on_as_it_grows(tmp_path):
    reader = LogReader(tmp_path / LOG)
    assert reader.read().losses == {}  # there is none yet
    progress(tmp_path, 0, 5, stream=2.0)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"event": "progress", "task": 0, "st')  # half a line
    assert reader.read().losses == {"stream": [(0, 5, 2.0)]}
    with (tmp_path / LOG).open("a") as file:
        file.write('ep": 10, "steps": 10, "losses": {"stream": 1.5, "replay": null}}\n')
    log_line(tmp_path, {"event": "evaluated", "task": 0, "class_il": [40.0]})
    assert (reader.read().task, reader.log.step, reader.log.accuracy) == (1, 0, 40.0)
    progress(tmp_path, 1, 4, stream=1.0, replay=0.5)
    log = reader.read()
    assert log.losses == {"stream": [(0, 5, 2.0), (0, 10, 1.5), (1, 4, 1.0)], "replay": [(1, 4, 0.5)]}
    assert (log.task, log.step, log.heard) == (1, 4, "01:4")
    assert log.place(1, 4) == 1.4
    assert log.latest == {"stream": 1.0, "replay": 0.5}


def test_a_log_that_was_cut_back_is_read_anew(tmp_path):
    reader = LogReader(tmp_path / LOG)
    for step in (2, 4, 6):
        progress(tmp_path, 0, step, stream=float(step))
    reader.read()
    trim_log(tmp_path, 0, 2)
    progress(tmp_path, 0, 3, stream=3.0)
    assert reader.read().losses == {"stream": [(0, 2, 2.0), (0, 3, 3.0)]}
    os.unlink(tmp_path / LOG)
    assert reader.read().losses == {}


def test_a_log_of_older_runs_tells_the_steps_of_a_task_at_its_end(tmp_path):
    for step in (332, 500):
        log_line(tmp_path, {"event": "progress", "task": 0, "step": step, "losses": {"stream": 1.0}})
    log = LogReader(tmp_path / LOG).read()
    assert [log.place(task, step) for task, step, _ in log.losses["stream"]] == [0.664, 1.0]


@pytest.mark.parametrize(
    "line",
    [
        *("", "[]", '"x"', "{", '{"task": -1}', '{"task": 1e300}', "[" * 100_000, '{"task": 0, "event": "evaluated"}'),
        '{"task": 0, "step": 1, "event": "progress", "losses": [1]}',
        '{"task": 0, "step": 1, "event": "progress", "steps": "many", "losses": {"a": "b", "c": true, "d": 1e999}}',
        '{"task": 0, "event": "evaluated", "class_il": ["a"]}',
    ],
)
def test_what_is_no_line_of_ours_tells_nothing(tmp_path, line):
    (tmp_path / LOG).write_text(f"{line}\n\xff\n")
    progress(tmp_path, 0, 5, stream=2.0)
    log = LogReader(tmp_path / LOG).read()
    assert log.losses == {"stream": [(0, 5, 2.0)]}
    assert log.accuracy is None


def test_a_log_with_ever_new_terms_is_not_taken_in_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "AT_ONCE", 200)  # so that it is read in many pieces
    progress(tmp_path, 0, 0, **{"x" * 10_000: 1.0})
    for number in range(50):
        progress(tmp_path, 0, number, **{f"term{number}": 1.0, "stream": 1.0})
    log = LogReader(tmp_path / LOG).read()
    assert len(log.losses) == reading.MOST_TERMS
    assert len(log.losses["stream"]) == 50


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / LOG)
    assert LogReader(tmp_path / LOG).read().losses == {}
