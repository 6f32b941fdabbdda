"""How long a step takes, of one run and of several side by side, on random images of the real shape."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from cler.config.making import make_settings
from cler.config.settings import Settings
from cler.data.images import ImageData
from cler.engine import Run
from cler.engine.bundles import begin_second_task, release_memory
from cler.engine.run import matmul_precision
from cler.engine.steps import WARM_UP, lack_of_memory, make_stepper, synchronize
from cler.errors import UsageError
from cler.files import read_json
from cler.methods import find_method
from cler.nets.kernels import without_our_kernels
from cler.runs.build import build_run
from cler.streams.tasks import sizes_of

TASKS = 10
"""Tasks into which the paper cuts CIFAR-100."""
CLASSES, TRAINING_IMAGES, TEST_IMAGES = 100, 50_000, 10_000
"""How many CIFAR-100 has; the paper's other dataset has as many classes and training images."""
MOST_UNTIMED = 12
"""Steps of a task, before and after those that are timed."""


class Combination(NamedTuple):
    """What is timed together."""

    method: str
    regularizer: str = "none"
    teacher: str = "none"
    protocol: str | None = None

    def __str__(self) -> str:
        name = " + ".join([self.method, *(part for part in (self.regularizer, self.teacher) if part != "none")])
        return f"{name}, {self.protocol}" if self.protocol else name


