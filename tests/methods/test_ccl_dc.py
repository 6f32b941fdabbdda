import dataclasses

import pytest
import torch
import torch.nn.functional as F

from cler import ResNet18
from cler.data.views import Views, crop_and_flip
from cler.errors import UsageError
from cler.methods import Setup
from cler.methods.ccl_dc import FULL, HARD, LIGHT, CclDc, CclDcOptions
from cler.methods.loss import total
from cler.nets.peers import Peers
from cler.promises import steps, toy, training
from cler.runs.networks import load_network, save_network
from cler.streams import Batch, Tasks
from cler.teachers.distillation import distillation
from toys import CIFAR, ours


def golden_network(golden, load_golden, file):
    weights = golden(f"frontier/{file}")
    network = ResNet18(len(weights["classifier.bias"]), width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    return network


def golden_method(golden, load_golden, case):
    """CCL-DC before the golden step; views are handed out as stored, each a crop of the raw images."""
    fixture = golden("frontier/ccldc")
    draws = ["draw1", "draw2"] if case == "derpp" else ["draw1"]
    images = {"stream": fixture["stream_images"]} | {draw: fixture["buffer_images"][fixture[draw]] for draw in draws}

    def stored(name, *parts):
        return tuple(
            torch.cat(each)
            for each in ([images[part] for part in parts], [fixture[f"{part}_{name}"] for part in parts])
        )

    both = ("stream", draws[-1])
    base = [(FULL, *stored("crops", *both))] if case == "er" else [(None, *stored("crops", draw)) for draw in draws]
    chain = [(name, *stored(f"chain{k}_crops", *both)) for k, name in enumerate((LIGHT, HARD, HARD), start=1)]
    coming, slots = iter([*base, *chain]), iter([fixture[draw] for draw in draws])

    def view(pixels, augment=None):
        wanted, images, crop = next(coming)
        assert augment == wanted
        return crop_and_flip(images, crop)

    views = Views(*CIFAR, dtype=torch.float64)
    views.view = view
    network = Peers([golden_network(golden, load_golden, file) for file in ("net_nf4", "peer_nf4")])
    capacity = len(fixture["buffer_labels"])
    weights = {name: float(fixture[f"derpp_{name}"]) for name in ("alpha", "beta")} if case == "derpp" else {}
    setup = Setup(
        network=network,
        views=views,
        tasks=Tasks.of_sizes([5] * 4),
        image_shape=tuple(fixture["stream_images"].shape[1:]),
        lr=float(fixture["lr"]),
        buffer=capacity,
        replay_batch=len(fixture["draw1"]),
        options=CclDcOptions(
            base=case.replace("_", "-"), temperature=float(fixture[f"{case}.kd_temperature"]), **weights
        ),
    )
    method = CclDc(setup)
    method.buffer.extra = {name: fixture["buffer_logits"].clone() for name in method.buffer.extra}
    method.buffer.draw_positions = lambda count: torch.arange(count)  # every stream image goes into the memory
    method.seen.fill_(True)
    method.buffer.pixels[:capacity] = fixture["buffer_images"]
    method.buffer.labels[:capacity] = fixture["buffer_labels"]
    method.buffer.offered.fill_(capacity)
    method.buffer.filled = capacity
    method.buffer.draw_slots = lambda count: next(slots)
    method.begin_task(3)
    return method


@pytest.mark.parametrize("case", ["er", "er_ace", "derpp"])
def test_golden_step(golden, load_golden, assert_close, case):
    """With the default weight of the distillation, which is the fixture's."""
    fixture = golden("frontier/ccldc")
    method = golden_method(golden, load_golden, case)
    peers = dict(zip(("first", "second"), method.network.members, strict=True))
    before = {name: {key: value.clone() for key, value in peer.state_dict().items()} for name, peer in peers.items()}
    losses, terms_of = [], method.terms
    method.terms = lambda *inputs: losses.append(terms_of(*inputs)) or losses[-1]

    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    images = method.views.plain(crop_and_flip(pixels, fixture["stream_crops"]))
    terms = method.observe(Batch(pixels, images, labels))

    assert_close(torch.stack([total(each) for each in losses]), fixture[f"{case}.loss_total"])
    assert_close(total(terms), fixture[f"{case}.loss_total"].sum())
    weight = fixture[f"{case}.kd_lambda"]
    assert_close(terms["distillation"], weight * fixture[f"{case}.kd_terms_in_call_order"].sum())
    for name, peer in peers.items():
        state, stored = peer.state_dict(), fixture.under(f"{case}.{name}.after.")
        assert any(each.endswith(".mean") for each in stored)
        for key, value in stored.items():
            assert_close(state[ours(key)], value, f"{name}, {key}")
        keys, norms = (fixture[f"{case}.{name}.step_norm{each}"] for each in ("_names", "s"))
        assert {ours(key) for key in keys} == {key for key, _ in peer.named_parameters()}
        for key, norm in zip(map(ours, keys), norms, strict=True):
            assert_close((state[key] - before[name][key]).norm(), norm, f"{name}, {key}")
    with torch.no_grad(), method.answering():
        answers = method.logits(method.views.plain(fixture["test_images"]))
    assert_close(answers, fixture[f"{case}.ensemble_logits"])
    assert torch.equal(method.buffer.labels[: len(labels)], labels)
    if case == "derpp":
        assert_close(method.buffer.extra["logits"][: len(labels)], fixture["derpp.stored_logits"])


def test_golden_distillation(golden, assert_close):
    fixture = golden("frontier/ccldc").under("kd.")
    student = fixture["student_logits"].clone().requires_grad_()
    loss = distillation(fixture["teacher_logits"], student, float(fixture["temperature"]))
    loss.backward()
    assert_close(loss, fixture["loss"])
    assert_close(student.grad, fixture["grad_student"])


def golden_alone(golden, load_golden, case):
    """The same step with one network, the first."""
    both = golden_method(golden, load_golden, case)
    options = CclDcOptions(base=case, networks=1)
    method = CclDc(dataclasses.replace(both.setup, network=both.network.members[0], options=options))
    method.buffer, method.seen = both.buffer, both.seen
    method.begin_task(3)
    return method


def test_one_network_teaches_itself_from_hard_to_easy(golden, load_golden, assert_close):
    """Its loss written out, from the logits of its one pass."""
    fixture = golden("frontier/ccldc")
    method, passed = golden_alone(golden, load_golden, "er"), []
    method.network.register_forward_hook(lambda module, inputs, output: passed.append(output.detach()))
    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    terms = method.observe(Batch(pixels, torch.full(pixels.shape, torch.nan), labels))
    base, x3, x0, x1, x2 = passed[0].chunk(5)
    labels = torch.cat([labels, fixture["buffer_labels"][fixture["draw1"]]])
    taught = sum(distillation(*pair, 4.0) for pair in ((x1, x0), (x2, x1), (x3, x2)))
    assert_close(terms["distillation"], 2 * taught)
    fit = sum(F.cross_entropy(each, labels) for each in (base, x0, x1, x2, x3))
    assert_close(total(terms), fit / 2 + 2 * taught)


def test_peers_begin_differently_and_both_learn_with_a_head_each():
    """Also where the initial weights are given."""
    for given in (None, toy.small_network(4)):
        run = toy.make_run("ccl-dc", "jigsaw", network=given)
        first, second = run.method.network.members
        weights = [each.classifier.weight.clone() for each in (first, second)]
        assert not torch.equal(*weights)
        heads = [each.linear.weight.clone() for each in run.method.regularizers]
        assert not torch.equal(*heads)
        toy.in_later_task(run, steps=1)
        for before, peer in zip(weights, (first, second), strict=True):
            assert not torch.equal(before, peer.classifier.weight)
        for before, each in zip(heads, run.method.regularizers, strict=True):
            assert not torch.equal(before, each.linear.weight)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("options", [{"base": "er"}, {"networks": 1}, {"base": "derpp"}])
def test_every_form_keeps_the_rule_and_resumes(options, tmp_path):
    steps.keeps_the_rule("ccl-dc", "rotation", precision="bf16", **options)
    training.resumes("ccl-dc", "rotation", folder=tmp_path, stops=[(1, 1)], **options)


def test_both_networks_are_kept(tmp_path):
    run = toy.trained("ccl-dc", network=None)
    settings = toy.make_settings(method="ccl-dc", tasks=2, width=4, buffer=16)
    save_network(tmp_path, run, settings)
    images = run.views.plain(run.stream.data.test_images)
    with torch.no_grad(), run.method.answering():
        assert torch.equal(load_network(tmp_path)(images), run.method.logits(images))


def test_weights_of_derpp_are_refused_with_another_base():
    with pytest.raises(UsageError, match=r"alpha 0.5 has no effect with base er: leave it out, or use base=derpp"):
        CclDcOptions(base="er", alpha=0.5)
