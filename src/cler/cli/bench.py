"""`cler bench`: how long a step takes."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.table import Table

from cler.cli.app import AsJson, Device, app, console, say
from cler.errors import UsageError


@app.command()
def bench(
    method: Annotated[list[str] | None, typer.Option(help="Methods (default: all).", show_default=False)] = None,
    regularizer: Annotated[
        list[str] | None, typer.Option(help="Regularisers (default: all).", show_default=False)
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Runs side by side, as 1,5,10 (default: that; 1 on a CPU).")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps that are timed (default: 100; 5 on a CPU).")] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Filters of the network's first layer (default: the paper's).", show_default=False),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16 (default: as for `cler run`).")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network with torch.compile; takes minutes.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(help="Begin no measurement after this time (default: no limit).", show_default=False)
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Time a step of every method × regulariser on random images in the shape of CIFAR-100."""
    from cler.experiments import bench as benchmark
    from cler.experiments import execute as ex
    from cler.experiments.settings import make_settings, parse_seeds
    from cler.methods import METHODS
    from cler.regularizers import REGULARIZERS

    target = ex.find_device(device)
    on_gpu = target.type == "cuda"
    precision = precision or ex.default_precision(target)
    counts = parse_seeds(runs or ("1,5,10" if on_gpu else "1"), "--runs")
    pairs = [(m, r) for m in method or METHODS for r in regularizer or ("none", *REGULARIZERS)]
    for m, r in pairs:
        make_settings(method=m, regularizer=r, dataset="cifar100", precision=precision, width=width, threads=threads)
    if min(counts) < 1 or (steps is not None and steps < 1):
        raise UsageError("--runs and --steps must be larger than zero")
    table = Table(
        title=f"ms per step and run, {ex.environment(target)['hardware']}, {precision}", box=None, pad_edge=False
    )
    for heading in ("method", "regulariser", "runs", "ms", "GFLOP", "share of peak", "GB", "evaluation"):
        table.add_column(heading, justify="left" if heading in ("method", "regulariser") else "right")
    timings = []
    start = time.monotonic()
    with ex.threads(threads):
        steps = steps or (100 if on_gpu else 5)
        for timing in benchmark.measure(
            pairs,
            counts,
            device=target,
            precision=precision,
            steps=steps,
            width=width,
            compile=compile,
            message=say,
        ):
            timings.append(timing.to_dict())
            numbers = (
                f"{timing.milliseconds:.3f}",
                f"{timing.gigaflops:.1f}",
                f"{timing.share:.1%}",
                f"{timing.gigabytes:.1f}",
                f"{timing.evaluation:.1%}",
            )
            table.add_row(timing.method, timing.regularizer, str(timing.runs), *numbers)
            say(f"{timing.method} + {timing.regularizer}, {timing.runs} at once: {numbers[0]} ms")
            if seconds is not None and time.monotonic() - start > seconds and len(timings) < len(pairs) * len(counts):
                say(f"stopped after {seconds:g} s, with {len(timings)} of {len(pairs) * len(counts)} measurements")
                break
    if as_json:
        print(json.dumps({"environment": ex.environment(target), "precision": precision, "timings": timings}, indent=1))
    else:
        console.print(table)
