import pytest

from cler.experiments.compare import compare
from cler.experiments.results import find_results
from cler.report.content import make_report


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
    assert facts["Software"] == "cler 1.2, torch 2.13"
    assert facts["Time"].startswith("12 min summed over the runs")


def test_facts_that_old_results_do_not_tell_are_left_out(runs):
    comparison = compare(runs.make({key: runs.plain[key] for key in runs.plain if key != "precision"}, [30.0]))
    comparison.groups[0].runs[0].environment.clear()
    assert [name for name, _ in make_report(comparison).facts] == ["Runs", "Time"]


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
    assert (class_il["setting"], task_il["setting"]) == ("class-incremental", "task-incremental")
    assert class_il["gain"] == "+3.00"
    assert class_il["p Student"] == "0.045"
    assert class_il["p Holm"] == "0.090"
    assert "2 tests" in section.gains.note
    assert strong(section.gains, 0) == set()
    assert section.summary.startswith("Class-incremental, 1 of 1 regularised rows gain, 0 of them with p < 0.05 after")


def test_a_loss_is_no_gain_however_sure(runs):
    (section,) = runs.report((runs.plain, [30.0, 30.1]), (runs.cler, [20.0, 20.1])).sections
    assert cells(section.gains)[0]["gain"] == "−10.00"
    assert strong(section.gains, 0) == {"Holm"}
    assert section.summary.startswith("Class-incremental, 0 of 1 regularised rows gain, 0 of them")


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
    table1, table2 = (next(one for one in report.paper if one.title.startswith(f"Table {n}")) for n in (1, 2))
    plain, cler = cells(table1)
    assert "setting" not in plain
    assert (plain["accuracy ours"], plain["accuracy paper"]) == ("20.00 ± 1.00", "20.17 ± 1.31")
    assert (plain["accuracy difference"], plain["forgetting paper"], plain["gain paper"]) == ("−0.17", "38.8", "")
    assert cler["accuracy difference"] == "+8.47 ≠"
    assert (cler["gain ours"], cler["gain paper"], cler["gain paper's p"]) == ("+13.00", "+4.36", "< 0.001")
    assert strong(table1, 1) == {"difference"}
    assert cells(table2)[0]["accuracy paper"] == "56.06"
    assert "have runs" in table1.note
    assert report.beside.startswith("1 of 4 accuracies agree")


def test_a_table_of_both_settings_has_them_one_after_the_other(runs):
    paper = {"dataset": "cifar100", "tasks": 10, "buffer": 500}
    report = runs.report((runs.plain | paper, [19.0, 20.0, 21.0]), (runs.cler | paper, [33.0, 34.5, 31.5]))
    (cssl,) = (one for one in report.paper if "CSSL" in one.title)
    assert [row["setting"] for row in cells(cssl)] == ["class-incremental"] * 2 + ["task-incremental"] * 2


def test_other_runs_have_no_paper_beside_them(runs):
    report = runs.usual()
    assert report.paper == ()
    assert report.beside == ""
    assert report.lines == {}


def test_a_preface_is_paragraphs(runs):
    report = runs.report((runs.plain, [30.0]), preface="What\nwas done.\n\n\nWhy it differs.\n")
    assert report.preface == ("What was done.", "Why it differs.")


def test_what_was_left_out_is_told(runs):
    failed = runs.make(runs.plain, [30.0, 31.0])
    object.__setattr__(failed[1], "failure", "diverged")
    report = make_report(compare(failed), ["skipped: a.json"])
    assert report.complaints == ("skipped: a.json", "left out: er-ace-none/1/result.json (failed: diverged)")


def test_the_committed_results(runs, request):
    folder = request.config.rootpath / "results" / "cifar100"
    if not folder.is_dir():
        pytest.skip("the results are not part of the package")
    report = make_report(compare(find_results([folder])[0]))
    rows = {(row["method"], row["memory"]): row for row in cells(report.paper[0])}
    assert rows["ER-ACE + CLER (jigsaw)", "500"]["accuracy ours"] == "24.14 ± 0.97"
    assert rows["ER-ACE + CLER (jigsaw)", "500"]["gain ours"] == "+3.26"
    assert rows["Joint", "–"]["accuracy difference"] == "+0.44"
