"""Training, results and comparisons from Python: what `import cler` offers, and what the commands call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from cler.config.cluster import Slurm
from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.config.reading import parse_seeds
from cler.config.registry import BACKENDS, DATASETS, METHODS, NETWORKS, STREAMS, TEACHERS, TRACKERS
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.data.images import ImageData
from cler.engine.events import Emit
from cler.errors import UsageError, one_line, unknown
from cler.methods.base import Method
from cler.metrics import SCENARIOS
from cler.nets.backbone import Backbone
from cler.nets.build import Network
from cler.regularizers.base import Entry, Regularizer
from cler.regularizers.base import register as register_regularizer
from cler.report.console import Terminal
from cler.report.progress import ProgressBars, decoding_bar
from cler.report.table import Table
from cler.runs.backends import Backend, find_backend
from cler.runs.compare import Comparison
from cler.runs.compare import compare as compare_results
from cler.runs.custom import name_class, name_dataset, name_network
from cler.runs.execute import execute
from cler.runs.jobs import Job
from cler.runs.machine import default_precision
from cler.runs.networks import load_network
from cler.runs.prepare import prepare
from cler.runs.results import Result, find_results
from cler.runs.series import Series
from cler.runs.usual_modes import usual_modes
from cler.streams.base import Stream
from cler.teachers.base import Teacher
from cler.tracking.base import Tracker


class Runs(Series):
    """Runs with the same settings, one for each seed; shown as a table, when printed and in a notebook."""

    @property
    def accuracy(self) -> dict[str, np.ndarray]:
        """Accuracy in percent for each seed, after each task, on each task: 'class_il' and 'task_il'.

        Each is an array (seeds, tasks, tasks), with NaN for tasks still to come. For Joint, which learns all tasks at
        once, it is (seeds, 1, tasks).
        """
        found = {name: np.stack([_padded(run.accuracy[name]) for run in self.results]) for name in SCENARIOS}
        return _OfScenarios(found)

    def metric(self, name: str, scenario: str = "class_il") -> np.ndarray:
        """A metric for each seed, in the scenario 'class_il' or 'task_il'; `cler.metrics.METRICS` lists the metrics."""
        if name not in self.metrics:
            raise unknown("metric", name, self.metrics)
        if scenario not in SCENARIOS:
            raise unknown("scenario", scenario, SCENARIOS)
        return np.array([run.metrics[name][scenario] for run in self.results])

    def network(self, seed: int) -> Backbone:
        """The trained network of a seed, on the CPU in evaluation mode; needs runs with `save_network=True`."""
        for run in self.results:
            if run.seed == seed:
                return load_network(run.path.parent)
        raise UsageError(f"must be one of these runs' seeds, {', '.join(map(str, self.seeds))}, not {seed}", "seed")

    def table(self) -> Table:
        """A table of means and deviations over the seeds."""
        return Table(compare_results(self.results))

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


class _OfScenarios(dict[str, np.ndarray]):
    def __missing__(self, name: str) -> np.ndarray:
        raise KeyError(str(unknown("scenario", name, self)))


def _padded(rows: Sequence[Sequence[float]]) -> np.ndarray:
    matrix = np.full((len(rows), max(map(len, rows))), np.nan)
    for number, row in enumerate(rows):
        matrix[number, : len(row)] = row
    return matrix


@usual_modes()
def train(
    method: str | type[Method] = "er-ace",
    regularizer: str | type[Regularizer] = "none",
    *,
    teacher: str | type[Teacher] | None = None,
    protocol: str | None = None,
    dataset: str | ImageData = "cifar10-sample",
    seeds: int | Sequence[int] | str = 1,
    size: int | None = None,
    fit: str | None = None,
    test_share: float | None = None,
    skip_broken: bool | None = None,
    stream: str | type[Stream] | None = None,
    tasks: int | str | Sequence[int] | None = None,
    buffer: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    weight: float | str | None = None,
    batch: int | None = None,
    replay_batch: int | None = None,
    repeats: int | None = None,
    optimizer: str | None = None,
    sgd_momentum: float | None = None,
    weight_decay: float | None = None,
    network: str | nn.Module | Callable[[int], nn.Module] | None = None,
    width: int | None = None,
    pretrained: bool | None = None,
    freeze: bool | None = None,
    augment: str | None = None,
    normalize: bool | None = None,
    class_order: int | str | None = None,
    classifier: str | None = None,
    validate: float | None = None,
    evaluate_every: int | None = None,
    precision: str | None = None,
    threads: int | None = None,
    compile: bool | None = None,
    on: str = "local",
    slurm: Slurm | Mapping[str, Any] | str | Path | None = None,
    give_up_after: float = 600.0,
    device: str = "auto",
    workers: int | None = None,
    at_once: int | None = None,
    images: str = "auto",
    data_dir: str | Path | None = None,
    out: str | Path = "runs",
    checkpoint_every: float = 60.0,
    graph: bool = True,
    save_network: bool = False,
    save_buffer_images: int = 0,
    track: str | None = None,
    until_task: int | None = None,
    restart: bool = False,
    redo: bool = False,
    callbacks: Sequence[Emit] = (),
    verbose: bool = True,
    **options: Any,
) -> Runs:
    """Train a method on one or more seeds, on a GPU if there is one, and return the runs.

        runs = cler.train("er-ace", "jigsaw", dataset="cifar100", buffer=500, seeds=10)

    Args:
        method: the name of a method (`cler methods` lists them), or a subclass of `cler.Method`.
        regularizer: 'none', a regularizer, or several, such as 'jigsaw+barlow-twins'; or a subclass of
            `cler.Regularizer`, which has a weight of 1, and the lowercase name of the class unless it has a `name`.
        teacher: 'none'; 'ema', a moving average of the network that answers in its place; 'mkd', a slow copy that also
            teaches it; or a subclass of `cler.Teacher`.
        protocol: 'online-10+10' or 'online-10+64', a named set of defaults; arguments that you give win.
        dataset: the name of a dataset; 'folder:PATH', 'domains:PATH', 'npz:PATH' or 'hf:NAME' for your own, read as
            `size`, `fit`, `test_share` and `skip_broken` say; or a `cler.data.ImageData`, as made by
            `cler.data.folder`, `arrays` and `torch`.
        seeds: how many seeds, counted from 0; or a list of seeds, or a string such as '0..9'.
        stream: the name of a stream, or a subclass of `cler.Stream`.
        network: a name; a function that takes the number of classes and returns a module, called once for each seed;
            or a module, copied as it is for each seed. The module has to come from `cler.backbone`.
        on: 'local', every GPU of this machine or its cores; 'slurm'; 'ray', a cluster that is started on this machine;
            or 'ray:HOST:PORT', a running one.
        slurm: partition, time, account and so on, as a dictionary, or a settings file with a table [slurm].
        restart: start stopped runs over; finished ones are kept.
        redo: train everything again, including finished runs.
        callbacks: functions that are called with every event of training (`cler.events`).
        verbose: say what will run, and show progress bars. Without it, results of other code or data are warned of.
        **options: settings that only this method, or another part of the run, has.

    `cler run --help` explains the other arguments; None means the usual value for the method and the dataset. Runs that
    are already in the folder `out` are not repeated, and stopped runs resume. Anything that another process cannot
    import (a class in a notebook, a lambda, images in memory) is trained in this process, on a CPU one run after
    another; one line says so.
    """
    arguments = dict(locals())  # by the names of settings, which a test holds them to
    machine = Machine(**{name: arguments[name] for name in settings_of(Machine)})
    machine.check_given(name for name, each in settings_of(Machine).items() if getattr(machine, name) != each.default)
    target = find_backend(machine).device(device)  # asked for before anything is deleted to be redone
    arguments |= {kind: name_class(kind, arguments[kind]) for kind in ("method", "regularizer", "teacher", "stream")}
    arguments |= {"dataset": name_dataset(dataset), "network": name_network(network)}
    arguments["precision"] = precision or default_precision(target)
    given = {name: value for name, value in arguments.items() if name in settings_of(Settings) and value is not None}
    settings = make_settings(**given, **options)
    _check_callbacks(callbacks)
    console = Terminal(stderr=True, quiet=not verbose)
    bar = partial(decoding_bar, console)
    plan = prepare(
        [settings],
        parse_seeds(seeds),
        machine,
        restart=restart,
        redo=redo,
        say=console.say,
        warn=console.say if verbose else partial(warnings.warn, stacklevel=4),
        bar=bar,
    )
    failures = plan.past_failures + train_jobs(plan.todo, machine, console, callbacks)
    runs, _ = find_results([job.result for job in plan.jobs if job.result.exists()])
    if failures:
        raise RuntimeError(one_line("; ".join(failures)))
    if until_task is not None:
        runs = [cut for run in runs if (cut := run.until(until_task))]
    finished = [run for run in runs if run.complete and run.failure is None]
    if not finished:
        raise RuntimeError("no run has finished here: another process is doing them, or they were stopped")
    return Runs(settings.to_dict(), tuple(sorted(finished, key=lambda run: run.seed)))


def _check_callbacks(callbacks: Any) -> None:
    """Refuse what could not be called once training has begun."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise UsageError(f"must be a list of functions that take an event, as [print], not {callbacks!r}", "callbacks")


