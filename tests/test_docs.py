"""The documentation says what the result files in the repository say."""

import json
import math
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import ClassVar

import pytest

from cler.cli import app, main
from cler.config.making import make_settings
from cler.config.reading import parse_seeds, read_config
from cler.config.registry import DATASETS
from cler.data.images import InMemory
from cler.frontier.arithmetic import Counts
from cler.frontier.entries import make_frontier
from cler.frontier.page import best_table, page
from cler.frontier.published import Contest
from cler.methods import METHODS
from cler.paper.analysis import analysis_jobs, read_subjects
from cler.paper.analysis_output import analysis_markdown
from cler.paper.frontier_numbers import in_the_paper
from cler.paper.glance import state_of
from cler.paper.known_analyses import ANALYSES
from cler.paper.lines import lines
from cler.paper.report_section import beside_paper, lines_of_all_tables, printed_numbers
from cler.paper.tables import find_table
from cler.report.content import make_report
from cler.report.markdown import markdown
from cler.report.prose import split
from cler.report.published import OFF
from cler.runs.compare import compare
from cler.stats import t_test
from committed import ROOT, committed
from toys import noise

README = (ROOT / "README.md").read_text("utf-8")
CLUSTERS = ("Ray", "SLURM", "plain `cler run`")
TIMINGS = ROOT / "benchmarks" / "h200.json"
pytestmark = pytest.mark.skipif(not TIMINGS.exists(), reason="results are not in the source distribution")


def test_the_page_of_results_is_that_of_the_result_files():
    """Else: `make docs`."""
    preface = (ROOT / "docs" / "reproduction-notes.md").read_text("utf-8")
    comparison = compare(committed("cifar100", "mini-imagenet"))
    beside = beside_paper(comparison.groups)
    expected = markdown(make_report(comparison, preface=preface, beside=beside))
    assert (ROOT / "docs" / "reproduction.md").read_text("utf-8").strip() == expected.strip()


def test_the_notes_name_every_method_that_is_off():
    """Else: say in `docs/reproduction-notes.md` what differs, why, and what was tried."""
    (_, differing, *_), _ = split((ROOT / "docs" / "reproduction-notes.md").read_text("utf-8"))
    told = " ".join(row[0] for row in differing.rows)
    for line in printed_numbers(lines_of_all_tables(compare(committed("cifar100", "mini-imagenet")).groups)):
        if state_of(line) == OFF:
            assert METHODS[line.cell.method].about.title in told


def test_the_page_of_figures_is_that_of_what_was_found():
    """Else: `make docs`."""
    parts = [(ROOT / "docs" / "figures-notes.md").read_text("utf-8")]
    for name, buffers, seeds in (("figure1", [], range(5)), ("figure3", [500], range(3))):
        jobs = analysis_jobs(ANALYSES[name], "cifar100", buffers, seeds, ROOT / "results" / "figures", precision="bf16")
        parts.append(analysis_markdown(ANALYSES[name], read_subjects(jobs), f"{name}.png") + "\n")
        assert (ROOT / "docs" / f"{name}.png").exists()
    assert (ROOT / "docs" / "figures.md").read_text("utf-8") == "\n".join(parts)


def test_the_readme_has_the_gains_that_the_result_files_give():
    groups = compare(committed("cifar100")).groups
    told = {line.cell: line for line in lines(find_table("table1"), groups, "bf16") if line.ours}
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


def test_the_page_beyond_the_paper_is_that_of_the_result_files():
    """Else: `make docs`."""
    counts = Counts(ROOT / "results" / "frontier" / "arithmetic.json", pytest.fail)
    found = make_frontier(compare(committed("frontier", "cifar100")).groups, counts, in_the_paper)
    notes = (ROOT / "docs" / "frontier-notes.md").read_text("utf-8")
    assert (ROOT / "docs" / "frontier.md").read_text("utf-8") == page(found, notes, "frontier.png")
    assert (ROOT / "docs" / "frontier.png").exists()
    assert f"<!-- frontier -->\n{best_table(found)}\n<!-- /frontier -->" in README


