"""What a report says beside the paper."""

import csv
import io

import pytest

from cler.config.making import make_settings
from cler.paper.report_section import beside_paper
from cler.report.content import make_report
from cler.report.csv_files import results_csv
from cler.report.latex import latex
from cler.report.markdown import markdown
from cler.report.page import page
from cler.runs.compare import compare
from committed import ROOT, committed
from sheets import cells, strong


def settings(pair="er-ace", buffer=500):
    """The paper's settings on CIFAR-100 for a method, or method+regularizer."""
    method, _, regularizer = pair.partition("+")
    return make_settings(
        method=method, regularizer=regularizer or "none", dataset="cifar100", buffer=buffer, precision="bf16"
    ).to_dict()


def report_on(runs, *pairs, **options):
    comparison = runs.compare(*pairs)
    return make_report(comparison, beside=beside_paper(comparison.groups), **options)


def test_the_paper_stands_beside_runs_with_its_settings(runs):
    report = report_on(runs, (settings(), [19.0, 20.0, 21.0]), (settings("er-ace+jigsaw"), [33.0, 34.5, 31.5]))
    table1, table2 = report.beside.sheets[:2]
    plain, cler = cells(table1)
    assert {row.heading for row in table1.rows} == {"cifar100, buffer 500"}
    assert (plain["accuracy ours"], plain["accuracy paper"]) == ("20.00 ± 1.00", "20.17 ± 1.31")
    assert (plain["accuracy difference"], plain["adjusted forgetting paper"], plain["gain paper"]) == (
        "−0.17",
        "38.8",
        "",
    )
    assert cler["accuracy difference"] == "+8.47 ≠"
    assert (cler["gain ours"], cler["gain paper"], cler["gain difference"]) == ("+13.00", "+4.36", "+8.64 ≠")
    assert strong(table1, 1) == {"difference"}
    assert cells(table2)[0]["accuracy paper"] == "56.06 ± 1.41"
    assert "We have runs for 2 of the 38 numbers in the paper's table." in table1.note
    assert report.title.endswith("Online Continual Learning: our 6 runs on cifar100")
    said = "CLER's gain is positive in 1 of 1 cell and within 1.5 points of the paper's in 0; 15 not run."
    assert report.beside.verdict == (f"Table 1, class-incremental: {said}", f"Table 2, task-incremental: {said}")
    assert report.beside.counts == {"agrees": 1, "off": 3, "not run": 119}
    assert report.beside.agreement.startswith(
        "1 of 4 accuracies are within one point of the paper's. Of the 4 differences that can be tested, because the "
        "paper prints a deviation, 1 are not significant at 1 %. Some of our numbers are from only 3 runs, the "
        "paper's from 10 each"
    )


def test_of_several_datasets_each_is_told_first(runs):
    mini = make_settings(method="er-ace", dataset="mini-imagenet", buffer=2000, precision="bf16").to_dict()
    report = report_on(runs, (settings(), [19.0, 20.0, 21.0]), (mini, [30.0, 31.0]))
    told = "Accuracies that agree with the paper's: 1 of 2 on cifar100, 0 of 2 on mini-imagenet."
    assert report.beside.verdict == (told,)
    assert '<p class="verdict">Accuracies that agree' in page(report)


def test_the_papers_forgetting_is_rounded_as_people_round(runs):
    _, task_il = report_on(runs, (settings("dualnet", 2000), [11.0])).beside.sheets
    assert cells(task_il)[0]["adjusted forgetting paper"] == "13.9"  # 13.85, as a float a little less


def test_both_pretext_tasks_are_shown_and_the_better_one_has_the_papers_number(runs):
    pairs = (
        (settings(), [19.0, 20.0]),
        (settings("er-ace+jigsaw"), [24.0, 25.0]),
        (settings("er-ace+rotation"), [22.0, 23.0]),
    )
    table1, table2, significance = report_on(runs, *pairs).beside.sheets
    for table in (table1, table2):
        shown = {row["method"]: row["accuracy paper"] for row in cells(table)}
        assert shown["ER-ACE + CLER (rotation)"] == ""
        assert shown["ER-ACE + CLER (jigsaw)"] != ""
        assert "makes that accuracy look too good" in table.note
    assert len(cells(significance)) == 2


def test_significance_has_a_row_for_each_gain_to_five_decimals(runs):
    report = report_on(runs, (settings(), [19.0, 20.0, 21.0]), (settings("er-ace+jigsaw"), [21.0, 22.0, 24.0]))
    (row,) = cells(report.beside.sheets[2])
    assert (row["method"], row["gain"], row["p paper"]) == ("ER-ACE + CLER (jigsaw)", "+2.33", "0.00001")
    assert row["p ours"] == row["p Holm"] == "0.09126"


def test_a_table_that_would_repeat_others_is_only_named(runs):
    report = report_on(runs, (settings(), [19.0, 20.0]), (settings("er-ace+jigsaw"), [24.0, 25.0]))
    assert not any(sheet.title.startswith("Figure 4") for sheet in report.beside.sheets)
    assert "other tables have all of their numbers: Figure 4" in report.beside.reading


def test_one_pass_is_told_from_several(runs):
    report = report_on(runs, (settings("joint", None), [23.0, 24.0]))
    assert cells(report.beside.sheets[0])[0]["method"] == "Joint, online"


