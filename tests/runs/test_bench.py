"""`cler bench`: what it times, and that its numbers hang together."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from cler.cli import app
from cler.config.protocols import PROTOCOLS
from cler.errors import UsageError
from cler.methods import METHODS
from cler.runs import bench
from cler.runs.bench import Combination, arithmetic_rate, flops_of_a_step, measure


@pytest.fixture(autouse=True)
def quicker(monkeypatch):
    """Without the large matrix product of which the rate is taken, and with smaller images."""
    monkeypatch.setattr(bench, "arithmetic_rate", lambda device, precision: 1e12)
    monkeypatch.setattr(bench, "random_images", partial(bench.random_images, size=8))


def timings(combinations, counts=(1,)):
    return list(measure(combinations, counts, device=torch.device("cpu"), precision="fp32", steps=1, width=2))


@pytest.mark.usefixtures("shallow")
def test_every_method_can_be_timed():
    found = timings([Combination(name) for name in METHODS])
    assert [timing.combination.method for timing in found] == list(METHODS)
    assert all(timing.milliseconds > 0 and timing.share > 0 and 0 < timing.evaluation < 1 for timing in found)


def test_the_rate_of_arithmetic_is_measured():
    assert arithmetic_rate(torch.device("cpu"), "fp32", 16) > 0


def test_a_step_is_one_of_the_second_task_with_all_that_belongs_to_it():
    plain, finetune, regularized = timings(
        [Combination("er-ace"), Combination("finetune"), Combination("er-ace", "rotation")]
    )
    _, beside = timings([Combination("er-ace")], (2, 1))
    assert plain.gigaflops == pytest.approx(2 * finetune.gigaflops, rel=0.05)  # ten images of the stream, ten replayed
    assert 1.5 < regularized.gigaflops / plain.gigaflops < 2.1  # and twenty that end in the pretext head
    assert beside.runs == 2
    assert beside.gigaflops == plain.gigaflops  # of one of the runs
    assert plain.gigaflops_per_image == plain.gigaflops / 10


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_convolution_takes_as_much_for_each_gradient_as_on_its_way_there(groups, first):
    """36 places, and for each of 8 output channels a kernel of 3×3 over the channels of its group."""
    layer = torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
    maps = torch.zeros(2, 8, 6, 6, requires_grad=not first)
    step = SimpleNamespace(step=lambda: layer(maps).sum().backward())
    assert flops_of_a_step(step) == (2 if first else 3) * 2 * (2 * 36 * 8 * 9 * 8 // groups)


def test_teachers_are_timed_beside_what_they_are_added_to(tmp_path):
    command = ["bench", "--method", "er-ace", "--regularizer", "none", "--teacher", "none,ema", "--width", "2"]
    command += ["--steps", "1", "--runs", "1", "--device", "cpu", "--out", str(tmp_path / "bench.json"), "--json"]
    for _ in range(2):  # the second time from the file
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert [timing["teacher"] for timing in json.loads(result.stdout)["timings"]] == ["none", "ema"]
    assert "at once" not in result.stderr


def test_protocols_are_timed_beside_each_other(tmp_path):
    command = ["bench", "--method", "er", "--regularizer", "none", "--protocol", "online-10+10,online-10+64"]
    command += ["--width", "2", "--steps", "1", "--runs", "1", "--device", "cpu", "--out", str(tmp_path / "bench.json")]
    shown = CliRunner().invoke(app, command)
    assert "er, online-10+64" in shown.stdout, shown.output
    result = CliRunner().invoke(app, [*command, "--json"])  # from the file
    ten, sixty_four = (timing["gigaflops"] for timing in json.loads(result.stdout)["timings"])
    assert "at once" not in result.stderr
    assert sixty_four == pytest.approx(74 / 20 * ten, rel=0.01)  # images in a step


def test_a_protocol_may_have_larger_batches(monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "large", {"summary": "", "batch": 40})
    usual, large = timings([Combination("finetune"), Combination("finetune", protocol="large")])
    assert large.gigaflops == pytest.approx(4 * usual.gigaflops, rel=0.01)
    assert large.gigaflops_per_image == pytest.approx(usual.gigaflops_per_image, rel=0.01)


def test_a_teacher_is_timed_with_the_methods_that_it_can_teach(monkeypatch):
    timed = []
    monkeypatch.setattr("cler.runs.bench.measure", lambda combinations, *_, **__: timed.extend(combinations) or [])
    command = ["bench", "--regularizer", "none", "--teacher", "none,mkd", "--device", "cpu"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert {parts.method for parts in timed if parts.teacher == "none"} == set(METHODS)
    assert {parts.method for parts in timed if parts.teacher == "mkd"} == {
        name for name, method in METHODS.items() if method.teachable
    }
    refused = CliRunner().invoke(app, [*command, "--method", "er,cope"])
    assert "mkd cannot teach cope" in str(refused.exception)


def test_programs_get_json_and_a_limit_of_time_ends_it():
    command = ["bench", "--method", "finetune", "--runs", "1,2", "--width", "2", "--steps", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, [*command, "--regularizer", "none", "--seconds", "1e-9", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [timing["runs"] for timing in printed["timings"]] == [1]
    assert printed["precision"] == "fp32"
    assert "stopped after 1e-09 s, with 1 of 2 measurements" in result.stderr


def test_what_a_file_holds_is_not_measured_again(tmp_path):
    out = tmp_path / "bench.json"
    command = ["bench", "--method", "finetune", "--regularizer", "none", "--steps", "1"]
    command += ["--device", "cpu", "--out", str(out)]
    narrow = ["--width", "2"]
    CliRunner().invoke(app, [*command, *narrow, "--runs", "2"])
    (first,) = json.loads(out.read_text())["timings"]
    result = CliRunner().invoke(app, [*command, *narrow, "--runs", "1,2", "--json"])
    assert result.exit_code == 0, result.output
    assert "2 at once" not in result.stderr
    assert json.loads(out.read_text()) == json.loads(result.stdout)
    kept, added = json.loads(result.stdout)["timings"]
    assert (kept, added["runs"]) == (first, 1)
    for other in (["--width", "4"], [*narrow, "--precision", "bf16"], [*narrow, "--threads", "2"]):
        with pytest.raises(UsageError, match="another device, precision or network: choose another file"):
            CliRunner().invoke(app, [*command, *other], catch_exceptions=False)
    broken = json.loads(out.read_text())
    broken["timings"][0]["milliseconds"] = "x"
    out.write_text(json.dumps(broken))
    with pytest.raises(UsageError, match="does not hold measurements"):
        CliRunner().invoke(app, [*command, *narrow], catch_exceptions=False)
    out.write_text("{}")
    with pytest.raises(UsageError, match="does not hold measurements"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def two_fit(monkeypatch, error):
    """From three runs at once on there is an error."""
    time_steps = bench.time_steps

    def limited(runs, *arguments):
        if len(runs) > 2:
            raise error
        return time_steps(runs, *arguments)

    monkeypatch.setattr(bench, "time_steps", limited)


TWO = ["bench", "--method", "finetune,er", "--regularizer", "none", "--width", "2", "--steps", "1"]


def test_what_does_not_fit_is_left_out(monkeypatch):
    two_fit(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    result = CliRunner().invoke(app, [*TWO, "--runs", "1,3", "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    measured = [(timing["method"], timing["runs"]) for timing in json.loads(result.stdout)["timings"]]
    assert measured == [("finetune", 1), ("er", 1)]
    assert "finetune: 3 at once need more memory than there is" in result.stderr


def test_stopped_it_shows_what_was_measured(monkeypatch):
    two_fit(monkeypatch, KeyboardInterrupt())
    result = CliRunner().invoke(app, [*TWO, "--runs", "1,3", "--device", "cpu"])
    assert result.exit_code == 130
    assert "finetune" in result.stdout
    assert "finished runs are kept" not in result.stderr


@pytest.mark.parametrize(
    "wrong", [["--steps", "0"], ["--steps", "10001"], ["--seconds", "nan"], ["--method", "er-acee"], ["--runs", "0"]]
)
def test_mistakes_are_said_before_anything_is_measured(wrong):
    result = CliRunner().invoke(app, ["bench", "--device", "cpu", *wrong])
    assert result.exit_code != 0
    assert result.stdout == ""
