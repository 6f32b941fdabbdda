"""The studies behind `cler analyze`, on a small dataset: what they leave, and that they change nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.data import images
from cler.errors import UsageError
from cler.paper import settings as paper_settings
from cler.paper import tables
from cler.paper.analysis import Findings, Subject, analysis_jobs, difference, read_subjects
from cler.paper.analysis_output import analysis_markdown, analysis_sentences
from cler.paper.known_analyses import ANALYSES, figure1, figure3
from cler.runs.execute import execute
from cler.runs.jobs import redo
from cler.runs.record import Recorder
from cler.runs.results import read_json, read_result
from toys import Toy, shades

CPU = torch.device("cpu")


class SixShades(Toy):
    def load(self, folder):
        return shades(6, test_per_class=20)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    file = paper_settings.paper_file() | {"toy": {"tasks": 3, "width": 2, "batch": 10, "replay_batch": 5, "buffer": 20}}
    monkeypatch.setitem(images.DATASETS._entries, "toy", SixShades())
    for module in (paper_settings, tables):
        monkeypatch.setattr(module, "paper_file", lambda: file)
    monkeypatch.setattr(figure3, "STEPS", 4)
    monkeypatch.setattr(figure3, "DROPS", 2)
    monkeypatch.setattr(figure3, "BATCHES", 3)
    monkeypatch.setattr(figure1, "TERM_BATCHES", 2)


@pytest.fixture
def cler(cler_here):
    """The command `cler analyze`, in one process."""
    return lambda *arguments: cler_here("analyze", *arguments, "--workers", 1)


def jobs_of(name, out, seeds=(0,)):
    return analysis_jobs(ANALYSES[name], "toy", (), seeds, out, precision="fp32")


@pytest.mark.parametrize("name", list(ANALYSES))
def test_looking_changes_nothing(name, tmp_path):
    looked_into = jobs_of(name, tmp_path / "a")
    left_alone = [replace(job, probe=None) for job in jobs_of(name, tmp_path / "b")]
    execute([*looked_into, *left_alone], Machine(workers=1, device="cpu"))
    for one, other in zip(looked_into, left_alone, strict=True):
        assert read_result(one.folder)["accuracy"] == read_result(other.folder)["accuracy"]
        assert list(one.folder.glob("probe-*"))
        assert not list(other.folder.glob("probe-*"))


def test_figure1_compares_every_task_but_the_first_and_the_last_with_the_next(tmp_path):
    jobs = jobs_of("figure1", tmp_path)
    execute(jobs, Machine(workers=1, device="cpu"))
    for job in jobs:
        assert [path.name for path in job.folder.glob("probe-*")] == ["probe-2.json"]
        found = read_json(job.finding(1))
        assert found.keys() == {f"{loss}{term}" for loss in figure1.LOSSES for term in ("", figure1.WITH_TERM)}
        for cosines in found.values():
            assert cosines.keys() == {"all", "all with classifier", *figure1.STAGES}
            assert all(-1 <= cosine <= 1 for cosine in cosines.values())
        for loss in figure1.LOSSES:  # the term changes the gradient, where there is one and where it reaches
            plain, with_term = found[loss], found[f"{loss}{figure1.WITH_TERM}"]
            assert (plain == with_term) == (job.settings.regularizer == "none")
            reached = plain["layer4"] != with_term["layer4"]
            assert reached == (job.settings.regularizer == "barlow-twins")


def test_figure3_measures_recovery_on_the_way_and_filters_at_the_end(tmp_path):
    (job, *_) = jobs = jobs_of("figure3", tmp_path)[:1]
    execute(jobs, Machine(workers=1, device="cpu"))
    recovery = read_json(job.finding(1))["recovery"]
    accuracy = read_result(job.folder)["accuracy"]
    assert recovery["before"]["class_il"] == pytest.approx(accuracy["class_il"][1][1])
    assert recovery["before"]["task_il"] == pytest.approx(accuracy["task_il"][1][1])
    for share in figure3.SHARES:
        assert [len(drop) for drop in recovery["after"][str(share)]["class_il"]] == [5, 5]
    last = read_json(job.finding(2))
    assert {len(last[name]) for name in ("important parameters", "important filters", "redundancy")} == {20}


def test_batches_until_accuracy_is_back_are_counted_for_each_drop():
    drops = [[10.0, 40.0, 50.0, 30.0], [0.0, 10.0, 20.0, 49.0], [60.0, 0.0, 0.0, 0.0]]
    recovery = {"before": {"class_il": 50.0}, "after": {"0.1": {"class_il": drops}}}
    findings = Findings({}, {5: {"recovery": recovery}, 9: {}})
    values = {measure.name: measure.value for measure in figure3.ANALYSIS.measures}
    assert values["10% of filters lost: batches to recover, of 50, class-incremental"](findings) == pytest.approx(
        (2 + 4 + 0) / 3
    )
    with pytest.raises(KeyError):
        values["10% of filters lost: batches to recover, of 200, class-incremental"](findings)
    long = [[0.0] * 100 + [60.0] * 101]
    recovery["after"]["0.1"]["class_il"] = long
    back = [values[f"10% of filters lost: batches to recover, of {limit}, class-incremental"] for limit in (50, 200)]
    assert [value(findings) for value in back] == [51, 100]
    recovery["after"]["0.1"]["class_il"] = drops
    assert values["10% of filters lost: points lost, class-incremental"](findings) == pytest.approx(50 - 70 / 3)


def test_accuracy_that_is_exactly_back_counts_as_back():
    recovery = {"before": {"class_il": 26.200000000000003}, "after": {"0.1": {"class_il": [[10.0, 26.2, 20.0]]}}}
    values = {measure.name: measure.value for measure in figure3.ANALYSIS.measures}
    assert (
        values["10% of filters lost: batches to recover, of 50, class-incremental"](
            Findings({}, {5: {"recovery": recovery}})
        )
        == 1
    )


def test_what_the_paper_says_is_seen_only_where_chance_is_unlikely():
    measure = replace(ANALYSES["figure1"].measures[0], value=lambda run: run.accuracy, paper={"rotation": "higher"})

    def subject(regularizer, *values):
        settings = make_settings(method="finetune", regularizer=regularizer, dataset="toy")
        return Subject(settings, {seed: Findings(value, {}) for seed, value in enumerate(values)})

    alone = subject("none", 1.0, 1.1, 0.9)
    clear, unclear, lower = (
        subject("rotation", *values) for values in ((2.0, 2.1, 1.9), (1.0, 3.0, 0.0), (0.0, 0.1, 0.2))
    )
    assert difference(measure, clear, alone).seen == "higher"
    assert difference(measure, unclear, alone).seen == "no significant difference"
    assert difference(measure, lower, alone).seen == "lower"
    assert difference(measure, subject("rotation", 5.0), subject("none", 1.0)).seen == "no significant difference"


def test_many_tests_are_corrected():
    """Three runs a side, five things said of them by the paper: p = 0.04 in one of them is no longer enough."""
    names = "abcde"
    measures = tuple(
        replace(
            ANALYSES["figure1"].measures[0],
            name=name,
            definition=name,
            statement="it is so" if i < 3 else "so is this",
            value=lambda run, i=i: run.accuracy[i],
            paper={"rotation": "lower" if name == "c" else "higher"},
        )
        for i, name in enumerate(names)
    )
    analysis = replace(ANALYSES["figure1"], measures=measures)

    def subject(regularizer, first, second):
        settings = make_settings(method="finetune", regularizer=regularizer, dataset="toy")
        runs = zip(first, second, strict=True)
        found = {seed: Findings([one, other, one, 0, 0], {}) for seed, (one, other) in enumerate(runs)}
        return Subject(settings, found)

    subjects = [
        subject("none", (0.0, 0.1, 0.2), (0.0, 1.0, 2.0)),
        subject("rotation", (8.0, 8.1, 8.2), (2.4, 3.4, 4.4)),
    ]
    *_, first, second, corrected = analysis_sentences(analysis, subjects)
    who = "Finetune + CLER (rotation)"
    assert first == f"{who}: it is so: holds under 2 of 3 definitions. It holds: a*; b. The opposite: c*."
    assert second == f"{who}: so is this: holds under 0 of 2 definitions. No significant difference under any."
    assert corrected == "Of these 5 tests, 2 are significant after Holm's correction, marked by *."
    assert "It holds: a\\*; b." in analysis_markdown(analysis, subjects, "figure.png")  # which is no emphasis


def test_the_command_trains_draws_and_tells_and_does_so_once(cler, tmp_path, monkeypatch):
    """What some of the runs lack, because an older version analyzed them, is left out."""
    code, out, err = cler("figure1", "--dataset", "toy", "--seeds", "0,1")
    assert code == 0
    assert "6 of 6 runs to do" in err
    assert "gradient similarity" in out
    assert "Finetune + CLER (rotation)" in out
    told = " ".join(out.split())
    assert "gradients of successive tasks are more similar: holds under " in told
    assert "The paper's runs have dataset cifar100, width 64: what it says about them need not hold for these." in told
    assert Path("analysis/figure1.png").read_bytes().startswith(b"\x89PNG")
    code, again, err = cler("figure1", "--dataset", "toy", "--seeds", "0,1")
    assert (code, again, err) == (0, out, "")
    code, out, _ = cler("figure1", "--dataset", "toy", "--seeds", "0,1", "--json")
    told = json.loads(out)
    assert [len(one["measures"]["gradient similarity, all classes"]) for one in told["learners"]] == [2, 2, 2]
    assert {one["verdict"] for one in told["statements"]} <= {"holds", "contradicted", "undecided"}
    older = next((tmp_path / "analysis").rglob("probe-*.json"))
    older.write_text(json.dumps({loss: {"all": 0.5} for loss in figure1.LOSSES}))
    code, out, _ = cler("figure1", "--dataset", "toy", "--seeds", "0,1", "--markdown")
    assert code == 0
    assert "| gradient similarity, all classes |" in out
    assert "with the term" not in out
    assert "- Left out: 12 measures that not all of these runs have" in out

    def load(*_):
        raise UsageError("there are no images")

    with monkeypatch.context() as patch:
        patch.setattr(SixShades, "load", load)
        assert cler("figure1", "--dataset", "toy", "--seeds", "0,1", "--redo").code == 2
    assert cler("figure1", "--dataset", "toy", "--seeds", "0,1").err == ""  # nothing is lost
    asked = []
    monkeypatch.setattr("cler.api.train_jobs", lambda jobs, *_: asked.extend(jobs) or [])
    cler("figure1", "--dataset", "toy", "--seeds", "0,1", "--redo")
    assert len(asked) == 6


def test_finished_runs_are_shown_again_without_the_images(cler, monkeypatch):
    """Such as on a laptop, after a GPU has done them in its own precision."""
    asked = ("figure1", "--dataset", "toy", "--seeds", "0,1", "--precision", "bf16")
    assert cler(*asked)[0] == 0
    monkeypatch.setattr(SixShades, "load", lambda self, folder: pytest.fail("nothing is to be trained"))
    code, out, err = cler(*asked, "--markdown")
    assert (code, err) == (0, "")
    heading, picture, sentences, table, _ = out.split("\n\n")
    assert heading == f"## {ANALYSES['figure1'].title}"
    assert picture.endswith("](figure1.png)")
    assert (
        table.splitlines()[0] == "| | Finetune, 2 runs | Finetune + CSSL, 2 runs | Finetune + CLER (rotation), 2 runs |"
    )
    assert len(table.splitlines()) == 2 + len(ANALYSES["figure1"].measures)
    assert "- Finetune + CSSL: gradients of successive tasks are more similar: holds under " in sentences
    assert cler(*asked, "--markdown", "--json")[0] == 2


def test_runs_that_are_there_are_told_of_before_images_are_asked_for(cler, monkeypatch):
    assert cler("figure3", "--dataset", "toy", "--seeds", "2", "--buffer", "10").code == 0

    def load(*_):
        raise UsageError("there are no images")

    monkeypatch.setattr(SixShades, "load", load)
    for buffers, options in (("10", "--seeds 0..1"), ("10,20", "--buffer 10 --seeds 0..1")):
        code, _, err = cler("figure3", "--dataset", "toy", "--seeds", "5", "--buffer", buffers)
        runs = 10 * len(buffers.split(","))
        said = f"4 of {runs} runs are in analysis; {options} shows them"
        assert (code, err.splitlines()) == (2, [said, "cler: there are no images"])
    assert cler("figure3", "--dataset", "toy", *options.split()).err == ""


def test_figure3_has_a_row_for_each_buffer_size(cler):
    code, out, _ = cler("figure3", "--dataset", "toy", "--seeds", "1", "--buffer", "10,20")
    assert code == 0
    assert out.index("buffer 10") < out.index("buffer 20")
    code, out, _ = cler("figure3", "--dataset", "toy", "--seeds", "1", "--buffer", "10,20", "--markdown")
    assert out.count("\n| **buffer ") == 2
    assert "One run of each is too few to test what the paper says" in out


def test_a_run_that_was_stopped_keeps_what_was_found(tmp_path, monkeypatch):
    whole, stopped = jobs_of("figure3", tmp_path / "a")[:1], jobs_of("figure3", tmp_path / "b")[:1]
    execute(whole, Machine(workers=1, device="cpu"))
    keep = Recorder.keep

    def stop(self, run):
        keep(self, run)
        if run.task == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "keep", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(stopped, Machine(workers=1, device="cpu"))
    execute(stopped, Machine(workers=1, device="cpu"))
    (one,), (other,) = read_subjects(whole), read_subjects(stopped)
    assert one.runs == other.runs


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["figure4"], "figure4 is made from accuracies alone: use `cler reproduce figure4`"),
        (["figure2"], "unknown figure 'figure2' (known: figure1, figure3); did you mean 'figure"),
        (["figure1", "--dataset", "toys"], "did you mean 'toy'?"),
        (
            ["figure1", "--dataset", "toy", "--buffer", "20"],
            "--buffer has no effect: Finetune, the method of figure1, has no buffer; leave it out",
        ),
        (["figure1", "--dataset", "toy", "--seeds", "x"], "seeds"),
    ],
)
def test_a_mistake_is_one_line(cler, arguments, line):
    code, out, err = cler(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


def test_runs_that_nobody_looked_into_are_refused(cler, tmp_path):
    execute(
        [replace(job, probe=None) for job in jobs_of("figure1", tmp_path / "analysis")],
        Machine(workers=1, device="cpu"),
    )
    code, _, err = cler("figure1", "--dataset", "toy", "--seeds", "1")
    assert code == 2
    assert "was trained without this analysis: delete it, or choose another folder" in err


def test_without_any_run_of_a_subject_there_is_nothing_to_compare(tmp_path):
    jobs = analysis_jobs(ANALYSES["figure1"], "toy", (), (0,), tmp_path, precision="fp32", lr=1e30)
    execute(jobs, Machine(workers=1, device="cpu"))
    for _ in range(2):
        with pytest.raises(UsageError, match="there is no finished run of Finetune to compare: all failed, or"):
            read_subjects(jobs)
        redo(jobs)  # as if another process had only begun
