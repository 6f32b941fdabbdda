import os
from pathlib import Path

from cler.report.content import make_report
from cler.report.prose import Paragraph
from cler.report.sheets import gained
from cler.runs.compare import compare
from sheets import cells, strong


def test_facts_come_from_the_results(runs):
    facts = dict(runs.usual().facts)
    assert facts["Runs"] == "12 in 4 rows, seeds 0..2"
    assert facts["Hardware"] == "Abacus 9"
    assert facts["Precision"] == "bf16"
    assert facts["Shared settings"] == "tasks 3"
    assert facts["Software"] == "cler 1.2, torch 2.13"
    assert facts["Time"] == "12 min of device time for 12 runs"


def test_runs_that_were_trained_at_once_share_the_device(runs):
    comparison = compare(runs.make(runs.plain, [30.0, 31.0, 32.0, 33.0]))
    for run, at_once in zip(comparison.groups[0].results, [3, 3, 3, None], strict=True):
        object.__setattr__(run, "at_once", at_once)
    assert dict(make_report(comparison).facts)["Time"] == (
        "60 s of device time for 3 runs, and at most 60 s for 1 run (how many runs shared the device was not recorded)"
    )
    object.__setattr__(comparison.groups[0], "results", comparison.groups[0].results[3:])
    assert dict(make_report(comparison).facts)["Time"] == (
        "at most 60 s of device time for 1 run (how many runs shared the device was not recorded)"
    )


def test_times_on_different_hardware_are_told_separately(runs):
    comparison = compare(runs.make(runs.plain, [30.0, 31.0, 32.0]))
    comparison.groups[0].results[2].environment["hardware"] = "Babbage 2"
    assert dict(make_report(comparison).facts)["Time"] == (
        "Abacus 9: 2 min of device time for 2 runs; Babbage 2: 60 s of device time for 1 run"
    )


def test_seeds_that_are_far_apart_are_told_one_by_one(runs):
    report = make_report(compare(runs.make(runs.plain, [30.0, 31.0], seeds=[0, 10**12])))
    assert dict(report.facts)["Runs"] == "2 in 1 row, seeds 0,1000000000000"


def test_facts_that_old_results_do_not_tell_are_left_out(runs):
    comparison = compare(runs.make(runs.plain, [30.0]))
    comparison.groups[0].results[0].environment.clear()
    assert [name for name, _ in make_report(comparison).facts] == ["Runs", "Precision", "Shared settings", "Time"]


def test_of_the_settings_that_rows_share_only_those_are_told_that_are_not_the_default(runs):
    changes = {"normalize": False, "lr": 0.2, "weight_decay": None, "unknown": 7}
    report = runs.report((runs.plain | changes, [30.0]), (runs.cler | changes | {"width": 8}, [31.0]))
    assert dict(report.facts)["Shared settings"] == "tasks 3, lr 0.2, normalize False, unknown 7"
    plain = runs.report((runs.plain | {"tasks": 5, "method": "derpp"}, [30.0]))
    assert "Shared settings" not in dict(plain.facts)  # DER++ has settings of its own, which are as usual


def test_results(runs):
    (section,) = runs.usual().sections
    assert section.title == "toy"
    finetune, joint, plain, cler = cells(section.results)
    assert finetune["method"] == "Finetune"
    assert [row.heading for row in section.results.rows] == ["without a buffer"] * 2 + ["buffer 50"] * 2
    assert plain["runs"] == "3"
    assert plain["class-incremental accuracy"] == "30.00 ± 1.00"
    assert plain["task-incremental accuracy"] == "50.00 ± 1.00"
    assert plain["class-incremental adjusted forgetting"] == "50.0"
    assert joint["class-incremental adjusted forgetting"] == ""
    assert (plain["class-incremental gain"], cler["class-incremental gain"]) == ("", "+3.00")
    assert strong(section.results, 3) == {"gain"}


def test_rows_with_the_same_buffer_stand_together_and_gains_have_a_tone(runs):
    sizes = [runs.plain | {"buffer": 200}, runs.cler | {"buffer": 200}, runs.plain, runs.cler]
    finals = [[30.0], [20.0], [30.0], [33.0]]
    (section,) = runs.report(*zip(sizes, finals, strict=True)).sections
    headings = ["buffer 50", "buffer 50", "buffer 200", "buffer 200"]
    for sheet in (section.results, section.gains):
        assert [row.heading for row in sheet.rows] == headings
    tones = {cell.text: cell.tone for row in section.results.rows for cell in row.cells if cell.tone}
    assert tones == {"+3.00": "up", "−10.00": "down"}
    assert gained(0.0).tone == gained(-0.001).tone == ""