def test_a_table_of_both_settings_has_them_one_after_the_other(runs):
    report = report_on(runs, (settings(), [19.0, 20.0, 21.0]), (settings("er-ace+barlow-twins"), [15.0, 16.5, 13.5]))
    (cssl,) = (one for one in report.beside.sheets if "CSSL" in one.title)
    where = "cifar100, buffer 500"
    assert [row.heading for row in cssl.rows] == [f"class-incremental, {where}"] * 2 + [
        f"task-incremental, {where}"
    ] * 2
    assert cells(cssl)[1]["gain difference"] == "−5.72 ≠"


def test_other_runs_have_no_paper_beside_them(runs):
    report = report_on(runs, (runs.plain, [30.0]))
    assert report.title == "Results of 1 run on toy"
    assert (report.beside.sheets, report.beside.verdict, report.beside.glances) == ((), (), ())
    assert (report.beside.gains, report.beside.columns) == ({}, {})


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="results/ is not in the source distribution")
def test_the_committed_results():
    table1 = beside_paper(compare(committed("cifar100")).groups).sheets[0]
    rows = {(row["method"], one.heading): row for row, one in zip(cells(table1), table1.rows, strict=True)}
    cler = rows["ER-ACE + CLER (jigsaw)", "cifar100, buffer 500"]
    assert (cler["accuracy ours"], cler["gain ours"]) == ("24.18 ± 0.84", "+3.30")
    assert rows["Joint, online", "cifar100"]["accuracy difference"] == "+0.39"


def spreadsheet(report):
    return list(csv.DictReader(io.StringIO(results_csv(report))))


def test_the_papers_numbers_are_beside_ours(runs):
    class_il, task_il = spreadsheet(report_on(runs, (settings(), [20.0])))
    assert (class_il["paper_accuracy"], class_il["paper_accuracy_std"]) == ("20.17", "1.31")
    assert float(class_il["accuracy_minus_paper"]) == pytest.approx(-0.17)
    assert class_il["p_against_paper"] == class_il["accuracy_std"] == ""  # one run
    assert (task_il["paper_accuracy"], task_il["paper_accuracy_std"]) == ("56.06", "1.41")


def test_the_difference_is_between_two_columns_even_where_the_paper_evaluates_in_its_own_way(runs):
    class_il, task_il = spreadsheet(report_on(runs, (settings("joint", None), [22.0, 24.0])))
    for line in (class_il, task_il):
        ours, paper = float(line["accuracy_as_paper"]), float(line["paper_accuracy"])
        assert ours - paper == pytest.approx(float(line["accuracy_minus_paper"]))
    assert class_il["accuracy_as_paper"] == class_il["accuracy"]
    assert float(task_il["accuracy_as_paper"]) < float(task_il["accuracy"]) - 1
    assert float(task_il["accuracy_as_paper_std"]) > 0


def test_the_sections_come_in_order(runs):
    report = report_on(runs, (settings(), [20.0]), (settings("er-ace+jigsaw"), [24.0]), preface="First of all.")
    parts = ["Robust Online", "Of 123 accuracies in the paper, ", "gain is positive", "First of all.", "accuracies are"]
    for text in (markdown(report), latex(report)):
        places = [text.index(part) for part in (*parts, "cifar100, buffer 500", "Results")]
        assert places == sorted(places)
        assert "Left out" not in text


def test_the_page_draws_the_papers_gains(runs):
    text = page(report_on(runs, (settings(), [19.0, 20.0]), (settings("er-ace+jigsaw"), [24.0, 25.0])))
    assert text.count('class="published"') == 2
    assert "the gain in the paper" in text
    assert text.count("The paper&#39;s tables") == 2


def test_gains_of_joint_are_evaluated_as_its_accuracies_are(runs):
    finals = {"joint": 22.0, "joint+jigsaw": 27.0}
    made = [run for pair, final in finals.items() for run in runs.make(settings(pair, None), [final, final + 2])]
    for run in made:
        harder = 5.0 if run.settings["regularizer"] == "none" else 0.0
        run.accuracy["class_il"][-1][0] -= harder  # the first task, which counts for less in the authors' evaluation
    comparison = compare(made)
    beside = beside_paper(comparison.groups)
    (joint,) = (sheet for sheet in beside.sheets if sheet.anchor == "joint")
    alone, cler = cells(joint)
    ours = [float(row["accuracy ours"].split()[0]) for row in (alone, cler)]
    assert float(cler["gain ours"]) == pytest.approx(ours[1] - ours[0])
    assert float(cler["gain ours"]) != pytest.approx(comparison.groups[1].gain["class_il"].points, abs=0.1)
    assert "our accuracies and gains are evaluated in the same way here" in joint.note
    assert "Joint&#39;s gains are by our evaluation here" in page(make_report(comparison, beside=beside))


def test_settings_that_were_chosen_by_the_reported_accuracy_are_marked(runs):
    made = make_settings(method="lwf-mc", dataset="cifar100", epochs=30, precision="bf16").to_dict()
    (sheet,) = report_on(runs, (made, [36.0])).beside.sheets
    assert cells(sheet)[0]["method"] == "LwF.MC, 30 epochs †"
    assert "† marks settings that we chose by the accuracy that is reported (LwF.MC, 30 epochs: the" in sheet.note
