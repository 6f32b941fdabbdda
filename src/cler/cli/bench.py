"""`cler bench`: how long a step takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cler.cli.app import AsJson, Imports, app, say, show
from cler.cli.options import Given, command, takes
from cler.config.machine import Machine
from cler.config.settings import Settings
from cler.errors import UsageError

if TYPE_CHECKING:
    from cler.runs.bench import Timing


@command(
    app,
    takes(
        Settings,
        Machine,
        only=("method", "regularizer", "teacher", "protocol", "width", "precision", "threads", "compile", "device"),
        defaults={"method": None, "regularizer": None, "width": None, "precision": None},
    ),
)
def bench(
    given: Given,
    runs: Annotated[str | None, typer.Option(help="How many runs side by side (default: 1,5,10; on a CPU, 1).")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="How many steps to time (default: 100; on a CPU, 5).")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Start no new measurement after this time (default: no limit).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep measurements in this JSON file, and skip those already in it.", show_default=False),
    ] = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Time a step of every method × regularizer, or of those given, on random images in the shape of CIFAR-100.

    GFLOP an image is the arithmetic for one image of the stream: that of a step with its replay, divided by its batch.
    """
    from cler.config.compatibility import fits
    from cler.config.making import make_settings
    from cler.config.reading import parse_counts
    from cler.files import write_json
    from cler.methods import METHODS
    from cler.regularizers import REGULARIZERS
    from cler.runs import bench as benchmark
    from cler.runs import machine
    from cler.runs.folders import check_writable

    target = machine.find_device(given.machine.device)
    on_gpu = target.type == "cuda"
    width, threads = given.settings["width"], given.settings.get("threads", Settings.threads)
    compile = given.settings.get("compile", Settings.compile)
    precision = given.settings["precision"] or machine.default_precision(target)
    method = given.several("method") if given.settings["method"] else [*METHODS]
    regularizer = given.several("regularizer") if given.settings["regularizer"] else ["none", *REGULARIZERS]
    counts = parse_counts(runs or ("1,5,10" if on_gpu else "1"), "runs")
    others = given.several("teacher") or ["none"], given.several("protocol") or [None]
    combinations = [benchmark.Combination(*each) for each in dict.fromkeys(product(method, regularizer, *others))]
    if not given.settings["method"]:
        combinations = [each for each in combinations if fits(each.method, each.teacher)]
    for each in combinations:
        make_settings(**each._asdict(), dataset="cifar100", precision=precision, width=width, threads=threads)
    if seconds is not None and not seconds > 0:
        raise UsageError(f"must be above zero, not {seconds}", "seconds")
    about = {"environment": machine.environment(target), "precision": precision, "width": width, "compile": compile}
    if not on_gpu:
        about["threads"] = threads
    timings = benchmark.read_timings(out, about) if out else []
    if out:
        check_writable(out.parent)
    wanted = set(product(combinations, counts))
    start = time.monotonic()
    measured = benchmark.measure(
        combinations,
        counts,
        device=target,
        precision=precision,
        steps=steps or (100 if on_gpu else 5),
        width=width,
        compile=compile,
        known=timings,
        message=say,
    )
    stopped = False
    with machine.threads(threads):
        try:
            for timing in measured:
                timings.append(timing)
                if out:
                    write_json(out, as_values(about, timings))
                say(f"{timing.combination}, {timing.runs} at once: {timing.milliseconds:.3f} ms")
                missing = wanted - {(each.combination, each.runs) for each in timings}
                if seconds is not None and time.monotonic() - start > seconds and missing:
                    say(f"stopped after {seconds:g} s, with {len(wanted) - len(missing)} of {len(wanted)} measurements")
                    break
        except KeyboardInterrupt:
            stopped = True
            say("stopped; these are the measurements so far")
    if as_json:
        print(json.dumps(as_values(about, timings), indent=1))
    else:
        hardware = machine.environment(target)["hardware"]
        show(as_table(f"ms per step and run, {hardware}, {precision}", timings, on_gpu))
    if stopped:
        raise SystemExit(130)


def as_values(about: dict[str, Any], timings: Sequence[Timing]) -> dict[str, Any]:
    """The measurements as plain values, for the file and for --json."""
    return {**about, "timings": [timing.to_dict() for timing in timings]}


def as_table(title: str, timings: Sequence[Timing], on_gpu: bool) -> Table:
    """The measurements as a table for the terminal.

    On a CPU without the share of the peak, as its convolutions take less arithmetic than is counted, and the memory.
    """
    table = Table(title=title, box=None, pad_edge=False)
    table.add_column("timed", no_wrap=True)
    cells: dict[str, Callable[[Timing], str]] = {
        "runs": lambda timing: str(timing.runs),
        "ms": lambda timing: f"{timing.milliseconds:.3f}",
        "GFLOP\nan image": lambda timing: f"{timing.gigaflops_per_image:.2f}",
        "evalu-\nation": lambda timing: f"{timing.evaluation:.1%}",
    }
    if on_gpu:
        cells |= {
            "share\nof peak": lambda timing: f"{timing.share:.1%}",
            "GB": lambda timing: f"{timing.gigabytes:.1f}",
        }
    for heading in cells:
        table.add_column(heading, justify="right")
    for timing in timings:
        table.add_row(str(timing.combination), *(cell(timing) for cell in cells.values()))
    return table