def test_gains_and_what_they_amount_to(runs):
    (section,) = runs.usual().sections
    class_il, task_il = cells(section.gains)
    assert (class_il["scenario"], task_il["scenario"]) == ("class-incremental", "task-incremental")
    assert class_il["gain"] == "+3.00"
    assert class_il["p Student"] == "0.045"
    assert class_il["p Holm"] == "0.090"
    assert "2 tests" in section.gains.note
    assert strong(section.gains, 0) == set()
    assert section.summary.startswith(
        "Class-incremental: a regularizer raises accuracy in 1 of 1 row, significantly (p < 0.05 after Holm's "
        "correction) in 0. Task-incremental:"
    )


def test_of_single_runs_no_gain_is_tested(runs):
    report = runs.report((runs.plain, [30.0]), (runs.cler, [33.0]))
    (section,) = report.sections
    assert section.summary.startswith(
        "Class-incremental: a regularizer raises accuracy in 1 of 1 row, not tested, which takes more runs. "
    )
    assert section.gains.note.endswith("Intervals and tests take more runs than one of each row.")
    assert dict(report.facts)["Runs"] == "2 in 2 rows, seed 0"


def test_a_loss_is_no_gain_however_significant(runs):
    (section,) = runs.report((runs.plain, [30.0, 30.1]), (runs.cler, [20.0, 20.1])).sections
    assert cells(section.gains)[0]["gain"] == "−10.00"
    assert strong(section.gains, 0) == {"Holm"}
    assert section.summary.startswith("Class-incremental: a regularizer raises accuracy in 0 of 1 row. ")


def test_without_a_regularizer_nothing_is_said_of_gains(runs):
    (section,) = runs.report((runs.plain, [30.0, 31.0])).sections
    assert section.summary == ""
    assert section.sheets == [section.results]
    assert "gain" not in [column.heading for column in section.results.columns]


def test_rows_that_look_alike_tell_their_settings(runs):
    (section,) = runs.report((runs.plain, [30.0]), (runs.plain | {"lr": 0.1}, [31.0])).sections
    assert [row.cells[0].note for row in section.results.rows] == ["lr 0.01", "lr 0.1"]


def test_datasets_are_sections(runs):
    report = runs.report((runs.plain, [30.0]), (runs.plain | {"dataset": "other"}, [31.0]))
    assert [(section.title, len(section.groups)) for section in report.sections] == [("other", 1), ("toy", 1)]


def test_published_numbers_stand_beside_the_runs(runs, published):
    comparison = runs.compare((runs.plain | {"dataset": "printed"}, [19.0, 21.0]))
    report = make_report(comparison, beside=published(comparison))
    assert report.title == "An Atlas: our 2 runs on printed"
    assert report.beside.sheets[0].rows[0].runs is comparison.groups[0]


def test_without_published_numbers_there_are_none(runs):
    report = runs.usual()
    assert report.title == "Results of 12 runs on toy"
    assert (report.beside.sheets, report.beside.gains, report.beside.columns) == ((), {}, {})


def test_a_preface_is_read_and_what_follows_a_rule_ends_the_report(runs):
    report = runs.report((runs.plain, [30.0]), preface="What\nwas done.\n\n\nWhy it differs.\n---\nNotes.\n")
    assert report.preface == (Paragraph("What was done."), Paragraph("Why it differs."))
    assert report.notes == (Paragraph("Notes."),)


def test_what_was_left_out_is_told(runs):
    failed = runs.make(runs.plain, [30.0, 31.0])
    object.__setattr__(failed[1], "failure", "diverged")
    report = make_report(compare(failed), ["skipped: a.json"])
    assert report.complaints == ("skipped: a.json", "left out: er-ace-none/1/result.json (failed: diverged)")


def test_what_is_left_out_is_readable_whatever_its_name(runs):
    first, second = runs.make(runs.plain, [30.0, 31.0], seeds=[0, 0])
    object.__setattr__(second, "path", Path(os.fsdecode(b"y\xff/result.json")))
    (line,) = make_report(compare([first, second])).complaints
    assert line.endswith(r"kept er-ace-none/0/result.json, not y\xff/result.json")
