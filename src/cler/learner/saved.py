"""What a learner's file has to hold, so that a learner can be made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from cler.config.settings import Settings
from cler.data.inputs import Label, to_labels
from cler.engine.state import State, collect
from cler.errors import UsageError
from cler.methods import Method, find_method
from cler.methods.optimizers import find_optimizer
from cler.nets.build import NetworkLike
from cler.nets.randomness import borrowed_generator
from cler.runs.build import make_network

NETWORK = "network."
"""What the names of a network's tensors begin with in a state."""


@dataclass(frozen=True)
class Saved:
    """The parts of a file, which each have the right kind; the checks are about what they hold."""

    state: State
    pixels: Tensor
    """Pixels of the images that wait, whose labels are in `waiting`."""
    generator: Tensor
    labels: list[Label]
    waiting: list[Label]
    steps: int
    device: str
    predicted: list[int]
    """Images predicted right before they were learned, those that a blind guess had right, and all."""
    last_label: Label | None

    @classmethod
    def read(cls, tensors: dict[str, Tensor], about: dict[str, Any]) -> Saved:
        """Take a file's content apart."""
        method = {name: tensor for name, tensor in tensors.items() if name.startswith("method.")}
        require(tensors.keys() - method.keys() == {"waiting", "generator"}, "tensors")
        require(type(about["steps"]) is int, "steps")
        predicted, last_label = about.get("predicted", [0, 0, 0]), about.get("last_label")
        require(isinstance(predicted, list) and all(type(each) is int for each in predicted), "predictions")
        require(len(predicted) == 3 and min(predicted) >= 0 and max(predicted) == predicted[2], "predictions")
        require(all(type(value) in (bool, int, float) for value in about["numbers"].values()), "numbers")
        return cls(
            state=State({name.removeprefix("method."): tensor for name, tensor in method.items()}, about["numbers"]),
            pixels=tensors["waiting"],
            generator=tensors["generator"],
            labels=to_labels(about["labels"]),
            waiting=to_labels(about["waiting"]),
            steps=about["steps"],
            device=about["device"],
            predicted=predicted,
            last_label=None if last_label is None else to_labels([last_label])[0],
        )

    @property
    def state_bytes(self) -> int:
        """How large the tensors of the method are."""
        return sum(each.nbytes for each in self.state.tensors.values())

    def check_stream(self, batch: int, like: Tensor) -> None:
        """Check what has been learned, and what waits."""
        require(len(set(self.labels)) == len(self.labels), "labels")
        require(self.steps >= 0 and bool(self.labels) == (self.steps > 0), "steps")
        require(self.steps > 0 or not (self.state.tensors or self.state.numbers), "tensors")
        require(len(self.pixels) == len(self.waiting) < batch, "waiting images")
        require(self.pixels.dtype == like.dtype and self.pixels.shape[1:] == like.shape[1:], "waiting images")

    def check_size(self, settings: Settings, n_classes: int, own: NetworkLike | None) -> None:
        """Check that the file is as large as what is going to be built, so that a small one cannot ask for any memory.

        `own` is the network where it is not one by name: how large it is, is the user's business, but its classifier
        has as many outputs as the file says.
        """
        shape = self.pixels.shape[1:]
        if own is None:
            with torch.device("meta"):
                network = _bytes_of_network(settings, settings.network, n_classes, shape)
        else:
            smallest, larger = (_bytes_of_network(settings, own, count, shape) for count in (1, 2))
            network = (n_classes - 1) * (larger - smallest)
        large_enough = self.state_bytes >= settings.buffer * shape.numel() + network
        if own is not None and not large_enough:
            raise UsageError("the given network is larger than the one that it was saved with")
        require(large_enough, "size")

    def check_network(self, method: Method) -> None:
        """Check that the file is of the network that the user has given: its tensors have the same names and shapes."""
        wanted, stored = (
            {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items() if name.startswith(NETWORK)}
            for tensors in (collect(method).tensors, self.state.tensors)
        )
        if differing := sorted(name for name in wanted | stored if wanted.get(name) != stored.get(name)):
            told = ", ".join(name.removeprefix(NETWORK) for name in differing[:3])
            raise UsageError(f"the given network is not the one that it was saved with: they differ in {told}")

    def check_numbers(self, method: Method) -> None:
        """Check the numbers that a method counts, tables made from its settings, and what its optimizer remembers."""
        fresh, numbers = collect(method), self.state.numbers
        require(fresh.numbers.keys() == numbers.keys(), "numbers")
        parts = _parts(method)
        for name, number in fresh.numbers.items():
            require(type(numbers[name]) is type(number), "numbers")
            if not isinstance(number, bool) and numbers[name] != number:
                _check_counted(name, method, parts, "numbers")
        require(numbers["task"] in (0, 1), "task")
        for name, tensor in fresh.tensors.items():
            owner = _owner(name, parts)
            if isinstance(owner, _NormBase) and name.endswith("num_batches_tracked"):
                require(bool(self.state.tensors[name] >= 0), "counters")
            elif tensor.dtype == torch.int64 and not torch.equal(tensor.cpu(), self.state.tensors[name]):
                _check_counted(name, method, parts, "tables")
            require(not name.endswith("running_var") or bool((self.state.tensors[name] >= 0).all()), "variances")
        remembered: dict[str, set[str]] = defaultdict(set)
        for name in self.state.tensors:
            if name.startswith("optimizer.state."):
                remembered[name.split(".")[2]].add(name.split(".")[3])
        kept = find_optimizer(method.setup.optimizer).state_keys(method.setup.momentum)
        require(all(keys == kept for keys in remembered.values()), "moments")

    def check_buffer(self, method: Method, batch: int) -> None:
        """Check the buffer that a method was given from the file."""
        if method.replays:
            buffer, offered = method.buffer, self.steps * batch
            require(int(buffer.offered) == offered and buffer.filled == min(offered, buffer.capacity), "buffer")
            require(_within(buffer.labels, -1, len(self.labels)), "buffer")
            require(_within(buffer.labels[: buffer.filled], 0, len(self.labels)), "buffer")


