"""A step along gradients that a method asked for, against one along those of its terms."""

import pytest
import torch

from cler.methods.finetune import Finetune
from cler.promises.state import differences, snapshot
from cler.promises.toy import colors, make_run


class InTwo(Finetune):
    """Finetune, by way of its gradients."""

    name = "in-two"

    def descend(self, terms):
        self.apply_gradients(self.gradients(terms))


def weights_after(steps, method, precision):
    run = make_run("finetune", "jigsaw", precision=precision, teacher="ema", data=colors(size=16))
    run.method.__class__ = method
    run.begin_task(0)
    before = snapshot(run)
    for _ in range(steps):
        run.step()
    return before, snapshot(run)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_along_the_gradients_of_its_terms_is_a_descent(precision):
    before, one = weights_after(2, InTwo, precision)
    _, other = weights_after(2, Finetune, precision)
    assert not differences(one, other)
    convolutions = {name for name in before if "network" in name and name.endswith("conv1._parameters.weight")}
    assert convolutions
    assert convolutions <= set(differences(before, one))


def test_gradients_of_terms_of_one_pass():
    method = make_run("finetune").method
    weight = method.network.classifier.weight
    terms = {"sum": weight.sum(), "squares": weight.square().sum()}
    first = method.gradients({"sum": terms["sum"]}, retain_graph=True)
    both = method.gradients(terms)
    assert first.keys() == both.keys() == {weight}
    torch.testing.assert_close(first[weight], torch.ones_like(weight))  # the second call leaves it alone
    torch.testing.assert_close(both[weight], 1 + 2 * weight.detach())


def test_the_gradient_of_a_parameter_that_a_loss_does_not_reach_is_zero():
    method = make_run("finetune", "jigsaw").method
    weight, other = method.network.classifier.weight, next(method.regularizers[0].parameters())
    gradients = method.gradients({"sum": weight.sum()})
    assert gradients.keys() == {weight}
    assert torch.equal(gradients[other], torch.zeros_like(other))


class Fading(Finetune):
    """Halves all weights between tasks, and doubles them again."""

    name = "fading"
    steps = 0

    @torch.no_grad()
    def end_task(self, task, batches):
        torch._foreach_mul_(list(self.network.parameters()), 0.5)

    @torch.no_grad()
    def begin_task(self, task):
        super().begin_task(task)
        torch._foreach_mul_(list(self.network.parameters()), 2.0)

    def observe(self, batch):
        self.steps += self.follows
        return super().observe(batch)

    @property
    def follows(self):
        """Whether convolutions compute with the weights as they are."""
        pairs = zip(self.working_copies.copies, self.working_copies.weights, strict=True)
        return all(torch.equal(copy, weight.bfloat16()) for copy, weight in pairs)


@pytest.mark.parametrize("stream", ["class-incremental", "shuffled"])
def test_convolutions_in_bfloat16_have_the_weights_that_were_changed_between_steps(stream):
    """Where a stream has no tasks, a second one is begun by its first step."""
    run = make_run("finetune", precision="bf16", stream=stream)
    run.method.__class__ = Fading
    run.begin_task(0)
    assert run.method.follows
    for _ in range(2):
        run.step()
    assert (run.method.task, run.method.steps) == (int(stream == "shuffled"), 2)
    run.end_task(0)
    assert run.method.follows
