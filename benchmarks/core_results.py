"""The paper's Seq. CIFAR-100 tables, ten seeds each: references, learners, with CLER and with CSSL; and precisions.

    python benchmarks/core_results.py --data-dir DIR --out results/cifar100 [--seconds 500] [--only learners]

Prints each setting's time as it ends. Interrupted or out of time, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from cler.experiments.compare import compare
from cler.experiments.execute import Job, execute, find_device, remaining
from cler.experiments.results import find_results
from cler.experiments.settings import Settings, make_settings, parse_seeds
from cler.report.progress import ProgressBars
from cler.report.tables import comparison_table, paper_table


def table() -> list[Settings]:
    rows = [make_settings(method=name, dataset="cifar100", precision="bf16") for name in ("finetune", "joint")]
    for buffer in (500, 2000):
        for regularizer in ("none", "jigsaw", "rotation"):
            rows.append(
                make_settings(
                    method="er-ace", regularizer=regularizer, dataset="cifar100", buffer=buffer, precision="bf16"
                )
            )
    return rows


def learners() -> list[Settings]:
    pairs = [
        ("xder", "none"),
        ("xder", "jigsaw"),
        ("cope", "none"),
        ("cope", "jigsaw"),
        ("dualnet", "none"),
        ("dualnet", "rotation"),
        ("er-ace", "barlow-twins"),
        ("xder", "barlow-twins"),
        ("cope", "barlow-twins"),
    ]
    return [
        make_settings(method=method, regularizer=regularizer, dataset="cifar100", precision="bf16")
        for method, regularizer in pairs
    ]


def precisions() -> list[Settings]:
    return [
        make_settings(method="er-ace", regularizer="jigsaw", dataset="cifar100", precision=precision)
        for precision in ("tf32", "fp32")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--seeds", default="0..9")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further setting after this time")
    parser.add_argument("--only", choices=("table", "learners", "precision"), default=None)
    arguments = parser.parse_args()
    parts = {"table": table(), "learners": learners(), "precision": precisions()}
    rows = parts[arguments.only] if arguments.only else [row for part in parts.values() for row in part]
    device = find_device(arguments.device)
    start = time.perf_counter()
    for settings in rows:
        name = f"{settings.pair}_m{settings.buffer}_{settings.precision}"
        jobs = [Job(settings, seed, arguments.out / name / f"seed-{seed}") for seed in parse_seeds(arguments.seeds)]
        todo = remaining(jobs)
        if not todo or time.perf_counter() - start > arguments.seconds:
            continue
        began = time.perf_counter()
        with ProgressBars(Console(stderr=True), len(todo)) as bars:
            execute(todo, device=device, data_dir=arguments.data_dir, at_once=arguments.at_once, watcher=bars)
        print(f"{name}: {len(todo)} runs in {time.perf_counter() - began:.1f} s", flush=True)
    if arguments.out.exists() and (found := find_results([arguments.out])[0]):
        groups = compare(found).groups
        Console(width=120).print(comparison_table(groups), paper_table(groups))


if __name__ == "__main__":
    main()