def _bytes_of_network(settings: Settings, network: NetworkLike, n_classes: int, shape: torch.Size) -> int:
    method, width = find_method(settings.method), settings.width
    with borrowed_generator():
        options = settings.method_options
        built = make_network(method, n_classes, image_shape=tuple(shape), network=network, width=width, options=options)
    return sum(each.nbytes for each in built.parameters())


def _check_counted(name: str, method: Method, parts: Mapping[str, Any], what: str) -> None:
    """Refuse whole numbers of a file that are not those of a new learner, unless they may change as one learns."""
    if name in method.about.counted or _is_foreign(_owner(name, parts)):
        return
    require(_is_foreign(method), what)
    raise UsageError(
        f"{name} is not what it is in a new {method.name}: if it changes as the method learns, say so in its about, by "
        f"counted=About.counted | {{'{name}'}}"
    )


def _parts(method: Method) -> dict[str, Any]:
    """The teacher, and all modules of it, the network and the regularizers, by the names that a state has for them."""
    roots: dict[str, nn.Module] = {f"regularizers.{i}": each for i, each in enumerate(method.regularizers)}
    own = vars(method.teacher) if method.teacher else {}
    roots |= {f"teacher.{name}": each for name, each in own.items() if isinstance(each, nn.Module)}
    roots["network"] = method.network
    modules = {
        f"{root}.{name}" if name else root: module
        for root, tree in roots.items()
        for name, module in tree.named_modules(remove_duplicate=False)
    }
    return {"teacher": method.teacher, **modules}


def _owner(name: str, parts: Mapping[str, Any]) -> Any:
    """The innermost part that something of a state belongs to; None for the method itself."""
    while name and name not in parts:
        name = name.rpartition(".")[0]
    return parts.get(name)


def _is_foreign(part: Any) -> bool:
    """Whether a part is not of this package: whole numbers in it may change as it learns."""
    return part is not None and type(part).__module__.partition(".")[0] != "cler"


def _within(numbers: Tensor, first: int, end: int) -> bool:
    return bool(((numbers >= first) & (numbers < end)).all())


def require(holds: bool, what: str) -> None:
    """Refuse a file whose parts contradict each other."""
    if not holds:
        raise UsageError(f"it is damaged, its {what} cannot be right")
