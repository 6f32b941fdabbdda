import os
from pathlib import Path

import pytest

from cler.config.settings import make_settings
from cler.report.content import make_report
from cler.runs.compare import compare
from cler.runs.results import find_results


def cells(sheet):
    """The rows as dictionaries from heading to text."""
    names = [f"{column.above} {column.heading}".strip() for column in sheet.columns]
    assert len(set(names)) == len(names)
    return [dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in sheet.rows]


def strong(sheet, row):
    return {sheet.columns[index].heading for index, cell in enumerate(sheet.rows[row].cells) if cell.strong}


def test_facts_come_from_the_results(runs):
    facts = dict(runs.usual().facts)
    assert facts["Runs"] == "12 in 4 rows, seeds 0..2"
    assert facts["Hardware"] == "Abacus 9"
    assert facts["Precision"] == "bf16"
    assert facts["In every row"].startswith("tasks 3, epochs 1, lr 0.01, ")
    assert facts["Software"] == "cler 1.2, torch 2.13"
    assert facts["Time"] == "12 min of the device for 12 runs"


def test_runs_that_were_trained_at_once_share_the_device(runs):
    comparison = compare(runs.make(runs.plain, [30.0, 31.0, 32.0, 33.0]))
    for run, at_once in zip(comparison.groups[0].runs, [3, 3, 3, None], strict=True):
        object.__setattr__(run, "at_once", at_once)
    assert dict(make_report(comparison).facts)["Time"] == (
        "60 s of the device for 3 runs, and at most 60 s for 1 run whose results do not tell how many shared it"
    )
    object.__setattr__(comparison.groups[0], "runs", comparison.groups[0].runs[3:])
    assert dict(make_report(comparison).facts)["Time"] == (
        "at most 60 s of the device for 1 run whose results do not tell how many shared it"
    )


def test_seeds_that_are_far_apart_are_told_one_by_one(runs):
    report = make_report(compare(runs.make(runs.plain, [30.0, 31.0], seeds=[0, 10**12])))
    assert dict(report.facts)["Runs"] == "2 in 1 rows, seeds 0,1000000000000"


def test_facts_that_old_results_do_not_tell_are_left_out(runs):
    comparison = compare(runs.make(runs.plain, [30.0]))
    comparison.groups[0].runs[0].environment.clear()
    assert [name for name, _ in make_report(comparison).facts] == ["Runs", "Precision", "In every row", "Time"]


def test_results(runs):
    (section,) = runs.usual().sections
    assert section.title == "toy"
    finetune, joint, plain, cler = cells(section.results)
    assert finetune["method"] == "Finetune"
    assert (finetune["memory"], plain["memory"], plain["runs"]) == ("–", "50", "3")
    assert plain["class-incremental accuracy"] == "30.00 ± 1.00"
    assert plain["task-incremental accuracy"] == "50.00 ± 1.00"
    assert plain["class-incremental forgetting"] == "50.0"
    assert joint["class-incremental forgetting"] == ""
    assert (plain["class-incremental gain"], cler["class-incremental gain"]) == ("", "+3.00")
    assert strong(section.results, 3) == {"gain"}


def test_gains_and_what_they_amount_to(runs):
    (section,) = runs.usual().sections
    class_il, task_il = cells(section.gains)
    assert (class_il["scenario"], task_il["scenario"]) == ("class-incremental", "task-incremental")
    assert class_il["gain"] == "+3.00"
    assert class_il["p Student"] == "0.045"
    assert class_il["p Holm"] == "0.090"
    assert "2 tests" in section.gains.note
    assert strong(section.gains, 0) == set()
    assert section.summary.startswith("Class-incremental, 1 of 1 regularized rows gain, 0 of them with p < 0.05 after")


def test_a_loss_is_no_gain_however_sure(runs):
    (section,) = runs.report((runs.plain, [30.0, 30.1]), (runs.cler, [20.0, 20.1])).sections
    assert cells(section.gains)[0]["gain"] == "−10.00"
    assert strong(section.gains, 0) == {"Holm"}
    assert section.summary.startswith("Class-incremental, 0 of 1 regularized rows gain, 0 of them")


def test_without_a_regulariser_nothing_is_said_of_gains(runs):
    (section,) = runs.report((runs.plain, [30.0, 31.0])).sections
    assert section.summary == ""
    assert section.sheets == [section.results]
    assert "gain" not in [column.heading for column in section.results.columns]


def test_rows_that_look_alike_tell_their_settings(runs):
    (section,) = runs.report((runs.plain, [30.0]), (runs.plain | {"lr": 0.1}, [31.0])).sections
    assert [row.cells[0].note for row in section.results.rows] == ["lr 0.01", "lr 0.1"]


def test_data_sets_are_sections(runs):
    report = runs.report((runs.plain, [30.0]), (runs.plain | {"dataset": "other"}, [31.0]))
    assert [(section.title, len(section.groups)) for section in report.sections] == [("other", 1), ("toy", 1)]


