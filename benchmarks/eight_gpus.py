"""What several GPUs give for `cler reproduce all`, on paper: bundles as the driver makes them, times as measured.

python benchmarks/eight_gpus.py --gpus 1,2,4,8

The seconds of a run of each cell are the medians of the runs in results/, on one H200 with about ten side by side;
cells that were never run are left out. Each GPU takes the next bundle when it is done with one, the costliest cells
first (or last, with --cheapest-first), and starts it in `--overhead` seconds. Smaller bundles take longer, as
benchmarks/h200.json tells.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import tempfile
from functools import cache
from pathlib import Path

from cler.engine.bundles import MOST_AT_ONCE
from cler.paper import cost
from cler.paper import reproduce as steps
from cler.paper.tables import find_table
from cler.report.numbers import duration
from cler.runs.jobs import Job
from cler.runs.trainers import in_bundles

ROOT = Path(__file__).parents[1]


def slower(at_once: int) -> float:
    """How much longer a step takes with so many runs side by side than with ten, in the median over what was timed."""
    timings = json.loads((ROOT / "benchmarks" / "h200.json").read_text())["timings"]
    times = {(each["method"], each["regularizer"], each["runs"]): each["milliseconds"] for each in timings}
    pairs = {key[:2] for key in times}
    both = [pair for pair in pairs if (*pair, at_once) in times and (*pair, MOST_AT_ONCE) in times]
    if not both:
        raise SystemExit(f"benchmarks/h200.json has no times of {at_once} runs side by side: it has 1, 5 and 10")
    return statistics.median(times[*pair, at_once] / times[*pair, MOST_AT_ONCE] for pair in both)


@cache  # as reading all results takes seconds
def bundles_with_seconds(table: str, at_once: int, *, cheapest_first: bool = False) -> tuple[list[float], int, int]:
    """The seconds of each bundle of `cler reproduce`, how many runs are in them, and how many were never run."""
    whole = find_table(table)
    with tempfile.TemporaryDirectory() as empty:
        work = steps.take_inventory(whole, Path(empty), seeds=None, precision="bf16", cells=whole.cells).missing
    groups = steps.take_inventory(whole, ROOT / "results", seeds=None, precision="bf16", cells=whole.cells).groups
    costs, _ = cost.known_seconds(work, None, MOST_AT_ONCE, groups)
    order = steps.cheapest_first(work, costs)
    known = [each for each in (order if cheapest_first else order[::-1]) if each.cell in costs]
    seconds: dict[Path, float] = {job.folder: costs[each.cell] for each in known for job in each.jobs}
    jobs: list[Job] = [job for each in known for job in each.jobs]
    longer = slower(at_once)
    bundles = [longer * sum(seconds[job.folder] for job in bundle) for bundle in in_bundles(jobs, at_once)]
    return bundles, len(jobs), sum(len(each.jobs) for each in work) - len(jobs)


def wall(bundles: list[float], gpus: int, overhead: float) -> float:
    """Seconds until the last of them is done."""
    free = [0.0] * gpus
    for seconds in bundles:
        heapq.heappush(free, heapq.heappop(free) + seconds + overhead)
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="all")
    parser.add_argument("--gpus", default="1,2,4,8", help="how many, with commas")
    parser.add_argument("--at-once", type=int, default=MOST_AT_ONCE, help="runs of a bundle: 1, 5 or 10")
    parser.add_argument("--overhead", type=float, default=15.0, help="seconds to start a bundle on another machine")
    parser.add_argument("--cheapest-first", action="store_true", help="in the order that one GPU takes them in")
    options = parser.parse_args()
    bundles, runs, never = bundles_with_seconds(options.table, options.at_once, cheapest_first=options.cheapest_first)
    print(f"{runs} runs in {len(bundles)} bundles, the longest {duration(max(bundles))}; {never} runs without a time")
    full, *_ = bundles_with_seconds(options.table, MOST_AT_ONCE, cheapest_first=options.cheapest_first)
    alone = wall(full, 1, options.overhead)
    for gpus in map(int, options.gpus.split(",")):
        taken = wall(bundles, gpus, options.overhead)
        print(f"{gpus} GPUs: {duration(taken)}, {alone / taken:.1f} times as fast as one with bundles of ten")


if __name__ == "__main__":
    main()
