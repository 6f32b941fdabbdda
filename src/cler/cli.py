"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cler import __version__
from cler.errors import UsageError

app = typer.Typer(
    help="Online continual learning with CLER, equivariant regularisation, and everything it is compared with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The image sets: what there is, fetching them, checking them.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = Console()
errors = Console(stderr=True)

DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="CLER_DATA", help="Folder of the image sets (default: ~/.cache/cler/data).", show_default=False
    ),
]
PAPER = "the paper's, for the image set"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes on a CPU (default: one per core, or per --threads cores).", show_default=False),
]


@app.command()
def run(
    method: Annotated[
        str | None, typer.Argument(help="A method; `cler methods` lists them.", show_default="er-ace")
    ] = None,
    regularizer: Annotated[
        str | None, typer.Option(help="A regulariser; `cler methods` lists them.", show_default="none")
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
        float | None, typer.Option(help="Weight of the regulariser's loss (λ_r).", show_default=PAPER)
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
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting that only this method has; can be repeated."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of the settings above; the command line wins.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    at_once: Annotated[int | None, typer.Option(help="Runs side by side on a GPU (default: as many as fit).")] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder that the results go to.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train a method, with or without a regulariser, on one or more seeds.

    Options that are not given are the paper's for that method and image set. A run that is already in the output
    folder is not done again.
    """
    given = {k: v for k, v in locals().items() if k in _SETTING_NAMES and v is not None}
    from cler import data
    from cler.experiments import execute as ex
    from cler.experiments.settings import make_settings, parse_options, parse_seeds, read_config

    chosen = (read_config(config, method) if config else {}) | given
    wanted = parse_seeds(chosen.pop("seeds", "0"))
    chosen |= parse_options(chosen.get("method"), options or [])
    for name, value in (("workers", workers), ("at-once", at_once)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be larger than zero, not {value}")
    target = ex.find_device(device)
    chosen.setdefault("precision", ex.default_precision(target))
    settings = make_settings(**chosen)
    ex.check_fit(settings, data.load(settings.dataset, data_dir))
    jobs = ex.make_jobs(settings, wanted, out)
    todo = ex.remaining(jobs)
    failures = ex.past_failures([job for job in jobs if job not in todo])
    if len(todo) < len(jobs):
        errors.print(f"{len(jobs) - len(todo)} of {len(jobs)} runs are already in {escape(str(out))}", highlight=False)
    for line in failures:
        errors.print(escape(line), highlight=False, soft_wrap=True)
    failures += train_with_progress(todo, target, data_dir, workers, at_once)
    if len(failures) < len(jobs):
        _show([job.folder for job in jobs], as_json)
    if failures:
        raise typer.Exit(1)


_SETTING_NAMES = (
    "method", "regularizer", "dataset", "tasks", "buffer", "seeds", "lr", "weight", "batch", "replay_batch", "epochs",
    "optimizer", "width", "class_order", "precision", "threads",
)  # fmt: skip


def train_with_progress(
    jobs: Any, device: Any, data_dir: Path | None, workers: int | None = None, at_once: int | None = None
) -> list[str]:
    """Do the jobs under a progress bar; gives back what went wrong, a line for each run that failed."""
    from cler.experiments.execute import execute
    from cler.report.progress import ProgressBars

    if not jobs:
        return []
    with ProgressBars(errors, len(jobs)) as bars:
        execute(jobs, device=device, data_dir=data_dir, workers=workers, at_once=at_once, watcher=bars)
    return bars.failures


def _show(folders: list[Path], as_json: bool, markdown: bool = False) -> None:
    """The comparison of the runs in these folders."""
    from cler.experiments.compare import compare as compare_runs
    from cler.experiments.results import find_results
    from cler.report.tables import comparison_table, markdown_table

    results, complaints = find_results(folders)
    comparison = compare_runs(results)
    for line in [*complaints, *comparison.complaints]:
        errors.print(escape(line), highlight=False, soft_wrap=True)
    if not comparison.groups:
        raise UsageError("there is no complete run in " + ", ".join(map(str, folders)))
    if as_json:
        print(json.dumps(comparison.to_json(), indent=1))
    elif markdown:
        print(markdown_table(comparison.groups))
    else:
        console.print(comparison_table(comparison.groups))


@app.command()
def demo(
    seeds: Annotated[str, typer.Option(help="Seeds, as 0..9 or 0,3,5.")] = "0..3",
    device: Device = "auto",
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Folder that results and figure go to.")] = Path("demo"),
) -> None:
    """See what forgetting is, what replay does about it, and what CLER adds, in a few minutes on two cores."""
    from cler.experiments import execute as ex
    from cler.experiments.compare import compare as compare_runs
    from cler.experiments.demo import demo_jobs
    from cler.experiments.results import find_results
    from cler.experiments.settings import parse_seeds
    from cler.report.figures import accuracy_after_each_task
    from cler.report.tables import comparison_table, one_sentence

    target = ex.find_device(device)
    jobs = demo_jobs(parse_seeds(seeds), out, target)
    console.print(
        "Ten classes arrive two at a time, each image is seen once, and the question at the end is about all ten. "
        "Finetune only learns; ER-ACE also replays 200 remembered images; CLER adds a puzzle: which of the 24 orders "
        "have an image's quarters been put in?\n"
    )
    failures = train_with_progress(ex.remaining(jobs), target, None, workers)
    groups = compare_runs(find_results([job.folder for job in jobs])[0]).groups
    figure = out / "accuracy.png"
    accuracy_after_each_task(groups, figure)
    console.print(comparison_table(groups))
    console.print(f"\n{one_sentence(groups)}\n", highlight=False)
    console.print(f"Accuracy after each task: {escape(str(figure))}", highlight=False, soft_wrap=True)
    console.print("A few short runs leave much to chance: the README has ten seeds of this, and of Seq. CIFAR-100.")
    if failures:
        raise typer.Exit(1)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results; sub-folders are searched.")],
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Compare finished runs: mean ± std over seeds, and each regulariser's gain over the method without it."""
    if as_json and markdown:
        raise UsageError("--json and --markdown: choose one")
    _show(folders, as_json, markdown)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods and the regularisers that they can be combined with."""
    from cler.methods import METHODS
    from cler.regularizers import REGULARIZERS

    entries = {
        "methods": {name: method.summary for name, method in METHODS.items()},
        "regularizers": {"none": "the method alone"} | {name: r.summary for name, r in REGULARIZERS.items()},
    }
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    for kind, table in entries.items():
        console.print(_two_columns(kind.rstrip("s"), "what it does", table))
        console.print()
    console.print("Settings of single methods, for --set: " + "; ".join(_own_settings()), highlight=False)


@app.command()
def bench(
    method: Annotated[list[str] | None, typer.Option(help="Methods (default: all).", show_default=False)] = None,
    regularizer: Annotated[
        list[str] | None, typer.Option(help="Regularisers (default: all).", show_default=False)
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Runs side by side, as 1,5,10 (default: that; 1 on a CPU).")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps that are timed (default: 100; 5 on a CPU).")] = None,
    width: Annotated[int, typer.Option(help="Filters of ResNet-18's first layer.")] = 64,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16 (default: as for `cler run`).")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
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
    for heading in ("method", "regulariser", "runs", "ms", "GFLOP", "share of peak", "GB"):
        table.add_column(heading, justify="left" if heading in ("method", "regulariser") else "right")
    timings = []
    with ex.threads(threads):
        for timing in benchmark.measure(
            pairs, counts, device=target, precision=precision, steps=steps or (100 if on_gpu else 5), width=width
        ):
            timings.append(timing.to_dict())
            numbers = (f"{timing.milliseconds:.3f}", f"{timing.gigaflops:.1f}", f"{timing.share:.1%}")
            table.add_row(timing.method, timing.regularizer, str(timing.runs), *numbers, f"{timing.gigabytes:.1f}")
            errors.print(
                f"{timing.method} + {timing.regularizer}, {timing.runs} at once: {numbers[0]} ms", highlight=False
            )
    if as_json:
        print(json.dumps({"environment": ex.environment(target), "precision": precision, "timings": timings}, indent=1))
    else:
        console.print(table)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the image sets and whether they are here."""
    from cler import data

    states = {name: data.check(name, data_dir) for name in data.names()}
    if as_json:
        print(json.dumps({n: {"state": s.state, "reason": s.reason, "path": str(s.path)} for n, s in states.items()}))
        return
    table = Table("image set", "state", "what it is", box=None, pad_edge=False)
    for name, status in states.items():
        table.add_row(name, status.state, data.describe(name))
    console.print(table)


@data_app.command("check")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(help="Image sets (default: all).", show_default=False)] = None,
    data_dir: DataDir = None,
) -> None:
    """Check that image sets are complete and unaltered."""
    from cler import data

    damaged = False
    for name in names or data.names():
        status = data.check(name, data_dir)
        console.print(f"{name}: {status.state} - {escape(status.reason)}", highlight=False, soft_wrap=True)
        damaged |= status.state == "damaged" or (bool(names) and status.state == "missing")
    if damaged:
        raise typer.Exit(1)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="An image set; `cler data list` lists them.")], data_dir: DataDir = None
) -> None:
    """Download an image set, check it and unpack it; goes on where a broken download stopped."""
    from cler import data
    from cler.report.progress import download_bar

    with download_bar(errors, name) as advance:
        status = data.get(name, data_dir, advance)
    console.print(f"{name}: {status.state} - {escape(status.reason)}", highlight=False, soft_wrap=True)