def test_the_readme_says_what_cler_gains_elsewhere():
    said = " ".join(README.split())
    groups = compare(committed("mini-imagenet")).groups
    assert f"Seq. mini-ImageNet** ({groups[0].settings['tasks']} tasks of five classes)" in said
    told = [line for line in lines(find_table("table1"), groups) if line.ours and line.scenario == "class_il"]
    gains = [line.gain for line in told if line.ours.regularized]
    least, most = min(gain.points for gain in gains), max(gain.points for gain in gains)
    smaller = sum(line.gain.points < line.paper_gain.points for line in told if line.ours.regularized)
    p_values = [gain.p_value for gain in gains if not math.isnan(gain.p_value)]
    assert f"gains {least:.2f} to {most:.2f} points in the seven pairs of method and buffer" in said
    assert (len(gains), smaller) == (7, 6)  # in words there
    assert (len(p_values), sum(p_value < 0.05 for p_value in p_values)) == (6, 3)  # in words there
    (line,) = (
        line
        for line in lines(find_table("epochs"), compare(committed("cifar100")).groups)
        if (line.cell.buffer, line.cell.epochs, line.cell.regularizer) == (500, 50, "jigsaw")
    )
    gain = f"gains {line.gain.points:.2f} points, where the paper prints {line.paper_gain.points:.2f}"
    assert gain in said
    assert line.runs == 1  # "single runs"


def test_the_readme_begins_with_what_the_result_files_give():
    first = " ".join(README.partition("The method comes from")[0].split())
    groups = compare(committed("cifar100")).groups
    told = [line for line in lines(find_table("table1"), groups, "bf16") if line.gain]
    gains = [line.gain.points for line in told]
    assert f"adds {min(gains):.1f} to {max(gains):.1f} points to four methods with two sizes of buffer" in first
    assert [len({line.cell.method for line in told}), len(told)] == [4, 8]  # "in all eight cases"
    assert all(line.gain.p_value < 0.05 for line in told)
    assert len(METHODS) == 14  # "fourteen methods"
    in_words = r"Of (\d+) accuracies in the paper, (\d+) agree with ours, \d+ are off, (\d+) have not been run"
    reproduction = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    every, agree, missing = map(int, re.search(in_words, reproduction).groups())
    assert f"Of its {every - missing} accuracies that we have run, {agree} agree with ours" in first


def test_the_readme_says_of_the_best_learner_what_the_page_beyond_the_paper_has():
    first, said = (" ".join(part.split()) for part in (README.partition("The method comes from")[0], README))
    frontier = (ROOT / "docs" / "frontier.md").read_text("utf-8")
    best = re.search(r"\| 10\+64 \| 2000 \| GSA \+ CLER \+ MKD \|.*\(\d\) .*", frontier)[0].split("|")
    assert f"reaches {float(best[5].split()[0]):.1f} % on CIFAR-100" in first
    assert f"that we know of is {best[7].split()[0]} " in first
    gain = re.search(r"\| GSA \+ MKD \| 10\+64 \| 2000 \|.*?\+(\d\.\d+)\*\*", frontier)[1]
    assert f"{float(gain):.1f} points of it from CLER" in first
    significant, pairs = re.search(r"in (\d+) of (\d+) pairs", frontier).groups()
    assert f"of {pairs} comparisons with the same learner without it, its gain is significant in {significant}" in said


