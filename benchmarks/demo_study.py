"""Which settings should the demo have? Every candidate over ten or more seeds, on the images of the package.

    python benchmarks/demo_study.py --out runs/demo-study [--seeds 0..9] [--device auto]

Prints, for each candidate, ER-ACE without and with CLER, the gain and its p-value. If interrupted, it resumes.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.config.reading import parse_seeds
from cler.config.settings import Settings
from cler.report.console import Terminal
from cler.report.progress import ProgressBars
from cler.report.terminal import comparison_table
from cler.runs.compare import compare
from cler.runs.execute import execute
from cler.runs.jobs import Job, remaining
from cler.runs.results import find_results


def candidates(precision: str) -> list[Settings]:
    grid = itertools.product(
        (10, 5), (16, 20), (0.03, 0.1), (("none", 0.0), ("jigsaw", 0.5), ("jigsaw", 1.0), ("rotation", 1.0))
    )
    return [
        make_settings(
            method="er-ace",
            regularizer=regularizer,
            weight=weight,
            lr=lr,
            width=width,
            batch=batch,
            precision=precision,
        )
        for batch, width, lr, (regularizer, weight) in grid
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0..9")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=None)
    arguments = parser.parse_args()
    jobs = []
    for settings in candidates("bf16"):
        name = f"{settings.pair}_b{settings.batch}_w{settings.width}_lr{settings.lr}_l{settings.weight}"
        jobs += [Job(settings, seed, arguments.out / name / f"seed-{seed}") for seed in parse_seeds(arguments.seeds)]
    todo = remaining(jobs)
    if todo:
        with ProgressBars(Terminal(stderr=True), len(todo)) as bars:
            execute(todo, Machine(device=arguments.device, at_once=arguments.at_once), callbacks=[bars])
    groups = compare(find_results([arguments.out])[0]).groups
    Terminal(width=140).print(comparison_table(groups))


if __name__ == "__main__":
    main()