def train_jobs(
    jobs: Sequence[Job],
    machine: Machine,
    console: Terminal,
    callbacks: Sequence[Emit] = (),
    backend: Backend | None = None,
) -> list[str]:
    """Train the jobs, as `execute` does, showing progress bars; returns a line for each run that failed."""
    if not jobs:
        return []
    with ProgressBars(console, len(jobs)) as bars:
        execute(jobs, machine, callbacks=[bars, *callbacks], backend=backend)
    return bars.failures


T = TypeVar("T")
_REGISTER: Mapping[type, Callable[[Any], Any]] = {
    Method: METHODS.add, Regularizer: register_regularizer, Teacher: TEACHERS.add, Stream: STREAMS.add,
    Tracker: TRACKERS.add, Backend: BACKENDS.add,
}  # fmt: skip
"""How subclasses of each class are registered."""


def register(thing: T) -> T:
    """Register your own method, regularizer, teacher, stream, network, dataset, tracker or backend under its name.

    Takes a subclass of `cler.Method`, `cler.Regularizer`, `cler.Teacher`, `cler.Stream`,
    `cler.tracking.Tracker` or `cler.runs.backends.Backend` (also as a decorator), a `cler.nets.Network`, or an object
    with the attributes of `cler.data.images.Dataset`. A regularizer then has a weight of 1; a
    `cler.regularizers.Entry` gives it another. Worker processes know it too if they can import it.
    """
    given: Any = thing
    if isinstance(given, type):
        for kind, add in _REGISTER.items():
            if issubclass(given, kind):
                add(given)
                return thing
        raise UsageError(
            f"the class {given.__qualname__} cannot be registered: it must be a method, regularizer, teacher, stream, "
            "tracker or backend; of a network, register a cler.nets.Network, of a dataset an object"
        )
    if isinstance(thing, Entry):
        return register_regularizer(thing)
    if isinstance(thing, Network):
        return NETWORKS.add(thing)
    if callable(getattr(thing, "load", None)) and isinstance(getattr(thing, "name", None), str):
        return DATASETS.add(thing)
    raise UsageError(
        f"{thing!r} cannot be registered: it is not a method, regularizer, teacher, stream, network, "
        "dataset, tracker or backend"
    )