@dataclass(frozen=True)
class Timing:
    """What one measurement gave."""

    combination: Combination
    runs: int
    milliseconds: float
    """Milliseconds per step of the stream and run."""
    gigaflops: float
    """Arithmetic of one step of one run."""
    batch: int
    """Images of the stream in a step."""
    share: float
    """Share of the arithmetic rate that the device reaches on a large matrix product in this precision."""
    gigabytes: float
    """Memory of all the runs together, at its highest; 0 on a CPU."""
    evaluation: float
    """Share of a whole run's time on Seq. CIFAR-100 that goes into evaluation after each task, if all steps take as
    long."""

    @property
    def gigaflops_per_image(self) -> float:
        """Arithmetic for one image of the stream."""
        return self.gigaflops / self.batch

    def to_dict(self) -> dict[str, Any]:
        """The measurement in plain values."""
        values = asdict(self)
        return {**values.pop("combination")._asdict(), **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Timing:
        """The measurement that plain values stand for."""
        names = ("milliseconds", "gigaflops", "share", "gigabytes", "evaluation")
        numbers: dict[str, Any] = {name: float(values[name]) for name in names}
        numbers |= {"runs": int(values["runs"]), "batch": int(values.get("batch", 10))}
        parts = {name: str(values[name]) for name in Combination._fields if values.get(name) is not None}
        return cls(Combination(**parts), **numbers)


def read_timings(path: Path, about: dict[str, Any]) -> list[Timing]:
    """The measurements in a file, none if it is not there; refuses those of another device, precision or kind."""
    if not path.exists():
        return []
    content = read_json(path)
    try:
        timings = [Timing.from_dict(timing) for timing in content.pop("timings")]
        same = _kind(content) == _kind(about)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{path} does not hold measurements of cler bench: choose another file") from None
    if not same:
        raise UsageError(f"{path} holds measurements of another device, precision or network: choose another file")
    return timings


def _kind(about: dict[str, Any]) -> dict[str, Any]:
    """What measurements in one file have to share: their conditions, but not versions of software."""
    return about | {"environment": about["environment"]["hardware"]}


def random_images(device: torch.device, steps: int, *, size: int = 32, batch: int = 10) -> ImageData:
    """Random pixels in the shape of CIFAR-100, or of another size, so many that `steps` can be timed in a task."""
    generator = torch.Generator().manual_seed(0)
    images = max(TASKS * batch * (steps + MOST_UNTIMED), 10 * CLASSES)
    pixels = torch.randint(256, (images, 3, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % CLASSES
    names = tuple(f"class {number}" for number in range(CLASSES))
    tested = torch.arange(TEST_IMAGES if device.type == "cuda" else 10 * CLASSES) % images
    data = ImageData("random", pixels, labels, pixels[tested], labels[tested], names, (0.5,) * 3, (0.25,) * 3)
    return data.to(device)


def measure(
    combinations: Sequence[Combination],
    counts: Sequence[int],
    *,
    device: torch.device,
    precision: str,
    steps: int = 100,
    width: int | None = None,
    compile: bool = False,
    known: Sequence[Timing] = (),
    message: Callable[[str], None] = print,
) -> Iterator[Timing]:
    """Time steps of the second task, where every method does all it does; the settings are the paper's or a protocol's.

    From one count to the next, in rising order, the runs are kept and others join them. What is known is skipped.
    """
    done = {(timing.combination, timing.runs) for timing in known}
    chosen = {
        each: make_settings(**each._asdict(), dataset="cifar100", precision=precision, width=width, compile=compile)
        for each in combinations
    }
    data = random_images(device, steps, batch=max((settings.batch for settings in chosen.values()), default=1))
    with matmul_precision(precision):
        peak = arithmetic_rate(device, precision)
        for combination, settings in chosen.items():
            missing = [count for count in sorted(counts) if (combination, count) not in done]
            if not missing:
                continue
            longer = replace(settings, epochs=len(missing))  # one for each
            flops = 0.0
            runs: list[Run] = []
            for count in missing:
                try:
                    joining = [build_run(longer, seed, data) for seed in range(len(runs), count)]
                    begin_second_task(joining)
                    runs += joining
                    milliseconds, gigabytes = time_steps(runs, steps, message)
                except RuntimeError as error:
                    if not lack_of_memory(error):
                        raise
                    message(f"{combination}: {count} at once need more memory than there is")
                    break
                flops = flops or flops_of_a_step(runs[0])
                share = flops / (milliseconds / 1000) / peak
                evaluation = evaluation_share(runs[0], milliseconds * steps_of_a_run(settings).total() / 1000)
                yield Timing(
                    combination, count, milliseconds, flops / 1e9, settings.batch, share, gigabytes, evaluation
                )
            runs = joining = []
            release_memory()


def time_steps(runs: Sequence[Run], steps: int, message: Callable[[str], None] = print) -> tuple[float, float]:
    """Milliseconds per step and run of runs that have begun a task, and the gigabytes in use at the most."""
    device = runs[0].device
    if device.type == "cuda":
        release_memory()
        torch.cuda.reset_peak_memory_stats(device)
    stepper = make_stepper(runs, message)
    stepper.prepare()
    while not all(run.method.settled for run in runs):
        stepper.step()
    for _ in range(WARM_UP + 2):
        stepper.step()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        stepper.step()
    synchronize(device)
    milliseconds = 1000 * (time.perf_counter() - start) / steps / len(runs)
    used = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    return milliseconds, used / 1e9


def steps_of_a_run(settings: Settings) -> Counter[str]:
    """How many steps of each phase a run has on one of the paper's datasets."""
    method = find_method(settings.method)
    sizes = sizes_of(1 if method.merged else settings.tasks, CLASSES)
    steps: Counter[str] = Counter()
    for task, size in enumerate(sizes):
        epoch = TRAINING_IMAGES * size // CLASSES // settings.batch
        steps.update(method.phases(settings.method_options, task, epoch=epoch, epochs=settings.epochs))
    return steps


def evaluation_share(run: Run, training: float) -> float:
    """What evaluation takes of a run on Seq. CIFAR-100 whose steps take so many seconds; it is done run by run."""
    half = run.stream.tasks.number // 2 - 1  # what a run is evaluated on, on average
    run.evaluate(half)
    synchronize(run.device)
    start = time.perf_counter()
    run.evaluate(half)
    images = len(run.stream.data.test_images) * (1 if run.method.merged else (half + 1) / run.stream.tasks.number)
    all_images = TEST_IMAGES if run.method.merged else TEST_IMAGES * (run.stream.tasks.number + 1) / 2
    evaluation = (time.perf_counter() - start) * all_images / images
    return evaluation / (evaluation + training)


def flops_of_a_step(run: Run) -> float:
    """Arithmetic of one step, counted while it is taken."""
    gradients = {torch.ops.aten.convolution_backward: flops_of_gradients}
    with without_our_kernels(), FlopCounterMode(display=False, custom_mapping=gradients) as counter:
        run.step()
    return float(counter.get_total_flops())


def flops_of_gradients(
    gradient: Sequence[int], maps: Sequence[int], weight: Sequence[int], *others: Any, out_shape: Any = None
) -> int:
    """Arithmetic of a convolution's way back, from shapes: as much as its way there, for each gradient that it gives.

    PyTorch's own formula counts the weight of a depthwise convolution as if every channel met every other one.
    """
    *_, transposed, _, _, (of_maps, of_weight, _) = others
    return 2 * math.prod(maps if transposed else gradient) * math.prod(weight[1:]) * (of_maps + of_weight)


def arithmetic_rate(device: torch.device, precision: str, size: int | None = None) -> float:
    """Operations per second in a matrix product, a large one where no size is given."""
    size = size or (8192 if device.type == "cuda" else 2048)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    first, second = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        first @ second
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
