"""`cler analyze`: analyze trained networks, as in the paper's figures 1 and 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cler.cli.app import HERE, AsJson, Imports, Redo, app, console, errors, say, show
from cler.cli.options import Given, command, takes
from cler.config.machine import Machine
from cler.config.settings import Settings
from cler.errors import UsageError

if TYPE_CHECKING:
    from cler.runs.jobs import Job


@command(
    app,
    takes(
        Settings,
        Machine,
        only=("dataset", "buffer", "width", "precision", "device", "workers", "data_dir", "out"),
        defaults={"dataset": "cifar100", "buffer": None, "width": None, "precision": None, "out": Path("analysis")},
        helps=HERE,
    ),
)
def analyze(
    given: Given,
    figure: Annotated[
        str,
        typer.Argument(
            help="figure1: gradients of successive tasks, and accuracy on new tasks. "
            "figure3: importance and redundancy of filters, and recovery from losing some."
        ),
    ],
    seeds: Annotated[str, typer.Option(help="How many seeds (10 means 0 to 9), or which: 0..9 or 3,7.")] = "10",
    redo: Redo = False,
    imports: Imports = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown with a link to the figure.")] = False,
) -> None:
    """Analyze networks while they train, and compare the findings with what the paper says.

    Trains the runs that are missing; a run that was stopped resumes from its last checkpoint. Settings that you leave
    out are the paper's, and buffers are those of its table 1. On a CPU, --precision bf16 finds runs made on a GPU.
    """
    from cler import data
    from cler.api import train_jobs
    from cler.config.reading import parse_seeds
    from cler.paper.analysis import analysis_jobs, read_subjects
    from cler.paper.analysis_output import (
        analysis_figure,
        analysis_json,
        analysis_markdown,
        analysis_sentences,
        analysis_table,
    )
    from cler.paper.known_analyses import find_analysis
    from cler.report.figures import new_figure
    from cler.runs.build import check_fit
    from cler.runs.jobs import delete_checkpoints, outdated, past_failures, to_do_and_ended
    from cler.runs.jobs import redo as redo_jobs
    from cler.runs.machine import default_precision, find_device

    if as_json and markdown:
        raise UsageError("--json and --markdown: choose one")
    analysis, machine, chosen = find_analysis(figure), given.machine, given.settings
    dataset, out = chosen["dataset"], machine.out
    precision = default_precision(find_device(machine.device))
    buffers = given.several("buffer") if chosen["buffer"] is not None else ()
    changes = {"width": chosen["width"], "precision": chosen["precision"] or precision}
    jobs = analysis_jobs(analysis, dataset, buffers, parse_seeds(seeds), out, **changes)
    fingerprint = None
    todo, ended = to_do_and_ended(jobs)
    if todo and not redo and (options := _options_of(ended, todo)):
        say(f"{len(ended)} of {len(jobs)} runs are in {out}; {options} shows them")
    if redo or todo:
        images = data.load(dataset, machine.data_dir)
        fingerprint = images.fingerprint()
        for job in jobs:
            check_fit(job.settings, images)
        new_figure(1, 1)  # refuses a Python without matplotlib, before anything is deleted or trained
    if redo:
        redo_jobs(jobs)
        todo, ended = to_do_and_ended(jobs)
    delete_checkpoints(ended)
    failures = past_failures(ended)
    for line in [*outdated(ended, lambda one: fingerprint), *failures]:
        say(line)
    if todo:
        say(f"{len(todo)} of {len(jobs)} runs to do; stop with Ctrl-C at any time")
    failures += train_jobs(todo, machine, errors)
    subjects = read_subjects(jobs)
    path = out / f"{analysis.name}.png"
    analysis_figure(analysis, subjects, path)
    if as_json:
        print(json.dumps(analysis_json(analysis, subjects) | {"figure": str(path)}, indent=1))
    elif markdown:
        print(analysis_markdown(analysis, subjects, path.name))
    else:
        show(analysis_table(analysis, subjects))
        for sentence in analysis_sentences(analysis, subjects):
            console.print(sentence)
        console.print(f"figure: {path}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _options_of(ended: Sequence[Job], todo: Sequence[Job]) -> str:
    """The options that ask for what has ended and no more; empty where none do."""
    asked, missing = ({(job.settings.buffer, job.seed) for job in jobs} for jobs in ((*ended, *todo), todo))
    there = asked - missing
    buffers, seeds = sorted({buffer for buffer, _ in there}), sorted({seed for _, seed in there})
    if not there or len(there) < len(buffers) * len(seeds):
        return ""
    fewer = len(buffers) < len({buffer for buffer, _ in asked})
    in_a_row = seeds[-1] - seeds[0] == len(seeds) - 1
    which = f"{seeds[0]}..{seeds[-1]}" if in_a_row else ",".join(map(str, seeds))
    return f"--buffer {','.join(map(str, buffers))} --seeds {which}" if fewer else f"--seeds {which}"
