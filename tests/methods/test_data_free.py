"""LwF.MC and R-DFCIL against golden numbers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cler.config.making import make_settings
from cler.data.views import Views
from cler.errors import UsageError
from cler.methods import Setup
from cler.methods.loss import total
from cler.methods.lwf_mc import LwfMc, LwfMcOptions, distillation
from cler.methods.rdfcil import RDfcil, RDfcilOptions, relations, weights
from cler.nets import ResNet18
from cler.nets.synthesizer import Synthesizer, blur_kernel, one_sidedness, roughness, watched
from cler.promises import toy
from cler.runs.build import make_network
from cler.streams import Batch, Tasks
from toys import CIFAR, ours

# -- LwF.MC ------------------------------------------------------------------------------------------------------------


def test_distillation(golden, assert_close):
    case = golden("datafree").under("lwf.")
    past = int(case["n_past"])
    logits = case["student_logits"][:, :past].clone().requires_grad_()
    loss = distillation(logits, case["teacher_logits"][:, :past])
    assert_close(loss, case["kd"])
    (gradient,) = torch.autograd.grad(loss, logits)
    assert_close(gradient, case["kd_grad_student_logits"])


class StandIn(nn.Linear):
    """A linear map of vectors in place of the network, and of its classifier."""

    @property
    def classifier(self):
        return self

    def forward(self, images, parts=None):
        return super().forward(images)


def test_a_step_of_lwf_mc_as_released(golden, assert_close):
    case = golden("datafree").under("lwf.")
    network = StandIn(12, 100).double()
    network.load_state_dict({"weight": case["W"], "bias": case["b"]})
    options = LwfMcOptions(alpha=float(case["alpha"]), decay=float(case["wd"]), variant="released")
    common = {"views": Views(*CIFAR), "tasks": Tasks.of_sizes([10] * 10), "image_shape": (12,)}
    method = LwfMc(Setup(network=network, lr=float(case["lr"]), options=options, **common))
    method.begin_task(2)
    method.begin_phase("observe")
    method.old_logits = lambda images: case["teacher_logits"][:, : int(case["n_past"])]
    loss = total(method.observe(Batch(torch.zeros(10, 3, 1, 1), case["x"], case["labels"])))
    assert_close(loss, case["loss_total"])
    assert_close(network.bias.detach(), case["b_after"])


def test_with_sigmoids_labels_are_the_targets_of_new_classes_and_old_outputs_those_of_past_ones(assert_close):
    logits = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 1.5, -1.0, 0.25]], dtype=torch.float64)
    logits = torch.cat([logits, torch.full((2, 6), 9.0)], dim=1)  # of classes to come
    old_logits = torch.tensor([[0.3, -0.7], [2.0, 0.1]], dtype=torch.float64)
    shape = {"tasks": Tasks.of_sizes([2] * 5), "image_shape": (12,)}
    method = LwfMc(Setup(network=StandIn(12, 10), views=Views(*CIFAR), options=LwfMcOptions(), **shape))
    batch = Batch(torch.zeros(2, 3, 1, 1), torch.zeros(2, 12), torch.tensor([3, 2]))
    wanted = torch.cat([1 / (1 + torch.exp(-old_logits)), torch.tensor([[0.0, 1.0], [1.0, 0.0]])], dim=1)
    said = 1 / (1 + torch.exp(-logits[:, :4]))
    method.begin_task(1)
    method.old_logits = lambda images: old_logits if images is batch.images else None
    loss = -(wanted * said.log() + (1 - wanted) * (1 - said).log()).sum() / 8
    assert_close(total(method.sigmoid_terms(logits, batch)), loss)
    method.begin_task(0)
    first = Batch(batch.pixels, batch.images, torch.tensor([1, 0]))
    wanted = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    loss = -(wanted * said[:, :2].log() + (1 - wanted) * (1 - said[:, :2]).log()).sum() / 4
    assert_close(total(method.sigmoid_terms(logits, first)), loss)


@pytest.mark.parametrize("variant", ["released", "normalized"])
def test_the_old_network_is_shown_images_that_are_normalized_or_as_released_not(variant):
    shape = {"tasks": Tasks.of_sizes([2, 2]), "image_shape": (3, 8, 8)}
    network, shown = ResNet18(4, width=2), []
    method = LwfMc(Setup(network=network, views=Views(*CIFAR), options=LwfMcOptions(variant=variant), **shape))
    method.begin_task(1)
    method.old_logits = lambda images: shown.append(images) or torch.zeros(4, 2)
    pixels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    method.softmax_terms(
        torch.randn(4, 4), Batch(pixels, torch.full((4, 3, 8, 8), torch.nan), torch.tensor([2, 3, 3, 2]))
    )
    assert torch.equal(*shown, pixels / 255 if variant == "released" else method.views.plain(pixels))


def test_a_weight_of_the_distillation_that_would_do_nothing_is_refused():
    with pytest.raises(UsageError, match=r"^alpha 3\.0 has no effect with sigmoids"):
        LwfMcOptions(alpha=3.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_warm_up_of_lwf_mc_trains_the_new_rows_and_nothing_else(optimizer):
    shape = {"tasks": Tasks.of_sizes([2, 2, 2]), "image_shape": (3, 8, 8)}
    network, options = ResNet18(6, width=2), LwfMcOptions(variant="released")
    method = LwfMc(Setup(network=network, views=Views(*CIFAR), optimizer=optimizer, options=options, **shape))
    pixels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    batches = [
        Batch(pixels, method.views.plain(pixels), torch.tensor(labels)) for labels in ([0, 1, 1, 0], [2, 3, 3, 3])
    ]
    method.begin_task(0)
    method.begin_phase("observe")
    method.observe(batches[0])
    method.begin_task(1)
    method.begin_phase("warm_up")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for _ in range(3):
        method.warm_up(batches[1])
    moved = {name: (tensor != before[name]).flatten(1).any(1) if tensor.dim() > 1 else tensor != before[name]
             for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}  # fmt: skip
    assert {name: rows.nonzero().flatten().tolist() for name, rows in moved.items()} == {
        "classifier.weight": [2, 3], "classifier.bias": [2, 3]
    }  # fmt: skip


def test_how_long_the_phases_of_a_task_are():
    released = LwfMcOptions(variant="released")
    found = [LwfMc.phases(released, task, epoch=6, epochs=3) for task in range(2)]
    assert found == [{"observe": 18}, {"warm_up": 18, "observe": 18}]
    few = RDfcilOptions(inversion_steps=5, refinement_epochs=2)
    found = [RDfcil.phases(few, task, epoch=6, epochs=3) for task in range(2)]
    assert found == [{"observe": 18}, {"invert": 5, "observe": 18, "refine": 12}]


def test_in_bfloat16_the_weight_decay_of_lwf_mc_reaches_convolutions_too():
    torch.manual_seed(0)
    network = ResNet18(4, width=2)
    common = {"views": Views(*CIFAR), "tasks": Tasks.of_sizes([2, 2]), "image_shape": (3, 8, 8), "bfloat16": True}
    pixels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    batch = Batch(pixels, Views(*CIFAR).plain(pixels), torch.tensor([0, 1, 1, 0]))
    after = []
    for decay in (0.0, 0.5):
        method = LwfMc(Setup(network=copy.deepcopy(network), lr=0.1, options=LwfMcOptions(decay=decay), **common))
        method.begin_task(0)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            method.observe(batch)
        after.append(method.network.layer1[0].conv1.weight.detach())
    without, decayed = after
    assert torch.allclose(without - decayed, 0.1 * 2 * 0.5 * network.layer1[0].conv1.weight.detach(), atol=1e-6)


# -- R-DFCIL -----------------------------------------------------------------------------------------------------------


def test_weights(golden):
    for task, *expected in golden("datafree").under("lambda.")["task_ce_hkd_rkd"].tolist():
        assert weights(10 * (int(task) - 1), 10) == pytest.approx(expected, rel=1e-12)


def test_relations(golden, assert_close):
    case = golden("datafree").under("rkd.")
    student, projection = (case[name].clone().requires_grad_() for name in ("student", "E2.weight"))
    ours = relations(F.linear(student, case["E1.weight"], case["E1.bias"]))
    theirs = relations(F.linear(case["teacher"], projection, case["E2.bias"]))
    loss = F.l1_loss(ours, theirs)
    assert_close(loss, case["loss"])
    gradients = torch.autograd.grad(loss, [student, projection])
    assert_close(gradients[0], case["grad_student"])
    assert_close(gradients[1], case["grad_E2"])


def test_the_synthesizer(golden, assert_close):
    case = golden("datafree").under("gen.")
    synthesizer = Synthesizer(8, 8, noise=8).double()
    for j, (name, parameter) in enumerate(synthesizer.named_parameters()):
        i = torch.arange(parameter.numel(), dtype=torch.int64)
        values = 0.2 * (((7919 * i + 104729 * (j + 1)) % 10007).double() / 10007 - 0.5)
        parameter.data.copy_(values.view_as(parameter) + (1 if "bn" in name and "weight" in name else 0))
    assert_close(synthesizer(case["z"]).detach(), case["train_images"])
    assert_close(synthesizer.eval()(case["z"]).detach(), case["eval_images_after_one_train_pass"])


@pytest.fixture
def method(golden, load_golden):
    """R-DFCIL in its fourth task, the old network in place."""
    inversion, step = golden("datafree").under("inv."), golden("datafree").under("step.")
    network = make_network(RDfcil, 100, width=4, image_shape=(3, 8, 8)).double()
    shared = {name: value for name, value in golden("net_nf4").items() if not name.startswith("classifier")}
    load_golden(network, shared | {"classifier.weight": torch.zeros(100, 32)})
    options = RDfcilOptions(noise=8, refinement_lr=float(golden("datafree")["refine.lr"]))
    common = {"views": Views(*CIFAR, dtype=torch.float64), "tasks": Tasks.of_sizes([10] * 10)}
    setup = Setup(network=network, image_shape=(3, 32, 32), lr=float(step["lr"]), options=options, **common)
    method = RDfcil(setup)
    for linear in (method.projection, method.old_projection):
        linear.double()
    network.classifier.weight.data[:30] = inversion["classifier.weight"]
    method.begin_task(3)
    for name, value in step.items():
        if name.startswith("student."):
            network.get_submodule(name.removeprefix("student.")).weight.data.copy_(value)
    network.classifier.weight.data[:40] = step["classifier.weight"]
    for linear, name in zip((method.projection, method.old_projection), ("E1", "E2"), strict=True):
        linear.load_state_dict({"weight": step[f"{name}.weight"], "bias": step[f"{name}.bias"]})
    return method


def test_inversion(golden, assert_close, method):
    case = golden("datafree").under("inv.")
    images = case["images"].clone().requires_grad_()
    with watched(method.old.network) as strange:
        logits = method.old.network(images)[:, :30]
    assert_close(one_sidedness(logits), case["loss_balance"])
    assert_close(1e-3 * roughness(images), case["loss_smooth_weighted"])
    assert_close(blur_kernel(images), case["blur_kernel"])
    assert len(strange) == int(case["n_bn_layers"])
    assert_close(torch.stack(strange).sort().values, case["bnstat_per_layer"].sort().values)
    loss = total(method.inversion_terms(images))
    assert_close(loss, case["loss_total"])
    (gradient,) = torch.autograd.grad(loss, images)
    assert_close(gradient[0], case["grad_images_first"])


def test_every_inversion_begins_with_a_new_optimizer(golden, method):
    """The moments of the last one are about a synthesizer that is gone."""
    images = golden("datafree").under("step.")["images"][:2]
    method.synthesizer.double()
    method.make_up = lambda count, training: method.synthesizer(torch.randn(count, 8, dtype=torch.float64))
    for _ in range(2):
        method.begin_phase("invert")
        assert not method.inverter.state
        method.invert(Batch(images, images, torch.zeros(len(images))))
        assert method.inverter.state


@pytest.mark.parametrize("variant", ["released", "text"])
def test_refinement_has_the_momentum_and_decay_of_the_learning_from_a_new_start(variant):
    """v ← 0.9·v + g + 0.01·w and w ← w − lr·v, by hand; v begins at zero in each refinement."""
    run = toy.make_run("r-dfcil", variant=variant, sgd_momentum=0.9, weight_decay=0.01, tasks="2+1+1")
    method, weight = run.method, run.method.network.classifier.weight
    for task in range(3):
        run.begin_task(task)
        speed, lr = torch.zeros_like(weight), method.options.refinement_lr
        for phase in run.phases[task]:
            run.begin_phase(phase)
            for _ in range(2):
                before = weight.detach().clone()
                run.step()
                if phase == "refine":
                    speed = 0.9 * speed + weight.grad + 0.01 * before
                    assert torch.allclose(weight, before - lr * speed, atol=1e-7)


def test_classes_to_come_are_never_predicted(method):
    logits = method.logits(torch.randn(2, 3, 32, 32, dtype=torch.float64))
    assert logits.isfinite().all(0).tolist() == 40 * [True] + 60 * [False]
    assert logits[:, 40:].eq(-torch.inf).all()


def test_a_step(golden, assert_close, method):
    case = golden("datafree").under("step.")
    batch = Batch(case["images"], method.views.plain(case["images"]), case["labels"])
    terms = method.terms(batch, golden("datafree").under("inv.")["images"])
    assert_close(total(terms), case["loss_total"])
    method.descend(terms)
    assert_close(method.network.stem.conv.weight.detach(), case["after.stem.conv"])
    assert_close(method.network.classifier.weight.detach()[:40], case["after.classifier.weight"])
    assert_close(method.projection.bias.detach(), case["after.E1.bias"])


def test_a_step_of_refinement(golden, assert_close, method):
    case, step = golden("datafree").under("refine."), golden("datafree").under("step.")
    batch = Batch(step["images"], method.views.plain(step["images"]), step["labels"])
    terms = method.refinement_terms(batch, golden("datafree").under("inv.")["images"])
    assert_close(total(terms), case["loss_total"])
    method.descend(terms, method.refiner)
    assert_close(method.network.stem.conv.weight.detach(), case["after.stem.conv"])
    assert_close(method.network.classifier.weight.detach()[:40], case["after.classifier.weight"])


@pytest.fixture
def in_fourth_task(golden, load_golden):
    """R-DFCIL as released in its fourth task; the network has moved since the old one was kept."""
    case = golden("rdfcil_refinement")
    shared = {name: value for name, value in golden("net_nf4").items() if not name.startswith("classifier")}
    network = make_network(RDfcil, 100, width=4, image_shape=(3, 8, 8)).double()

    def fill(given, classifier):
        rows = torch.zeros(100, 32)
        rows[: len(classifier)] = classifier
        load_golden(network, shared | given | {"classifier.weight": rows})

    fill({}, case["old.classifier.weight"])
    options = RDfcilOptions(noise=8, refinement_lr=float(case["refine_lr"]))
    common = {"views": Views(*CIFAR, dtype=torch.float64), "tasks": Tasks.of_sizes([10] * 10)}
    lr = float(case["observe_lr"])
    method = RDfcil(Setup(network=network, image_shape=(3, 32, 32), lr=lr, options=options, **common))
    method.begin_task(int(case["old_tasks"]))
    student = case.under("student.")
    fill(student, student.pop("classifier.weight"))
    for linear, name in ((method.projection, "E1"), (method.old_projection, "E2")):
        linear.double().load_state_dict({"weight": case[f"{name}.weight"], "bias": case[f"{name}.bias"]})
    return method


def everything(method, n_seen):
    """A copy of the network's tensors, of its classifier the rows of classes seen, and of the projections'."""
    state = copy.deepcopy(method.network.state_dict())
    state["classifier.weight"] = state["classifier.weight"][:n_seen]
    for linear, name in ((method.projection, "E1"), (method.old_projection, "E2")):
        state |= {f"{name}.{key}": value for key, value in copy.deepcopy(linear.state_dict()).items()}
    return state


def assert_step(assert_close, case, before, after):
    """All tensors that are stored, with every running statistic, and how far each trainable one has come."""
    stored = {name.removeprefix("after."): value for name, value in case.items() if name.startswith("after.")}
    assert sum(name.endswith((".mean", ".var")) for name in stored) == 40
    for name, value in stored.items():
        own = after[ours(name.removesuffix("_first4rows"))]
        assert_close(own[: len(value)] if name.endswith("_first4rows") else own, value, name)
    for name, norm in zip(map(ours, case["step_norm_names"].tolist()), case["step_norms"], strict=True):
        assert_close((after[name] - before[name]).norm(), norm, name)


def test_golden_step_of_the_fourth_task(golden, assert_close, in_fourth_task):
    fixture, method = golden("rdfcil_refinement"), in_fourth_task
    case, n_seen = fixture.under("observe."), int(fixture["n_seen"])
    weights_of_terms = dict(zip(("ce", "hkd", "rkd"), fixture["lambdas"], strict=True))
    pixels, before = fixture["images"][0], everything(method, n_seen)
    batch = Batch(pixels, method.views.plain(pixels), fixture["labels"][0])
    terms = method.terms(batch, fixture["synthetic_images"][0])
    for ours_is, theirs in (("stream", "ce"), ("distillation", "hkd"), ("relations", "rkd")):
        assert_close(terms[ours_is], weights_of_terms[theirs] * case[f"loss_{theirs}"], theirs)
    assert_close(total(terms), case["loss_total"])
    method.descend(terms)
    assert_step(assert_close, case, before, everything(method, n_seen))


def test_golden_refinement_moves_running_statistics_by_the_made_up_images_twice(golden, assert_close, in_fourth_task):
    fixture, method = golden("rdfcil_refinement"), in_fourth_task
    ce, hkd, _ = fixture["lambdas"]
    for step in range(2):
        case, n_seen = fixture.under(f"refine{step + 1}."), int(fixture["n_seen"])
        pixels, before = fixture["images"][step], everything(method, n_seen)
        batch = Batch(pixels, method.views.plain(pixels), fixture["labels"][step])
        terms = method.refinement_terms(batch, fixture["synthetic_images"][step])
        assert_close(terms["refinement"], ce * case["loss_fit"])
        assert_close(terms["distillation"], hkd * case["loss_hkd"])
        assert_close(total(terms), case["loss_total"])
        method.descend(terms, method.refiner)
        assert_step(assert_close, case, before, everything(method, n_seen))


@pytest.fixture
def method_as_described():
    """R-DFCIL as its authors describe it, refining in its second task of two classes each."""
    network = make_network(RDfcil, 6, width=2, image_shape=(3, 8, 8)).double()
    views = Views(*CIFAR, dtype=torch.float64)
    shape = {"tasks": Tasks.of_sizes([2, 2, 2]), "image_shape": (3, 8, 8)}
    method = RDfcil(Setup(network=network, views=views, options=RDfcilOptions(noise=8, variant="text"), **shape))
    method.synthesizer.double()
    method.begin_task(1)
    method.begin_phase("refine")
    with torch.no_grad():
        network.classifier.weight.add_(torch.randn(6, network.feature_size))
    return method


def refinement_batch():
    pixels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    return Batch(pixels, torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([2, 3, 3, 3]))


def test_refinement_as_described_weighs_classes_by_how_often_they_came(assert_close, method_as_described):
    method, batch, counts = method_as_described, refinement_batch(), torch.zeros(4, dtype=torch.float64)
    _, hkd, _ = weights(2, 2)
    for _ in range(2):
        made_up = torch.randn(4, 3, 8, 8, dtype=torch.float64)
        loss = total(method.head_terms(batch, made_up))
        with torch.no_grad():
            features = method.network.eval().features(torch.cat([batch.images, made_up]))
            logits = features @ method.network.classifier.weight[:4].T
            old_logits = method.old.network(made_up)[:, :2]
            labels = torch.cat([batch.labels, old_logits.argmax(1)])
        for label in labels:
            counts[label] += 1
        each = -logits.log_softmax(1)[range(8), labels]
        fit = (each / counts[labels]).sum() / (1 / counts[labels]).sum()
        assert_close(loss, 0.5 * fit + hkd * (logits[4:, :2] - old_logits).abs().mean())
        method.network.train()
    assert counts.sum() == 16
    method.begin_phase("refine")
    assert not method.counts.any()


def test_refinement_as_described_trains_the_rows_of_classes_seen_and_nothing_else(method_as_described):
    method = method_as_described
    before = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    method.make_up = lambda count, training: torch.randn(count, 3, 8, 8, dtype=torch.float64)
    for _ in range(3):
        method.refine(refinement_batch())
    moved = {name for name, tensor in method.network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"classifier.weight"}
    rows = (method.network.classifier.weight != before["classifier.weight"]).any(1)
    assert rows.tolist() == 4 * [True] + 2 * [False]


def test_what_is_kept_counts_fully_as_described(method_as_described):
    logits, old_logits = torch.tensor([[1.0, 5.0, 9.0]]), torch.tensor([[2.0, 2.0, 7.0]])
    assert method_as_described.keep(logits, old_logits).item() == 2


def test_a_batch_of_one_certain_class_is_as_one_sided_as_can_be():
    logits = torch.tensor([[200.0, 0.0], [200.0, 0.0]], requires_grad=True)
    loss = one_sidedness(logits)
    assert loss.item() == pytest.approx(1)
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


@pytest.mark.parametrize("option", ["inversion_steps", "noise", "refinement_epochs"])
@pytest.mark.parametrize("number", [0, 10**9])
def test_numbers_that_no_machine_could_do_are_refused(option, number):
    with pytest.raises(UsageError, match=f"^{option} must be at least 1 and at most 10+, not {number}$"):
        make_settings(method="r-dfcil", **{option: number})