def test_the_page_beyond_the_paper_says_what_each_learner_costs():
    counts = Counts(ROOT / "results" / "frontier" / "arithmetic.json", pytest.fail)
    found = make_frontier(compare(committed("frontier", "cifar100")).groups, counts, in_the_paper)
    notes = (ROOT / "docs" / "frontier-notes.md").read_text("utf-8")
    table = notes.partition("## Which learner to take\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "×" in line]
    assert len(rows) == 5
    for _, name, protocol, *accuracies, arithmetic, seconds in rows:
        side_by_side = {"10+10": 10, "10+64": 5}[protocol]
        for buffer, accuracy in zip((500, 2000), accuracies, strict=True):
            named = [one for one in found.of(Contest(protocol, buffer)) if one.name == name]
            entry = max(named, key=lambda one: len(one.row.results))
            assert (accuracy, arithmetic) == (f"{entry.accuracy.mean:.2f}", f"{entry.arithmetic:.1f} ×")
            if buffer == 500:
                times = [run.seconds / run.at_once for run in entry.row.results if run.at_once == side_by_side]
                assert {round(time) for time in times} == {int(seconds)}
    gsa, xder = (
        {one.contest.buffer: one.row.metrics["incremental_accuracy"]["class_il"].mean for one in found.entries
         if one.name == name and one.row.settings["optimizer"] == "adam"}
        for name in ("GSA + CLER + MKD", "X-DER + CLER + MKD")
    )  # fmt: skip
    leads = [gsa[buffer] - xder[buffer] for buffer in (500, 1000, 2000, 5000)]
    assert (round(min(leads)), round(max(leads))) == (5, 10)  # "by 5 to 10 points on average"
    (just_learned,) = re.findall(
        r"it has (\d+) % on a task that it has just learned, and GSA (\d+)", " ".join(notes.split())
    )
    for name, told in zip(("X-DER + CLER + MKD", "GSA + CLER + MKD"), just_learned, strict=True):
        (entry,) = (one for one in found.of(Contest("10+64", 2000)) if one.name == name)
        matrices = [run.accuracy["class_il"] for run in entry.row.results]
        assert round(fmean(row[-1] for rows in matrices for row in rows)) == int(told)


def blocks(page):
    """The code in Python of a page."""
    return re.findall(r"^```python\b[^\n]*\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


class StandIn(InMemory):
    """A few random images, learned by a narrow network where no width is given."""

    defaults: ClassVar = {"width": 2}


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Somebody who pastes code of a page, in whose `cler` stand-ins have the names of datasets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLER_DATA", str(tmp_path / "data"))
    for name in ("cifar10-sample", "cifar100"):
        DATASETS._entries[name] = StandIn(replace(noise(10), name=name))
    return {"__name__": "__main__"}


PAGES = ["README.md", *(f"docs/{name}.md" for name in ("tour", "python", "learner", "tracking", "data"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_can_be_pasted(page, reader):
    for block in blocks(page):
        exec(block, reader)


def test_the_code_of_every_page_is_tested():
    with_code = {page.name for page in (ROOT / "docs").glob("*.md") if blocks(page)}
    in_test_examples = {"drop-in.md"}
    assert with_code == {Path(page).name for page in PAGES} - {"README.md"} | in_test_examples


def test_the_settings_file_of_the_guide_is_one(tmp_path):
    guide = (ROOT / "docs" / "getting-started.md").read_text("utf-8")
    (tmp_path / "guide.toml").write_text(guide.partition("```toml\n")[2].partition("```")[0], "utf-8")
    given = read_config(tmp_path / "guide.toml", {})
    assert parse_seeds(given.pop("seeds")) == list(range(10))
    assert make_settings(**given).pair == "xder+jigsaw"


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link


@pytest.mark.parametrize("folder", ["blurry", "mini64"])
def test_the_page_of_streams_has_the_results(folder):
    page = (ROOT / "docs" / "streams.md").read_text("utf-8")
    for group in compare(committed(folder)).groups:
        accuracy = group.final_accuracy["class_il"]
        row = [group.label, f"{accuracy.mean:.2f} ± {accuracy.std:.2f}"]
        if folder == "blurry":
            within = ("average_anytime_accuracy", "worst_case_accuracy", "prequential_accuracy")
            row += [f"{group.metrics[name]['class_il'].mean:.2f}" for name in within]
        assert f"| {' | '.join(row)} |" in page


def test_the_page_on_speed_has_what_images_in_main_memory_cost():
    page = (ROOT / "docs" / "speed.md").read_text("utf-8")
    measured = json.loads((ROOT / "benchmarks" / "host_images.json").read_text("utf-8"))
    for each in measured["larger"]:
        place = "in main memory" if each["on the host"] else "on the GPU"
        used = f"{each['ms']:.3f} | {each['GB on the GPU']:.1f} GB | {each['placing s']:.1f} s"
        assert f"| {each['dataset GB']:.1f} GB | {place} | {used} |" in page
    steps = measured["steps"]
    times = {(each["size"], each["method"], each["images"]): each["ms"] for each in steps}
    names = {"er-ace": "ER-ACE", "er-ace+jigsaw": "ER-ACE + CLER"}
    for size, method, _ in times:
        device, host = (times[size, method, place] for place in ("device", "host"))
        end = f"| {names[method]} | {device:.3f} | {host:.3f} | {100 * (host / device - 1):+.1f} % |"
        assert any(line.startswith(f"| {size}×{size} ") and line.endswith(end) for line in page.splitlines())


def test_every_question_can_be_asked(monkeypatch):
    """Its command is understood, and trains as many runs as its page says."""
    asked = []

    def prepare(settings, seeds, machine, **_):
        asked.append(len(settings) * len(seeds))
        raise SystemExit

    monkeypatch.setattr("cler.runs.prepare.prepare", prepare)
    page = (ROOT / "docs" / "questions.md").read_text("utf-8")
    commands = [block.split("```")[0].replace("\\\n", "").split() for block in page.split("```\ncler ")[1:]]
    for command in (each for each in commands if each[0] == "run"):
        monkeypatch.setattr(sys, "argv", ["cler", *command])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    assert asked == [int(count) for count in re.findall(r"\b(\d+)\s+runs?\)", page)]
    assert [each[1] for each in commands if each[0] == "analyze"] == ["figure1", "figure3"]


def test_every_command_and_method_stands_in_its_page():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert [name for name in METHODS if f"`{name}`" not in page] == []
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert [name for name in commands if f"`cler {name}" not in page] == []


@pytest.mark.parametrize("method", ["er-ace", "xder", "cope", "dualnet"])
def test_the_page_on_speed_has_the_measured_times(method):
    timings = {
        timing["regularizer"]: timing["milliseconds"]
        for timing in json.loads(TIMINGS.read_text("utf-8"))["timings"]
        if timing["method"] == method and timing["runs"] == 10
    }
    speed = (ROOT / "docs" / "speed.md").read_text("utf-8")
    (row,) = [line for line in speed.splitlines() if line.startswith(f"| {METHODS[method].about.title} |")]
    stated = [cell.strip() for cell in row.split("|")[2:5]]
    measured = [timings.get(name) for name in ("none", "jigsaw", "barlow-twins")]
    assert stated == ["" if time is None else f"{time:.2f}" for time in measured]


def test_the_page_on_tracking_has_what_curves_cost():
    page = " ".join((ROOT / "docs" / "tracking.md").read_text("utf-8").split())
    measured = json.loads((ROOT / "benchmarks" / "tracking_cost.json").read_text("utf-8"))
    tracked, plain = (fmean(measured[key]) for key in ("with", "without"))
    assert f"{tracked:.2f} steps a second each with TensorBoard and {plain:.2f} without" in page
    cost = f"{measured['cost_percent']:.2f} ± {measured['standard_error']:.2f} %"
    assert cost.replace("-", "−") in page


@pytest.mark.parametrize("way", ["paper", "first-tasks", "other-dataset", "whole-stream"])
def test_the_page_on_tuning_has_what_each_way_to_select_finds(way):
    page = (ROOT / "docs" / "tune.md").read_text("utf-8")
    results, paper = (committed(f"tune/{name}") for name in (way, "paper"))
    (group,) = compare(results).groups
    accuracy = group.final_accuracy["class_il"]
    unseen, final, others = (
        [fmean(each.accuracy["class_il"][-1][first:]) for each in runs]
        for runs, first in ((results, 3), (results, 0), (paper, 0))
    )
    p = "" if way == "paper" else f"{t_test(final, others).p_value:.3f}"
    (row,) = [line for line in page.splitlines() if f"| {group.settings['lr']} | {group.settings['weight']} |" in line]
    cells = [cell.strip() for cell in row.split("|")]
    told = [f"{accuracy.mean:.2f} ± {accuracy.std:.2f}", p, f"{fmean(unseen):.2f} ± {stdev(unseen):.2f}"]
    assert cells[5:8] == told
    if way != "paper":
        study = json.loads((ROOT / "results" / "tune" / way / "study.json").read_text("utf-8"))
        assert len(study["trials"]) == 60
        held_out = max((len(each["scores"]), each["scores"][-1]) for each in study["trials"])[1]
        assert cells[4] == f"{held_out:.2f}"


def test_the_page_on_clusters_has_what_its_log_and_the_results_give(monkeypatch, capsys):
    """Runs that are added to the results change what eight GPUs would take."""
    page = " ".join((ROOT / "docs" / "anywhere.md").read_text("utf-8").split())
    log = (ROOT / "tools" / "cluster_test.log").read_text("utf-8")
    assert log.splitlines()[-1] == "0 commands ended with other numbers than plain runs"
    written, read, size = re.search(r"side by side: (\d+) µs to write, (\d+) µs to read, (\d+) bytes", log).groups()
    assert f"takes {written} µs to write, {read} µs to read and {size} bytes" in page
    ray, slurm, plain = (re.search(rf"^{who}: ([\d.]+) s around", log, re.M)[1] for who in CLUSTERS)
    assert f"overhead of {ray} s on Ray, {slurm} s on SLURM and {plain} s without a cluster" in page
    monkeypatch.setattr(sys, "argv", ["eight_gpus.py"])
    runpy.run_path(str(ROOT / "benchmarks" / "eight_gpus.py"), run_name="__main__")
    first, *lines = capsys.readouterr().out.splitlines()
    runs, bundles, longest, never = re.match(
        r"(\d+) runs in (\d+) bundles, the longest (.+); (\d+) runs", first
    ).groups()
    assert f"{runs} runs whose time on one H200 is known" in page
    assert (
        f"make {bundles} bundles of up to ten, the longest taking {longest.replace(' min', ' minutes')} ({never} "
        in page
    )
    one, two, four, eight = (re.match(r"\d GPUs: (.+), ([\d.]+) times", line).groups() for line in lines)
    assert f"One GPU takes {one[0]}, two {two[0]}, four {four[0]}, eight **{eight[0]}**, {eight[1]} times" in page