def _own_settings() -> Iterator[str]:
    from cler.experiments.settings import option_kinds
    from cler.methods import METHODS

    for name in METHODS:
        if kinds := option_kinds(name):
            yield f"{name}: {', '.join(kinds)}"


def _two_columns(left: str, right: str, rows: dict[str, str]) -> Table:
    table = Table(left, right, box=None, pad_edge=False)
    for row in rows.items():
        table.add_row(*row)
    return table


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"cler {__version__}")
        raise typer.Exit


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """A user's mistake is one line and exit code 2, an interrupt a line and 130; anything else is a bug."""
    try:
        yield
    except UsageError as mistake:
        _stop(str(mistake), 2)
    except KeyboardInterrupt:
        _stop("stopped; finished runs are kept, and the same command goes on from there", 130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own errors have it, whichever click they come from
            raise
        if not (message := error.format_message()):
            raise SystemExit(2) from None  # the help has been printed
        _stop(message, 2)


def _stop(line: str, code: int) -> None:
    errors.print("cler: " + " ".join(line.split()), highlight=False, markup=False, soft_wrap=True)
    raise SystemExit(code)


def main() -> None:
    """The `cler` command."""
    with _mistakes_in_one_line():
        code = app(standalone_mode=False)
        if code == 130:  # how typer tells of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
