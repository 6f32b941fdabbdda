"""What TensorBoard's own reader finds in the event files of runs."""

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from cler.engine.events import Progress
from cler.runs.record import Recorder
from cler.runs.results import find_results


def summaries(folder):
    """All values but scalars, by name."""
    (path,) = folder.glob("events.out.tfevents.*")
    values = [value for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    return {value.tag: value for value in values if value.metadata.plugin_data.plugin_name != "scalars"}


def close(points):
    """Points whose values are as near as single precision gets."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in points]


def test_a_run_has_its_curves_settings_and_metrics(train, points):
    heard = []
    folder, said = train("tensorboard", evaluate_every=3, callbacks=[heard.append])
    assert said == []
    (result,), _ = find_results([folder])
    found, schedule = points(folder), (8, 8)
    progress = [event for event in heard if isinstance(event, Progress)]
    assert len(progress) == sum(schedule)
    for term in ("stream", "replay"):
        told = [(8 * event.task + event.step, event.losses[term]) for event in progress if term in event.losses]
        assert found[f"loss/{term}"] == close(told)
    curves = result.curves
    steps = [8 * task + step for task, step in zip(curves["task"], curves["step"], strict=True)]
    assert steps == [3, 6, 8, 11, 14, 16]
    for scenario in ("class_il", "task_il"):
        rows = list(zip(steps, curves[scenario], strict=True))
        assert found[f"accuracy/{scenario}"] == close((step, sum(row) / len(row)) for step, row in rows)
        assert found[f"accuracy_{scenario}/task_2"] == close((step, row[1]) for step, row in rows if len(row) > 1)
        for name in ("accuracy", "forgetting", "average_anytime_accuracy"):
            assert found[f"metrics/{name}_{scenario}"] == close([(16, result.metrics[name][scenario])])
    assert all(value > 0 for _, value in found["system/steps_per_second"])
    assert [step for step, _ in found["system/memory_gib"]] == list(range(1, 17))
    told = summaries(folder)
    assert b"| replay_batch | 5 |" in told["settings/text_summary"].tensor.string_val[0]
    assert b"| forgetting | " in told["metrics/text_summary"].tensor.string_val[0]
    content = told["_hparams_/session_start_info"].metadata.plugin_data.content
    session = HParamsPluginData.FromString(content).session_start_info
    assert session.hparams["buffer"].number_value == 10
    assert session.hparams["method"].string_value == "er-ace"
    assert "_hparams_/session_end_info" in told


def test_metrics_that_a_run_does_not_determine_are_left_out(train, points):
    folder, _ = train("tensorboard")
    assert "metrics/accuracy_class_il" in points(folder)
    assert not [name for name in points(folder) if "anytime" in name or "prequential" in name]


def test_a_run_that_is_resumed_has_no_step_twice_and_misses_none(train, stopped, points, facts):
    whole, _ = train("tensorboard", out="whole")
    stopped("tensorboard")
    folder, said = train("tensorboard")
    assert any("resuming from task 2" in line for line in said)
    assert len(list(folder.glob("events.out.tfevents.*"))) == 2
    assert facts(folder) == facts(whole)
    untimed = {name for name in points(whole) if not name.startswith("system/")}
    assert {name: points(folder)[name] for name in untimed} == {name: points(whole)[name] for name in untimed}


def test_steps_that_were_told_before_a_crash_are_not_told_again(train, stopped, points, monkeypatch):
    """The last checkpoint is of the end of the first task; the tracker has heard of the second already."""
    keep = Recorder.keep
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "keep", lambda self, run: None if run.taken else keep(self, run))
        stopped("tensorboard")
    folder, said = train("tensorboard")
    assert any("resuming from task 2, step 1" in line for line in said)
    assert [step for step, _ in points(folder)["loss/stream"]] == list(range(1, 17))
    assert [step for step, _ in points(folder)["accuracy/class_il"]] == [8, 16]


def test_a_run_that_is_started_over_has_no_curves_of_before(train, stopped, points):
    stopped("tensorboard")
    folder, _ = train("tensorboard", start_over=True)
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert [step for step, _ in points(folder)["loss/stream"]] == list(range(1, 17))


def test_a_tracker_that_comes_later_follows_from_there(train, stopped, points):
    stopped(None)
    folder, _ = train("tensorboard")
    assert [step for step, _ in points(folder)["loss/stream"]] == list(range(12, 17))
    assert "settings/text_summary" in summaries(folder)
