"""`cler run` and `cler demo`: train."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cler.cli.app import (
    PAPER,
    AsJson,
    DataDir,
    Device,
    Workers,
    app,
    console,
    say,
    show,
    show_comparison,
    train_with_progress,
)
from cler.errors import UsageError


@app.command()
def run(
    method: Annotated[
        str | None, typer.Argument(help="A method; `cler methods` lists them.", show_default="er-ace")
    ] = None,
    regularizer: Annotated[
        str | None, typer.Option(help="A regularizer; `cler methods` lists them.", show_default="none")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="An image set; `cler data list` lists them.", show_default="cifar10-sample")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Tasks that the classes are split into.", show_default=PAPER)
    ] = None,
    buffer: Annotated[int | None, typer.Option(help="Images that the memory holds.", show_default=PAPER)] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, as 0..9 or 0,3,5.", show_default="0")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default=PAPER)] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the regularizer's loss (λ_r).", show_default=PAPER)
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a batch of the stream.", show_default="10")] = None,
    replay_batch: Annotated[int | None, typer.Option(help="Images in a replay batch.", show_default="10")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over each task; 1 is online.", show_default="1")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw.", show_default="sgd")] = None,
    width: Annotated[int | None, typer.Option(help="Filters of ResNet-18's first layer.", show_default=PAPER)] = None,
    class_order: Annotated[
        int | None, typer.Option(help="Seed of a permutation of the classes (default: their natural order).")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16 (default: bf16 on a GPU, fp32 on a CPU).")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of each run.", show_default="1")] = None,
    compile: Annotated[
        bool | None,
        typer.Option("--compile", help="Compile the network with torch.compile; takes minutes.", show_default=False),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting that only this method has; can be repeated."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of the settings above; the command line wins.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side on a GPU (default: as many as fit).")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder that the results go to.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on with runs that were stopped, or begin them anew.")
    ] = True,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between checkpoints; 0: only after each task.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Train a method, with or without a regularizer, on one or more seeds.

    Options that are not given are the paper's for that method and image set. A run that is already in the output
    folder is not done again; one that was stopped, in whatever way, goes on from its last checkpoint and ends as if it
    had never been.
    """
    given = {k: v for k, v in locals().items() if k in _SETTING_NAMES and v is not None}
    from cler import data
    from cler.config.settings import Settings, make_settings
    from cler.config.written import parse_options, parse_seeds, read_config
    from cler.methods import find_method
    from cler.runs.build import check_fit
    from cler.runs.jobs import make_jobs, past_failures, remaining, restart, tidy
    from cler.runs.machine import default_precision, find_device

    chosen = (read_config(config, method) if config else {}) | given
    wanted = parse_seeds(chosen.pop("seeds", "0"))
    chosen |= parse_options(chosen.get("method"), options or [])
    for name in ("buffer", "replay_batch"):
        if chosen.get(name) and not find_method(chosen.get("method", Settings.method)).replays:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} {chosen[name]} has no effect: {chosen['method']} has no memory")
    if not (math.isfinite(checkpoint_every) and checkpoint_every >= 0):
        raise UsageError(f"--checkpoint-every must be a number from 0, not {checkpoint_every}")
    target = find_device(device)
    chosen.setdefault("precision", default_precision(target))
    settings = make_settings(**chosen)
    check_fit(settings, data.load(settings.dataset, data_dir))
    jobs = make_jobs(settings, wanted, out, checkpoint_every=checkpoint_every)
    todo = remaining(jobs)
    ended = [job for job in jobs if job not in todo]
    tidy(ended)
    failures = past_failures(ended)
    if ended:
        say(f"{len(ended)} of {len(jobs)} runs are already in {out}")
    for line in failures:
        say(line)
    if not resume:
        restart(todo)
    failures += train_with_progress(todo, target, data_dir, workers, at_once)
    if len(failures) < len(jobs):
        show_comparison([job.folder for job in jobs], as_json)
    if failures:
        raise typer.Exit(1)


_SETTING_NAMES = (
    "method", "regularizer", "dataset", "tasks", "buffer", "seeds", "lr", "weight", "batch", "replay_batch", "epochs",
    "optimizer", "width", "class_order", "precision", "threads", "compile",
)  # fmt: skip


@app.command()
def demo(
    seeds: Annotated[str, typer.Option(help="Seeds, as 0..9 or 0,3,5.")] = "0..3",
    device: Device = "auto",
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Folder that results and figure go to.")] = Path("demo"),
) -> None:
    """See what forgetting is, what replay does about it, and what CLER adds, in a few minutes on two cores."""
    from cler.config.written import parse_seeds
    from cler.report.figures import accuracy_after_each_task
    from cler.report.terminal import comparison_table, one_sentence
    from cler.runs.compare import compare as compare_runs
    from cler.runs.demo import demo_jobs
    from cler.runs.jobs import remaining
    from cler.runs.machine import find_device
    from cler.runs.results import find_results

    target = find_device(device)
    jobs = demo_jobs(parse_seeds(seeds), out, target)
    console.print(
        "Ten classes arrive two at a time, each image is seen once, and the question at the end is about all ten. "
        "Finetune only learns; ER-ACE also replays 200 remembered images; CLER adds a puzzle: which of the 24 orders "
        "have an image's quarters been put in?\n"
    )
    failures = train_with_progress(remaining(jobs), target, None, workers)
    groups = compare_runs(find_results([job.folder for job in jobs])[0]).groups
    figure = out / "accuracy.png"
    accuracy_after_each_task(groups, figure)
    show(comparison_table(groups))
    console.print(f"\n{one_sentence(groups)}\n", highlight=False)
    console.print(f"Accuracy after each task: {escape(str(figure))}", highlight=False, soft_wrap=True)
    console.print("A few short runs leave much to chance: the README has ten seeds of this, and of Seq. CIFAR-100.")
    if failures:
        raise typer.Exit(1)