def test_the_paper_stands_beside_runs_with_its_settings(runs):
    paper = {"dataset": "cifar100", "tasks": 10, "buffer": 500}
    report = runs.report((runs.plain | paper, [19.0, 20.0, 21.0]), (runs.cler | paper, [33.0, 34.5, 31.5]))
    table1, table2 = report.beside.sheets[:2]
    plain, cler = cells(table1)
    assert {row.heading for row in table1.rows} == {"cifar100, memory of 500"}
    assert (plain["accuracy ours"], plain["accuracy paper"]) == ("20.00 ± 1.00", "20.17 ± 1.31")
    assert (plain["accuracy difference"], plain["forgetting paper"], plain["gain paper"]) == ("−0.17", "38.8", "")
    assert cler["accuracy difference"] == "+8.47 ≠"
    assert (cler["gain ours"], cler["gain paper"], cler["gain difference"]) == ("+13.00", "+4.36", "+8.64 ≠")
    assert strong(table1, 1) == {"difference"}
    assert cells(table2)[0]["accuracy paper"] == "56.06"
    assert "have runs" in table1.note
    assert report.title.endswith("Online Continual Learning: our 6 runs on cifar100")
    assert report.beside.verdict.startswith("Class-incremental: CLER's gain is positive in 1 of 1 cell and within")
    assert report.beside.verdict.endswith("1 of 1 cell and within 1.5 points of the paper's in 0.")
    assert report.beside.agreement.startswith(
        "1 of 4 accuracies are within one point of the paper's. Of the 2 that can be tested, 1 are not told apart from "
        "the paper's at 1 %. Few runs tell little apart: the fewest behind one of ours are 3, the paper's are 10."
    )


PAPER = {"dataset": "cifar100", "tasks": 10, "buffer": 500}


def test_the_papers_forgetting_is_rounded_as_people_round(runs):
    dualnet = make_settings(method="dualnet", dataset="cifar100", buffer=2000).to_dict()
    _, task_il = runs.report((dualnet, [11.0])).beside.sheets
    assert cells(task_il)[0]["forgetting paper"] == "13.9"  # 13.85, as a float a little less


def test_both_pretext_tasks_are_shown_and_the_better_one_has_the_papers_number(runs):
    rotation = runs.cler | PAPER | {"regularizer": "rotation"}
    pairs = (runs.plain | PAPER, [19.0, 20.0]), (runs.cler | PAPER, [24.0, 25.0]), (rotation, [22.0, 23.0])
    table1, table2, significance = runs.report(*pairs).beside.sheets
    for table in (table1, table2):
        shown = {row["method"]: row["accuracy paper"] for row in cells(table)}
        assert shown["ER-ACE + CLER (rotation)"] == ""
        assert shown["ER-ACE + CLER (jigsaw)"] != ""
        assert "flatters" in table.note
    assert len(cells(significance)) == 2


def test_significance_has_a_row_for_each_gain_to_five_decimals(runs):
    report = runs.report((runs.plain | PAPER, [19.0, 20.0, 21.0]), (runs.cler | PAPER, [21.0, 22.0, 24.0]))
    (row,) = cells(report.beside.sheets[2])
    assert (row["method"], row["gain"], row["p paper"]) == ("ER-ACE + CLER (jigsaw)", "+2.33", "0.00001")
    assert row["p ours"] == row["p Holm"] == "0.09126"


def test_a_table_that_would_repeat_others_is_only_named(runs):
    report = runs.report((runs.plain | PAPER, [19.0, 20.0]), (runs.cler | PAPER, [24.0, 25.0]))
    assert not any(sheet.title.startswith("Figure 4") for sheet in report.beside.sheets)
    assert "stand in other tables: Figure 4" in report.beside.reading


def test_one_pass_is_told_from_several(runs):
    report = runs.report((runs.joint | PAPER | {"buffer": 0}, [23.0, 24.0]))
    assert cells(report.beside.sheets[0])[0]["method"] == "Joint, online"


def test_a_table_of_both_settings_has_them_one_after_the_other(runs):
    cssl_runs = runs.plain | PAPER | {"regularizer": "barlow-twins", "weight": 0.0001}
    report = runs.report((runs.plain | PAPER, [19.0, 20.0, 21.0]), (cssl_runs, [15.0, 16.5, 13.5]))
    (cssl,) = (one for one in report.beside.sheets if "CSSL" in one.title)
    where = "cifar100, memory of 500"
    assert [row.heading for row in cssl.rows] == [f"class-incremental, {where}"] * 2 + [
        f"task-incremental, {where}"
    ] * 2
    assert cells(cssl)[1]["gain difference"] == "−5.72 ≠"


def test_other_runs_have_no_paper_beside_them(runs):
    report = runs.usual()
    assert report.title == "Results of 12 runs on toy"
    assert (report.beside.sheets, report.beside.verdict, report.beside.agreement) == ((), "", "")
    assert report.beside.lines == {}


def test_a_preface_is_paragraphs(runs):
    report = runs.report((runs.plain, [30.0]), preface="What\nwas done.\n\n\nWhy it differs.\n")
    assert report.preface == ("What was done.", "Why it differs.")


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


def test_the_committed_results(runs, request):
    folder = request.config.rootpath / "results" / "cifar100"
    if not folder.is_dir():
        pytest.skip("the results are not part of the package")
    report = make_report(compare(find_results([folder])[0]))
    table1 = report.beside.sheets[0]
    rows = {(row["method"], one.heading): row for row, one in zip(cells(table1), table1.rows, strict=True)}
    cler = rows["ER-ACE + CLER (jigsaw)", "cifar100, memory of 500"]
    assert (cler["accuracy ours"], cler["gain ours"]) == ("24.18 ± 0.84", "+3.30")
    assert rows["Joint, online", "cifar100"]["accuracy difference"] == "+0.44"
