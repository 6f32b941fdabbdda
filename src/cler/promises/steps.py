"""What single steps promise of a method with a regularizer or without one: a function each."""

from __future__ import annotations

from typing import Any

import torch

from cler.methods import METHODS
from cler.nets.backbone import Backbone
from cler.promises.outcome import demand
from cler.promises.rule import UNSETTLED, check_every_phase, check_rule, check_same_kernels, recorded_step
from cler.promises.state import named, tensors_of
from cler.promises.toy import in_later_task, make_run
from cler.regularizers import REGULARIZERS
from cler.teachers.base import Teacher


def keeps_the_rule(method: str, regularizer: str = "none", **changes: Any) -> None:
    """In the last task, in each phase: no look at a tensor, no draw from elsewhere, same kernels, state in place."""
    check_every_phase(make_run(method, regularizer, **changes))


def recorded_step_serves(method: str, regularizer: str = "none", **changes: Any) -> None:
    """The rule holds in the first task, and a recorded step is that of every task with the same `recording_key`."""
    more = {"tasks": 4, "epochs": 3, "replay_batch": 16, "buffer": 32}  # tasks of one size, or each had its own key
    run = make_run(method, regularizer, **more | changes)
    recorded: dict[Any, Any] = {}
    for task in range(len(run.schedule))[:3]:
        run.begin_task(task)
        for _ in range(4):
            if run.method.settled:
                break
            run.step()
        demand(run.method.settled, f"after its first steps the method says that it has not settled{UNSETTLED}")
        run.step()
        kernels, state = recorded_step(run) if task else check_rule(run), tensors_of(run)
        before_kernels, before_state = recorded.setdefault(run.recording_key, (kernels, state))
        check_same_kernels(before_kernels, kernels)
        places = {path: tensor.data_ptr() for path, tensor in before_state.items()}
        moved = [path for path, tensor in state.items() if places.get(path) != tensor.data_ptr()]
        demand(not moved, f"another task with the same recording_key has other tensors: {named(moved)}")
        run.end_task(task)


class Witness(Teacher):
    """Answers with the network, and has seen its weights as they were after the last step that it was told of."""

    name = "witness"

    def __init__(self, network: Backbone) -> None:
        super().__init__(network, None)
        self.seen = [each.detach().clone() for each in network.parameters()]

    def after_step(self, network: Backbone, task: int) -> None:
        """Look at the weights."""
        self.seen = [each.detach().clone() for each in network.parameters()]

    def answering(self, network: Backbone) -> Backbone:
        """The network."""
        return network


def is_followed(method: str, regularizer: str = "none", **changes: Any) -> None:
    """In each phase of the last task, the weights after a step are those that a teacher is shown."""
    run = in_later_task(make_run(method, regularizer, **changes))
    network = run.method.network
    witness = Witness(network)
    if run.method.teacher is None:
        run.method.teacher = witness
    else:
        run.method.teacher.after_step = witness.after_step  # type: ignore[method-assign]
    for phase in run.phases[-1]:
        run.begin_phase(phase)
        witness.after_step(network, run.task)
        run.step()
        demand(
            all(map(torch.equal, network.parameters(), witness.seen)),
            f"{phase} changes weights without self.descend(terms): teachers and regularizers do not follow, and in "
            "bfloat16 convolutions do not learn; to change gradients, call self.apply_gradients(self.gradients(terms))",
        )


def trains_what_its_loss_reaches(method: str, regularizer: str = "none", **changes: Any) -> None:
    """A step changes the regularizer's parameters, and all others of which its loss has a gradient."""
    run = in_later_task(make_run(method, regularizer, **changes))
    run.begin_phase("observe")
    own = [each for one in run.method.regularizers for each in one.parameters() if each.requires_grad]
    before = [each.detach().clone() for each in own]
    trained, every = set(map(id, run.method.trained)), tensors_of(run.method)
    leaves = {path: each for path, each in every.items() if each.is_leaf and id(each) not in trained}
    others = {path: (each, each.detach().clone()) for path, each in leaves.items()}
    for each in leaves.values():
        each.grad = None  # it may have one of another phase
    run.step()
    demand(
        not own or not all(map(torch.equal, before, own)),
        f"the loss of {regularizer} has no part in the step: give self.descend the losses that self.outputs returns",
    )
    missed = [
        path
        for path, (each, then) in others.items()
        if each.grad is not None and bool(each.grad.any()) and torch.equal(each, then)
    ]
    demand(
        not missed,
        f"its loss has a gradient of {named(missed)}, which no step changes: layers of a method are trained that it "
        "names in super().__init__(setup, also_trained=[...]); others need requires_grad_(False)",
    )


def names_its_losses(method: str, regularizer: str = "none", **changes: Any) -> None:
    """Each term of the loss is a finite number with a name, the regularizer's its own."""
    run = in_later_task(make_run(method, regularizer, **changes))
    for phase in run.phases[-1]:
        run.begin_phase(phase)
        terms = getattr(run.method, phase)(run._batch(torch.arange(8)))
        demand(isinstance(terms, dict) and bool(terms), f"{phase} does not return a dictionary of its loss terms")
        for name, term in terms.items():
            demand(
                isinstance(name, str) and name == name.strip().lower() != "", f"a term of the loss is called {name!r}"
            )
            demand(
                term.shape == (), f"the term '{name}' of {phase} has shape {tuple(term.shape)}: it has to be a scalar"
            )
            demand(bool(term.isfinite()), f"the term '{name}' of {phase} is {term.item()}")
        wanted = regularizer != "none" and phase == "observe"
        demand(
            (regularizer in terms) == wanted,
            f"{phase} returns the terms {', '.join(terms)}: {_about(regularizer, wanted)}",
        )


def takes_its_smallest_batch(method: str, regularizer: str = "none", **changes: Any) -> None:
    """With as small a batch as it says that it can take, losses and weights stay finite numbers."""
    if "network" in changes:
        return  # those that normalize features cannot take a single image
    entries = [REGULARIZERS[regularizer]] if regularizer != "none" else []
    smallest = max(each.smallest_batch for each in (METHODS[method], *entries))
    run = in_later_task(make_run(method, regularizer, **{"batch": smallest} | changes))
    run.check(run.task, wait=True)
    finite = run.failure is None and all(bool(each.isfinite().all()) for each in run.method.trained)
    demand(
        finite,
        f"with a batch of {smallest} the loss is not a finite number, or its gradient is not: say smallest_batch = "
        f"{smallest + 1}, a method in its class and a regularizer in its Entry",
    )


def _about(regularizer: str, wanted: bool) -> str:
    return f"that of {regularizer} is missing" if wanted else f"{regularizer} has no place there"
