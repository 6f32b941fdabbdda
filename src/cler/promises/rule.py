"""The one rule of a step, tried: which line looks at a tensor, draws from elsewhere, or makes what should last anew."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cler.engine import Run
from cler.engine.state import State, collect, restore
from cler.errors import UsageError
from cler.nets.randomness import running_modules
from cler.promises.outcome import BrokenPromise
from cler.promises.state import named, tensors_of
from cler.promises.toy import in_later_task


class BrokenRule(BrokenPromise):
    """Something that a step must not do."""


LOOKS = {
    "item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__",
    "__repr__", "__contains__", "__iter__", "is_nonzero", "equal", "allclose",
}  # fmt: skip
COMPARED = bool | int | float | str | torch.dtype | torch.device | torch.layout | torch.memory_format
MADE = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros"}
INSTEAD = {
    "aten::bincount": "; F.one_hot(labels, n).sum(0) counts too",
    "aten::nonzero": "; use torch.where(mask, a, b)",
    "aten::masked_select": "; use torch.where, masked_fill, or a mean weighted by the mask",
    "aten::_unique2": "; go over self.seen_classes, or all classes at once",
}
"""What may stand in place of an operator whose result has a shape that depends on data."""
UNSETTLED = ": does observe call self.buffer.add?"
"""What to ask about a method that replays and never begins to."""
FAR = 2_016_000
"""A count that has come far: a multiple of nearly every number after which something may be done again."""
FROM_THE_HOST = {"aten::lift_fresh", "aten::lift_fresh_copy", "aten::_pin_memory"}
PACKAGE = str(Path(__file__).parents[1]) + "/"
TORCH = str(Path(torch.__file__).parent) + "/"
PYTHON = str(Path(random.__file__).parent) + "/"
"""The standard library; what is installed for users lies below it too, and is not part of it."""
HERE = str(Path(__file__).parent) + "/"
RUN = PACKAGE + "engine/run.py"


def line_of(frames: list[tuple[str, int]]) -> str:
    """The user's line among the frames of a call, the innermost first: outside this package if there is one."""
    candidates = [(file, line) for file, line in frames if not _is_machinery(file)]
    own = [each for each in candidates if not each[0].startswith(PACKAGE)]
    steps = [each for each in candidates if not each[0].startswith(PACKAGE + "engine/")]
    for found in (own, steps, candidates):
        if found:
            return f"{found[0][0]}, line {found[0][1]}"
    return "a place that is not known"


def _is_machinery(file: str) -> bool:
    standard = file.startswith(PYTHON) and "-packages" not in file
    return file.startswith((TORCH, HERE, "<frozen")) or standard or "/numpy/" in file


def places(frame: FrameType | None) -> list[tuple[str, int]]:
    """File and line of a frame and of what called it, the innermost first, out to the run whose step it is."""
    found: list[tuple[str, int]] = []
    while frame is not None and (not found or found[-1][0] != RUN):
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


def line_of_error(error: BaseException) -> str:
    """The user's line that an error comes from."""
    return line_of([(each.filename, each.lineno or 0) for each in reversed(traceback.extract_tb(error.__traceback__))])


def here() -> str:
    """The user's line that is running."""
    return line_of(places(sys._getframe(1)))


