"""The documentation says what the result files in the repository say."""

import json
from pathlib import Path

import pytest

from cler.methods import METHODS
from cler.paper.analysis import analysis_jobs, read_subjects
from cler.paper.analysis_output import analysis_markdown
from cler.paper.known_analyses import ANALYSES
from cler.paper.report_section import beside_paper
from cler.paper.reproduce import lines
from cler.paper.tables import find_table
from cler.report.content import make_report
from cler.report.markdown import markdown
from cler.runs.compare import compare
from cler.runs.results import find_results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TIMINGS = ROOT / "benchmarks" / "h200.json"
pytestmark = pytest.mark.skipif(not TIMINGS.exists(), reason="results are not in the source distribution")


def test_the_page_of_results_is_that_of_the_result_files():
    """Else: `make docs`."""
    results, complaints = find_results([ROOT / "results" / "cifar100"])
    preface = (ROOT / "docs" / "reproduction-notes.md").read_text("utf-8")
    comparison = compare(results)
    beside = beside_paper(comparison.groups)
    expected = markdown(make_report(comparison, complaints, preface=preface, beside=beside))
    assert (ROOT / "docs" / "reproduction.md").read_text("utf-8").strip() == expected.strip()


def test_the_page_of_figures_is_that_of_what_was_found():
    """Else: `make docs`."""
    parts = [(ROOT / "docs" / "figures-notes.md").read_text("utf-8")]
    for name, buffers, seeds in (("figure1", [], range(5)), ("figure3", [500], range(3))):
        jobs = analysis_jobs(ANALYSES[name], "cifar100", buffers, seeds, ROOT / "results" / "figures", precision="bf16")
        parts.append(analysis_markdown(ANALYSES[name], read_subjects(jobs), f"{name}.png") + "\n")
        assert (ROOT / "docs" / f"{name}.png").exists()
    assert (ROOT / "docs" / "figures.md").read_text("utf-8") == "\n".join(parts)


def test_the_readme_has_the_gains_that_the_result_files_give():
    results, _ = find_results([ROOT / "results" / "cifar100"])
    told = {line.cell: line for line in lines(find_table("table1"), compare(results).groups, "bf16") if line.ours}
    for cell, line in told.items():
        alone = next((each for each in told.values() if each.cell == find_table("table1").baseline(cell)), None)
        if alone is None:
            if cell.regularizer == "none" and cell.buffer == 0:
                assert f"{line.mean:.2f} ({line.paper.mean:.2f})" in README
            continue
        pairs = [f"{each.mean:.2f} ({each.paper.mean:.2f})" for each in (alone, line)]
        gain = f"{line.gain.points:+.2f} ({line.paper_gain.points:+.2f})"
        start = f"| {METHODS[cell.method].about.title} | {cell.buffer} | {line.runs} |"
        assert f"{start} {' | '.join(pairs)} | {gain} |" in README


@pytest.mark.parametrize("block", [block.split("```")[0] for block in README.split("```python\n")[1:]])
def test_the_readme_can_be_pasted(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(block, {})


@pytest.mark.parametrize("method", ["er-ace", "xder", "cope", "dualnet"])
def test_the_readme_has_the_measured_times(method):
    timings = {
        timing["regularizer"]: timing["milliseconds"]
        for timing in json.loads(TIMINGS.read_text("utf-8"))["timings"]
        if timing["method"] == method and timing["runs"] == 10
    }
    speed = README.partition("## Speed")[2]
    (row,) = [line for line in speed.splitlines() if line.startswith(f"| {METHODS[method].about.title} |")]
    stated = [cell.strip() for cell in row.split("|")[2:5]]
    measured = [timings.get(name) for name in ("none", "jigsaw", "barlow-twins")]
    assert stated == ["" if time is None else f"{time:.2f}" for time in measured]