def results(*folders: str | Path) -> Table:
    """The finished runs in folders and their subfolders (default: `runs`), one row for each set of settings."""
    found, complaints = find_results(folders or ["runs"])
    table = _table(found, complaints)
    if not table:
        nothing = "there is no complete run in " + ", ".join(map(str, folders or ["runs"]))
        raise UsageError("; ".join([nothing, *table.comparison.complaints]))
    return table


def compare(*runs: Series, against: Series | str | None = None) -> Table:
    """Compare runs in a table; rows with a regularizer show its gain over the method without it, and a p-value.

    With `against`, some of the runs or the parts that they have, as in 'er-ace+jigsaw', all others show their gain over
    those.
    """
    if not runs or not all(isinstance(one, Series) for one in runs):
        raise UsageError(
            "give the runs to compare, each as cler.train gives them: cler.compare(alone, regularized), or "
            "cler.compare(*runs) for a list; cler.results(FOLDER) is the table of all runs in a folder"
        )
    if isinstance(against, Series):
        runs = (*runs, against)
    return _table([result for one in runs for result in one.results], against=against)


def _table(found: Iterable[Result], complaints: Sequence[str] = (), against: Series | str | None = None) -> Table:
    """Results as a table whose rows are `Runs`."""
    comparison = compare_results(found, against)
    rows = [Runs(row.settings, row.results, row.twin, row.gain) for row in comparison.groups]
    return Table(Comparison(tuple(rows), (*complaints, *comparison.complaints)))