class NoLooks(TorchFunctionMode):
    """Refuses what brings a value to the host without an operator that a dispatch mode could see."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in LOOKS:
            raise BrokenRule(f"{here()}: a tensor's value reaches the host ({name})")
        kwargs = kwargs or {}
        if name == "one_hot" and (count := (*args[1:], *kwargs.values(), -1)[0]) != -1:
            return args[0].unsqueeze(-1).eq(torch.arange(count, device=args[0].device)).long()  # looks only on a CPU
        if function is torch.autograd.grad and any(isinstance(each, nn.Parameter) for each in args[1]):
            raise BrokenRule(f"{here()}: in bfloat16 a weight has no such gradient; call self.gradients(terms)")
        made = function(*args, **kwargs)
        if name in MADE and kwargs.get("device") is None and not sys._getframe(1).f_code.co_filename.startswith(TORCH):
            raise BrokenRule(f"{here()}: torch.{name} without device=self.setup.device, which on a GPU is on the host")
        return made


class Recording(TorchDispatchMode):
    """Refuses looks, shapes that depend on data, and random numbers from elsewhere; lists every operator it sees."""

    def __init__(self, run: Run, running: list[str]) -> None:
        super().__init__()
        self.generator = run.generator
        self.running = running
        """Names of the sub-modules whose forward is running, the innermost last."""
        self.lasting = {each.data_ptr(): path for path, each in tensors_of(run).items() if each.numel()}
        """The names of what lasts from step to step, by the place in memory."""
        self.seen: list[tuple[Any, ...]] = []
        self.called: list[list[tuple[str, int]]] = []
        """Where each was called, as `places` tells it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.check(function, args)
        generator, before = kwargs.get("generator"), torch.get_rng_state()
        elsewhere = torch.Tag.nondeterministic_seeded in function.tags and not self.is_mine(generator)
        out = function(*args, **kwargs)
        if elsewhere and (generator is not None or not torch.equal(torch.get_rng_state(), before)):
            # the tag only says that it could: attention has it with a rate of 0 too
            module = f"sub-module '{self.running[-1]}' draws " if self.running else ""
            raise BrokenRule(f"{here()}: {module}a random number that is not from the run's generator ({function})")
        seen: list[Any] = [function]
        for each in (args, *kwargs.values(), out):
            self.add_to(seen, each)
        if function.namespace != "profiler":
            self.seen.append(tuple(seen))
            self.called.append(places(sys._getframe()))
        return out

    def check(self, function: Any, args: Any) -> None:
        """Refuse an operator that no recorded step may have."""
        name = function._schema.name
        if torch.Tag.data_dependent_output in function.tags:
            raise BrokenRule(f"{here()}: a tensor's value reaches the host ({function})")
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                raise BrokenRule(
                    f"{here()}: boolean indexing, whose result has a shape that depends on data; use torch.where, "
                    f"masked_fill, or a mean weighted by the mask ({function})"
                )
        elif torch.Tag.dynamic_output_shape in function.tags:
            raise BrokenRule(f"{here()}: a shape that depends on data ({function}){INSTEAD.get(name, '')}")
        if name in FROM_THE_HOST:
            raise BrokenRule(
                f"{here()}: data from the host, which has to be made in __init__ (x.masked_fill and x.index_fill write "
                f"a number where a mask or an index says) ({function})"
            )

    def is_mine(self, generator: torch.Generator | None) -> bool:
        """Whether this is the run's generator: the same one may come as another Python object."""
        return generator is not None and torch.equal(generator.get_state(), self.generator.get_state())

    def add_to(self, seen: list[Any], value: Any) -> None:
        """Add what of an argument or a result has to be the same in the next step, of what lasts its name too."""
        if isinstance(value, Tensor):
            seen += (value.shape, value.stride(), value.dtype, value.device)
            if name := self.lasting.get(_address(value)):
                seen.append(f"the tensor {named([name])}")
        elif isinstance(value, list | tuple):
            for each in value:
                self.add_to(seen, each)
        else:
            seen.append(value if isinstance(value, COMPARED) else type(value).__name__)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


@contextmanager
def _running_modules(run: Run) -> Iterator[list[str]]:
    """Inside, the list has the names of the method's sub-modules whose forward is running."""
    running: list[str] = []
    with ExitStack() as stack:
        modules = {name: each for name, each in vars(run.method).items() if isinstance(each, nn.Module)}
        modules |= {f"regularizer {each.name}": each for each in run.method.regularizers}
        own = vars(run.method.teacher) if run.method.teacher else {}
        modules |= {f"teacher's {name}": each for name, each in own.items() if isinstance(each, nn.Module)}
        for name, module in modules.items():
            stack.enter_context(running_modules(module, running, name))
        yield running


def recorded_step(run: Run) -> Recording:
    """One step under the rule; gives back all that it ran."""
    with _running_modules(run) as running, NoLooks(), Recording(run, running) as recording:
        run.step()
    return recording


def check_same_kernels(first: Recording, second: Recording) -> None:
    """Refuse two steps that do not run the same operators with the same shapes and constants."""
    if first.seen == second.seen:
        return
    pairs = enumerate(zip([*first.seen, None], [*second.seen, None], strict=False))
    number, (one, other) = next(each for each in pairs if each[1][0] != each[1][1])
    lines = [line_of(each.called[number]) for each in (first, second) if number < len(each.called)]
    raise BrokenRule(f"{' and '.join(dict.fromkeys(lines))}: two steps differ: {_difference(one, other)}")


