"""`cler tune`: look for settings, and say on what they were selected."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from dataclasses import asdict, replace
from itertools import islice, product
from pathlib import Path
from typing import Annotated

import typer

from cler.cli.app import AsJson, Imports, OwnSettings, app, console, errors, say
from cler.cli.options import Given, command, takes
from cler.config.machine import Machine
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.errors import UsageError

NOT_OF_TRIALS = ("save_network", "save_buffer_images", "until_task")
"""Settings of the machine that trials have no use for: they stop where tuning says."""
FIGURE = "study.png"
HELD_OUT = 0.1
"""Share of the training images that decide, where no other is given."""
MOST_CORNERS = 10_000
"""Corners of the space whose settings are checked before anything is trained."""


@command(
    app,
    takes(
        Settings,
        Machine,
        argument="method",
        only=tuple(name for name in settings_of(Settings) | settings_of(Machine) if name not in NOT_OF_TRIALS),
        defaults={"out": Path("tune"), "validate": HELD_OUT},
    ),
)
def tune(
    given: Given,
    space: Annotated[
        str,
        typer.Option(
            "--space",
            metavar="SPACE",
            help="What to tune, with commas: ranges, as in lr=1e-3..0.3:log, and choices, as in optimizer=sgd|adam.",
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, max=100_000, help="How many combinations of values to try.")] = 60,
    select_on: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Whose held-out training images decide: first-tasks:3, other-dataset:NAME or whole-stream.",
        ),
    ] = "first-tasks:3",
    seeds: Annotated[str, typer.Option(help="Seeds of each trial, as in `cler run`.")] = "1",
    options: OwnSettings = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Search for good settings of a method, with or without a regularizer.

    Ten trials train side by side; after 2, 4, 8 tasks and so on, the worse half of all trials is dropped. The winning
    settings go to OUT/best.toml, for `cler run --config`; results trained from it say how they were tuned.
    OUT/study.png shows all trials. The same command resumes a study that was stopped.
    """
    from cler import data
    from cler.api import train_jobs
    from cler.config.reading import parse_options, parse_seeds
    from cler.report.progress import decoding_bar
    from cler.report.study_figure import draw_study
    from cler.runs.backends import find_backend
    from cler.runs.build import check_fit
    from cler.runs.machine import default_precision
    from cler.runs.pace import Pace
    from cler.runs.prepare import load_here
    from cler.tune.sampler import propose
    from cler.tune.selection import Selection
    from cler.tune.space import parse_space
    from cler.tune.study import BEST, Study, best, run

    machine = given.machine
    chosen = given.settings | parse_options(options or [], given.settings)
    for name, value in chosen.items():
        if isinstance(value, list):
            raise UsageError(f"takes one value; to tune it, write --space {name}={'|'.join(map(str, value))}", name)
    ranges = parse_space(space, chosen)
    chosen = {
        "dataset": Settings.dataset,
        "precision": default_precision(find_backend(machine).device(machine.device)),
    } | chosen
    if not chosen["validate"]:
        raise UsageError("must be above 0: the held-out images decide", "validate")
    selection, numbers = Selection.parse(select_on), parse_seeds(seeds)
    study = Study(chosen, ranges, selection, tuple(numbers), machine.out, imports=tuple(imports or ()))
    names = [each.name for each in ranges]
    corners = product(*(each.ends for each in ranges))
    first, *_ = [study.settings(dict(zip(names, each, strict=True))) for each in islice(corners, MOST_CORNERS)]
    study.rungs()
    with decoding_bar(errors, first.dataset) as progress:
        images = load_here(first, machine, progress, say)
    if images is not None:
        check_fit(first, images, numbers)
        study = replace(study, data=images.fingerprint() if data.has_path(first.dataset) else None)
    pace = Pace()
    with closing(find_backend(machine)) as backend:  # which stays for all trials
        ended, under_way = study.trials()
        if under_way or len(ended) < trials:
            backend.check()
        train = pace.timed()(lambda jobs: train_jobs(jobs, machine, errors, [pace], backend))
        ended = run(study, trials, train, propose, say)
    if str(pace):
        say(str(pace))
    try:
        draw_study(study, ended, machine.out / FIGURE)
    except UsageError as lack:  # of matplotlib, which the study itself does not need
        say(str(lack))
    if as_json:
        print(json.dumps({**study.about(), "trials": [asdict(trial) for trial in ended]}, indent=1))
    else:
        console.print(f"{best(ended)} ({selection})", soft_wrap=True)
        fresh = max(numbers) + 1
        final = ["cler", "run", "--config", str(machine.out / BEST), "--seeds", f"{fresh}..{fresh + 9}"]
        console.print(shlex.join(final), soft_wrap=True)
