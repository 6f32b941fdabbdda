"""The documentation says what the result files in the repository say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cler.config.settings import make_settings
from cler.engine import train
from cler.methods import METHODS
from cler.paper.analysis import analysis_jobs, read_subjects
from cler.paper.analysis_output import analysis_markdown
from cler.paper.known_analyses import ANALYSES
from cler.paper.report_section import beside_paper
from cler.paper.reproduce import lines
from cler.paper.tables import find_table
from cler.regularizers import REGULARIZERS
from cler.report.content import make_report
from cler.report.markdown import markdown
from cler.runs.build import build_run
from cler.runs.compare import compare
from cler.runs.results import find_results
from toys import noise

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


def test_the_method_and_the_regulariser_in_the_guide_work_together():
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    method, regularizer = [block.split("```")[0] for block in guide.split("```python\n")[1:3]]
    before = dict(METHODS), dict(REGULARIZERS)
    assert method == (ROOT / "src" / "cler" / "methods" / "finetune.py").read_text("utf-8")
    try:
        exec(method.replace('name = "finetune"', 'name = "mine"'), {})
        exec(regularizer, {})
        settings = make_settings(method="mine", regularizer="small-features", tasks=2, width=2, batch=4)
        run = build_run(settings, 0, noise(per_class=6))
        train([run])
        assert run.complete
        (small_features,), network = run.method.regularizers, run.method.network
        buffers = [each.clone() for each in network.buffers()]
        pixels, labels = run.stream.train(0)
        small_features.loss(network, run.views.plain(pixels), run.views.augmented(pixels), labels)
        assert all(map(torch.equal, network.buffers(), buffers))  # as its class says
    finally:
        for registry, content in zip((METHODS, REGULARIZERS), before, strict=True):
            registry._entries.clear()
            registry._entries.update(content)


def test_a_method_may_stay_outside_the_package(tmp_path):
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    method, _, program = [block.split("```")[0] for block in guide.split("```python\n")[1:4]]
    (tmp_path / "mine.py").write_text(method.replace('name = "finetune"', 'name = "mine"').replace("Finetune", "Mine"))
    (tmp_path / "my_cler.py").write_text(program)
    asked = ["run", "mine", "--tasks", "2", "--width", "2", "--batch", "500", "--seeds", "0,1", "--workers", "2"]
    ended = subprocess.run([sys.executable, "my_cler.py", *asked], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Mine" in ended.stdout


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