def _difference(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> str:
    """What changed from an operator that a recording has seen to that of the next step; None comes after the last."""
    if one is None or other is None or one[0] != other[0] or len(one) != len(other):
        ran = ", then ".join("nothing more" if each is None else str(each[0]) for each in (one, other))
        return f"{ran}: Python may decide only by what recording_key tells"
    before, after = next(pair for pair in zip(one, other, strict=True) if pair[0] != pair[1])
    if isinstance(before, torch.Size):
        before, after = f"a tensor of shape {tuple(before)}", f"of {tuple(after)}"
    return (
        f"{one[0]} has {before}, then {after}: keep what changes in a tensor that is updated in place, or have "
        "recording_key tell it, or settled when it is over"
    )


def _global_states() -> list[Any]:
    numpy_state: Any = np.random.get_state()
    return [random.getstate(), numpy_state[1].tobytes(), numpy_state[2:], torch.get_rng_state().numpy().tobytes()]


def check_rule(run: Run) -> Recording:
    """Nothing forbidden in a step, the same operators on the same shapes and constants in the next, state in place.

    Gives back all that the last step ran.
    """
    before, states = _global_states(), [tensors_of(run)]  # kept alive, so that no address is used twice
    steps, counters = [], _counters(run)
    for _ in range(2):
        steps.append(recorded_step(run))
        states.append(tensors_of(run))
    if _global_states() != before:
        raise BrokenRule(f"{_line_that_draws(run)}: a global random state has moved; draw from self.setup.generator")
    check_same_kernels(*steps)
    for earlier, later in pairwise(states):
        _check_same_places(earlier, later)
    _check_no_graph(states[-1])
    _check_counters(run, counters, steps[-1])
    return steps[-1]


def _counters(run: Run) -> dict[str, int]:
    """What the method counts on the host; nothing where a checkpoint cannot store it, which is another promise."""
    with suppress(UsageError):
        numbers = collect(run.method).numbers
        return {name: n for name, n in numbers.items() if type(n) is int and not name.startswith("buffer.")}
    return {}


def _check_counters(run: Run, before: dict[str, int], usual: Recording) -> None:
    """Refuse a step that is another one once what has counted on the host since `before` has come far.

    A recorded step does not count on the host, so that what is decided there by a count never comes.
    """
    counting = {name: count for name, count in _counters(run).items() if count != before.get(name)}
    if not counting:
        return
    position = run._position.clone()
    for far in (FAR - 1, FAR):
        _set(run, dict.fromkeys(counting, far))
        run._position.zero_()  # there may be no further batch
        try:
            check_same_kernels(usual, recorded_step(run))
        except BrokenRule as error:
            raise BrokenRule(
                f"{error}, once {named([*counting])} is {far}: a recorded step does not count on the host, so count in "
                "a tensor, or have settled or recording_key tell it"
            ) from None
        except Exception:  # a number that cannot be so high
            continue
    _set(run, counting)
    run._position.copy_(position)


def _set(run: Run, counters: dict[str, int]) -> None:
    """Have the method's counters on the host stand at these numbers."""
    state = collect(run.method)
    restore(run.method, State(state.tensors, state.numbers | counters))


def _line_that_draws(run: Run) -> str:
    """The user's line that draws from Python's or numpy's random numbers, found by a step that is watched."""
    found: list[str] = []
    last: list[Any] = [_global_states(), []]

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if found or _is_machinery(frame.f_code.co_filename):
            return None
        states = _global_states()
        if states != last[0]:
            found.append(line_of(last[1]))
        last[:] = states, places(frame)
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        run.step()
    finally:
        sys.settrace(before)
    return found[0] if found else "the step"


def check_every_phase(run: Run) -> None:
    """The rule in the last task, in each of its phases."""
    in_later_task(run)
    if not run.method.settled:
        raise BrokenRule(
            f"in its last task the method still says that it has not settled, so no step can be recorded{UNSETTLED}"
        )
    for phase in run.phases[-1]:
        run.begin_phase(phase)
        run.step()
        check_rule(run)


def _check_same_places(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Refuse a step after which what lasts is not the same tensors in the same place."""
    for path, tensor in {**before, **after}.items():
        shown = named([path])
        if path not in after or path not in before:
            raise BrokenRule(f"{shown} comes or goes from one step to the next: make it in __init__")
        if tensor.shape != before[path].shape or tensor.data_ptr() != before[path].data_ptr():
            raise BrokenRule(f"{shown} is another tensor after a step: update it in place, as with copy_ or add_")


def _check_no_graph(state: dict[str, Tensor]) -> None:
    """Refuse what lasts and has a gradient's graph, which a checkpoint cannot store; modules may derive weights."""
    for path, tensor in state.items():
        if tensor.grad_fn is not None and "._modules." not in path and "._parameters." not in path:
            raise BrokenRule(
                f"{named([path])} keeps the graph of what it was computed from: update it under torch.no_grad(), or "
                "from x.detach()"
            )
