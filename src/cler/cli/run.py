"""`cler run` and `cler demo`: train."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cler.cli.app import (
    HERE,
    AsJson,
    Imports,
    OwnSettings,
    Redo,
    Restart,
    app,
    console,
    errors,
    read_comparison,
    say,
    show,
    show_comparison,
)
from cler.cli.options import Given, command, takes
from cler.config.machine import Machine
from cler.config.registry import METHODS, is_own
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.errors import UsageError

Seeds = Annotated[
    str | None, typer.Option(help="How many seeds (10 means 0 to 9), or which: 0..9 or 3,7.", show_default="1")
]


@command(app, takes(Settings, Machine, argument="method"))
def run(
    given: Given,
    seeds: Seeds = None,
    seed: Annotated[str | None, typer.Option(metavar="INTEGER", help="A single seed, by its number.")] = None,
    options: OwnSettings = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these settings; the command line wins.")
    ] = None,
    imports: Imports = None,
    restart: Restart = False,
    redo: Redo = False,
    as_json: AsJson = False,
) -> None:
    """Train a method, with or without a regularizer, on one or more seeds.

    Settings that you leave out come from the dataset, and from the paper for that method; the defaults below apply
    where neither has one. Commas make a grid: --lr 0.01,0.03 --weight 0.5,1 trains all four combinations. A run that is
    already in the output folder is not repeated. A run that was stopped, in whatever way, resumes from its last
    checkpoint and ends with the same numbers.
    """
    from cler.api import train_jobs
    from cler.config.making import grid
    from cler.config.reading import parse_options, read_config
    from cler.report.progress import decoding_bar
    from cler.runs.backends import find_backend
    from cler.runs.jobs import remaining
    from cler.runs.machine import default_precision
    from cler.runs.pace import Pace
    from cler.runs.prepare import prepare

    filed = read_config(config, given.settings) if config else {}
    machine = given.machine_with({name: filed.pop(name) for name in settings_of(Machine) if name in filed})
    chosen = filed | given.settings
    wanted = chosen_seeds(seeds, seed, chosen, config)
    tuned = chosen.pop("tuned", None)
    chosen |= parse_options(options or [], chosen)
    stamp = partial(_stamp, tuned, filed)
    device = find_backend(machine).device(machine.device)  # asked for before anything is deleted to be redone
    chosen.setdefault("precision", default_precision(device))
    bar = partial(decoding_bar, errors)
    combinations = grid(chosen)
    if tuned and tuned["select_on"].startswith("first-tasks") and any(map(stamp, combinations)):
        _check_tasks_are_those_of_tuning(given.settings, filed, config)
    plan = prepare(combinations, wanted, machine, restart=restart, redo=redo, tuned=stamp, say=say, bar=bar)
    pace = Pace()
    with pace.timed(), _advising_to_check([job.settings.method for job in plan.todo], imports or ()):
        failures = plan.past_failures + train_jobs(plan.todo, machine, errors, [pace])
    if str(pace):
        say(str(pace))
    if len(failures) + len(remaining(plan.jobs)) < len(plan.jobs):
        show_comparison(read_comparison([job.folder for job in plan.jobs], machine.until_task), as_json)
        if plan.todo:
            say(f"runs are in {machine.out}; `cler report {shlex.quote(str(machine.out))}` makes a page of them")
    if failures:
        raise typer.Exit(1)


@contextmanager
def _advising_to_check(methods: Iterable[str], imports: Iterable[str]) -> Iterator[None]:
    """Inside, an error has a last line that says how to test the methods that are a user's own."""
    try:
        yield
    except Exception as error:
        files = [word for each in imports for word in ("--import", each)]
        for name in dict.fromkeys(methods):
            if is_own(METHODS[name]):
                error.add_note(f"`{shlex.join(['cler', 'check', name, *files])}` may say more")
        raise


def _stamp(tuned: dict[str, Any] | None, filed: dict[str, Any], one: Settings) -> dict[str, Any] | None:
    """How settings were tuned, if they have the tuned values of the file and no others from the command line."""
    values = one.to_dict()
    as_tuned = tuned and all(name in filed and filed[name] == values.get(name) for name in tuned["names"])
    return tuned if as_tuned else None


def _check_tasks_are_those_of_tuning(given: dict[str, Any], filed: dict[str, Any], config: Path | None) -> None:
    """Refuse other tasks: nobody could say which of them the tuning of the file has seen."""
    for name in ("protocol", "stream", "tasks", "class_order"):
        if "dataset" not in given and name in given and given[name] != filed.get(name):
            told = f"decides which tasks the tuning of {config} has seen: leave it out, or tune with it"
            raise UsageError(told, name)


def chosen_seeds(seeds: str | None, seed: str | None, chosen: dict[str, Any], config: Path | None) -> list[int]:
    """The seeds that the command line asks for, else the settings file, else the first."""
    from cler.config.reading import parse_seeds

    filed, filed_one = chosen.pop("seeds", None), chosen.pop("seed", None)
    if seeds is not None and seed is not None:
        raise UsageError("and --seed are given: give one of them", "seeds")
    if seeds is None and seed is None and filed is not None and filed_one is not None:
        raise UsageError(f"{config} has both seeds and seed: keep one of them")
    if seeds is None and seed is None:
        seeds, seed = filed, filed_one
    if seed is not None:
        if not str(seed).isdecimal():
            raise UsageError(f"must be one whole number from 0, not '{seed}'; --seeds takes several", "seed")
        return parse_seeds(f"{seed}..{seed}", "seed")
    return parse_seeds(seeds if seeds is not None else 1)


@command(app, takes(Machine, only=("device", "workers", "out"), defaults={"out": Path("demo")}, helps=HERE))
def demo(
    given: Given,
    seeds: Annotated[str, typer.Option(help="How many seeds (4 means 0 to 3), or which: 0..3 or 3,7.")] = "4",
) -> None:
    """See what forgetting is, what replay does about it, and what CLER and a moving average add, in a few minutes."""
    from cler.api import train_jobs
    from cler.config.reading import parse_seeds
    from cler.report.figures import accuracy_after_each_task
    from cler.report.terminal import comparison_table, one_sentence
    from cler.runs.demo import demo_jobs
    from cler.runs.jobs import outdated, past_failures, to_do_and_ended
    from cler.runs.machine import find_device

    out = given.machine.out
    jobs = demo_jobs(parse_seeds(seeds), out, find_device(given.machine.device))
    console.print(
        "Ten classes arrive two at a time, each image is seen once, and the test at the end is on all ten. "
        "Finetune only learns; ER-ACE also replays 200 remembered images; CLER adds a puzzle: which of 24 orders "
        "were an image's quarters put in? With EMA, a moving average of the network answers in its place.\n"
    )
    todo, ended = to_do_and_ended(jobs)
    failures = past_failures(ended)
    for line in [*outdated(ended, lambda one: None, remedy="another output folder"), *failures]:
        say(line)
    failures += train_jobs(todo, given.machine, errors)
    groups = read_comparison([job.folder for job in jobs]).groups
    show(comparison_table(groups))
    console.print(f"\n{one_sentence(groups)}\n")
    figure = out / "accuracy.png"
    try:
        accuracy_after_each_task(groups, figure)
        console.print(f"Accuracy after each task: {figure}", soft_wrap=True)
    except UsageError as lack:  # of matplotlib, which the table does not need
        say(str(lack))
    console.print("A few short runs leave much to chance: docs/getting-started.md has a study of ten seeds.")
    if failures:
        raise typer.Exit(1)
