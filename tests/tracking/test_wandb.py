"""What Weights & Biases keeps of runs without a network, read back from its own files."""

import importlib
import json
import struct

import pytest

from cler.runs.results import find_results
from toys import wait_until

BLOCK, HEADER = 1 << 15, 7
"""Bytes of a block of its file, and of the head of the file and of each piece of a record."""


@pytest.fixture(autouse=True)
def wandb(monkeypatch, tmp_path):
    """The package, offline, with nobody's configuration; its service ends with the test."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    package = importlib.import_module("wandb")
    yield package
    package.teardown()


def records(path):
    """The records of a .wandb file: blocks of pieces, each with a checksum, its length, and whether it is the last.

    What is not whole yet, because it is being written, is left out.
    """
    pb = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content, at, parts = path.read_bytes(), HEADER, b""
    assert content.startswith(b":W&B")
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        if at + HEADER + length > len(content):
            return
        parts += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield pb.Record.FromString(parts)
            parts = b""


def offline_files(folder):
    """The files of a run, that of the first process first; its service closes them a moment after the run's end."""
    files = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
    for path in files:
        wait_until(lambda path=path: any(record.HasField("exit") for record in records(path)))
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def values(items):
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def history(path):
    """The rows of a run's history."""
    return [values(record.history.item) for record in records(path) if record.HasField("history")]


def test_a_run_has_its_curves_settings_and_metrics(train):
    folder, said = train("wandb", evaluate_every=3)
    assert said == []
    (path,) = offline_files(folder)
    (result,), _ = find_results([folder])
    (run,) = [record.run for record in records(path) if record.HasField("run")]
    assert (run.project, run.display_name, run.run_group) == ("cler", "er-ace buffer 10, seed 0", folder.parent.name)
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config | result.settings | {"seed": 0} == config
    rows = history(path)
    assert [row["_step"] for row in rows] == list(range(1, 17))
    assert [row["_step"] for row in rows if "loss/stream" in row] == list(range(1, 17))
    assert [row["_step"] for row in rows if "accuracy/class_il" in row] == [3, 6, 8, 11, 14, 16]
    assert rows[15]["accuracy_task_il/task_2"] == pytest.approx(result.accuracy["task_il"][1][1], abs=1e-3)
    assert rows[15]["system/steps_per_second"] > 0
    summary = {}
    for record in records(path):
        summary |= values(record.summary.update)
    assert summary["metrics/forgetting_class_il"] == pytest.approx(result.metrics["forgetting"]["class_il"])
    assert not [name for name, value in summary.items() if value != value]
    (table,) = path.parent.glob("files/media/table/*.json")
    assert [row[0] for row in json.loads(table.read_text("utf-8"))["data"]][:2] == ["accuracy", "incremental_accuracy"]
    (end,) = [record.exit for record in records(path) if record.HasField("exit")]
    assert end.exit_code == 0


def test_a_run_that_is_resumed_keeps_its_name_and_has_no_step_twice(train, stopped):
    stopped("wandb")
    folder, _ = train("wandb")
    first, second = offline_files(folder)
    assert first.name == second.name == f"run-{json.loads((folder / 'tracking-wandb.json').read_text())['id']}.wandb"
    assert [row["_step"] for path in (first, second) for row in history(path)] == list(range(1, 17))
    (end,) = [record.exit for record in records(first) if record.HasField("exit")]
    assert end.exit_code != 0


def test_without_a_login_it_is_left_out_and_nobody_is_asked(train, facts, monkeypatch, wandb, capsys):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("builtins.input", None)
    plain, _ = train(None, out="plain")
    folder, said = train("wandb")
    (line,) = said
    assert line == (
        "wandb failed and records nothing more; runs are not affected: PermissionError: nobody is logged in: run "
        "`wandb login`, or set WANDB_MODE=offline"
    )
    assert facts(folder) == facts(plain)
    assert capsys.readouterr() == ("", "")
