"""What a learner's file has to hold for a learner to go on with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cler.config.settings import Settings
from cler.engine.state import State, collect
from cler.errors import UsageError
from cler.learner.inputs import Label, to_labels
from cler.methods import Method
from cler.methods.optimizers import find_optimizer
from cler.runs.build import make_network


@dataclass(frozen=True)
class Saved:
    """The parts of a file, which each have the right kind; the checks are about what they hold."""

    state: State
    pixels: Tensor
    """Of the images that wait, whose labels are in `waiting`."""
    generator: Tensor
    labels: list[Label]
    waiting: list[Label]
    steps: int
    device: str

    @classmethod
    def read(cls, tensors: dict[str, Tensor], about: dict[str, Any]) -> Saved:
        """Take a file's content apart."""
        method = {name: tensor for name, tensor in tensors.items() if name.startswith("method.")}
        require(tensors.keys() - method.keys() == {"waiting", "generator"}, "tensors")
        require(type(about["steps"]) is int, "steps")
        require(all(type(value) in (bool, int, float) for value in about["numbers"].values()), "numbers")
        return cls(
            state=State({name.removeprefix("method."): tensor for name, tensor in method.items()}, about["numbers"]),
            pixels=tensors["waiting"],
            generator=tensors["generator"],
            labels=to_labels(about["labels"]),
            waiting=to_labels(about["waiting"]),
            steps=about["steps"],
            device=about["device"],
        )

    def check_stream(self, batch: int, like: Tensor) -> None:
        """What has been learned, and what waits."""
        require(len(set(self.labels)) == len(self.labels), "labels")
        require(self.steps >= 0 and bool(self.labels) == (self.steps > 0), "steps")
        require(self.steps > 0 or not (self.state.tensors or self.state.numbers), "tensors")
        require(len(self.pixels) == len(self.waiting) < batch, "waiting images")
        require(self.pixels.dtype == like.dtype and self.pixels.shape[1:] == like.shape[1:], "waiting images")

    def check_size(self, method: type[Method], settings: Settings, n_classes: int) -> None:
        """That the file is as large as what is going to be built, so that a small one cannot ask for any memory."""
        shape = self.pixels.shape[1:]
        with torch.device("meta"):
            network = make_network(
                method, n_classes, image_shape=tuple(shape), network=settings.network, width=settings.width
            )
        needed = settings.buffer * shape.numel() + sum(each.nbytes for each in network.parameters())
        require(sum(each.nbytes for each in self.state.tensors.values()) >= needed, "size")

    def check_numbers(self, method: Method) -> None:
        """The numbers that a method counts, tables that are made from its settings, what its optimizer remembers."""
        fresh, numbers = collect(method), self.state.numbers
        require(fresh.numbers.keys() == numbers.keys(), "numbers")
        for name, number in fresh.numbers.items():
            may_differ = name in method.about.counted or isinstance(number, bool)
            require(type(numbers[name]) is type(number) and (may_differ or numbers[name] == number), "numbers")
        require(numbers["task"] in (0, 1), "task")
        counters = _counters(method)
        for name, tensor in fresh.tensors.items():
            if id(tensor) in counters:
                require(bool(self.state.tensors[name] >= 0), "counters")
            elif tensor.dtype == torch.int64 and name not in method.about.counted:
                require(torch.equal(tensor.cpu(), self.state.tensors[name]), "tables")
            require(not name.endswith("running_var") or bool((self.state.tensors[name] >= 0).all()), "variances")
        remembered: dict[str, set[str]] = defaultdict(set)
        for name in self.state.tensors:
            if name.startswith("optimizer.state."):
                remembered[name.split(".")[2]].add(name.split(".")[3])
        kept = find_optimizer(method.setup.optimizer).state_keys(method.setup.momentum)
        require(all(keys == kept for keys in remembered.values()), "moments")

    def check_buffer(self, method: Method, batch: int) -> None:
        """The memory that a method has been given."""
        if method.replays:
            memory, offered = method.buffer, self.steps * batch
            require(int(memory.offered) == offered and memory.filled == min(offered, memory.capacity), "memory")
            require(_within(memory.labels, -1, len(self.labels)), "memory")
            require(_within(memory.labels[: memory.filled], 0, len(self.labels)), "memory")


def _counters(method: Method) -> set[int]:
    """By id, the single whole numbers among the buffers of modules: batch norms count their batches in such."""
    modules = [method.network, *method.regularizers]
    buffers = (each for module in modules for each in module.buffers())
    return {id(each) for each in buffers if each.dtype == torch.int64 and each.dim() == 0}


def _within(numbers: Tensor, first: int, end: int) -> bool:
    return bool(((numbers >= first) & (numbers < end)).all())


def require(holds: bool, what: str) -> None:
    """Refuse a file whose parts contradict each other."""
    if not holds:
        raise UsageError(f"it is damaged, its {what} cannot be right")
