"""A metric that is added in one place appears wherever results are read, with no result changed."""

import csv
import hashlib
import json
from pathlib import Path

import pytest

import cler.runs.results
from cler.metrics import METRICS, Metric

RESULTS = Path(__file__).parent.parent.parent / "results" / "r-dfcil-small"
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="results/ is not in the source distribution")


def hashes():
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in RESULTS.rglob("*.json")}


def test_a_metric_is_added_in_one_place(cler_here, monkeypatch, tmp_path):
    before = hashes()
    worst = Metric(lambda rows: min(rows[-1]), "Accuracy on the worst task at the end.", "higher", "%")
    monkeypatch.setitem(METRICS, "worst_task", worst)

    found, complaints = cler.runs.results.find_results([RESULTS])
    assert complaints == []
    values = {run.path.resolve(): run.metrics["worst_task"]["task_il"] for run in found}
    expected = {path.resolve(): min(json.loads(path.read_text())["accuracy"]["task_il"][-1]) for path in before}
    assert values == expected

    groups = json.loads(cler_here("compare", RESULTS, "--json").out)["groups"]
    assert {group["task_il"]["worst_task"]["mean"] for group in groups} == set(values.values())
    assert groups[0].keys() >= {"class_il", "task_il"}
    assert groups[0]["class_il"].keys() >= METRICS.keys()

    assert cler_here("report", RESULTS, "--out", tmp_path / "report").code == 0
    with (tmp_path / "report" / "results.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["scenario"] == "task_il"]
    assert {float(line["worst_task"]) for line in lines} == set(values.values())
    assert "worst_task_std" in lines[0]
    with (tmp_path / "report" / "runs.csv").open() as file:
        assert {float(line["worst_task_task_il"]) for line in csv.DictReader(file)} == set(values.values())
    assert hashes() == before


def test_a_comparison_is_drawn(cler_here, tmp_path):
    for ending, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        assert cler_here("compare", RESULTS, "--figure", tmp_path / f"new/curves.{ending}").code == 0
        assert (tmp_path / f"new/curves.{ending}").read_bytes().startswith(start)
    code, _, err = cler_here("compare", RESULTS, "--figure", "curves.doc")
    assert code == 2
    assert "cannot draw curves.doc: its name has to end in .png or .pdf or .svg" in err


def test_latex_is_that_of_a_report(cler_here, tmp_path):
    found = RESULTS.parent / "blurry"
    code, out, err = cler_here("compare", found, "--latex", "--against", "er-ace")
    assert (code, err) == (0, "")
    assert out.startswith("% needs \\usepackage{array,booktabs,longtable}\n")
    cler_here("report", found, "--against", "er-ace", "--out", tmp_path / "report")
    tables = out.partition("\n")[2].strip()
    assert "accuracy minus that of ER-ACE, in points" in tables
    assert tables in (tmp_path / "report" / "report.tex").read_text()
    code, _, err = cler_here("compare", RESULTS, "--latex", "--markdown")
    assert (code, err) == (2, "cler: --markdown and --latex: choose one\n")
