import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from cler import Learner
from cler.methods.loss import total
from cler.methods.pcr import VARIANTS, Pcr, PcrOptions, occurrences, pcr_loss, scd_loss
from cler.nets.cosine import CosineClassifier, unit
from cler.promises import toy, training
from cler.streams import Batch


def test_golden_loss(golden, assert_close):
    fixture = golden("frontier/pcr")
    features, proxies, labels = (fixture[f"loss.{name}"] for name in ("features", "proxies", "labels"))
    for each in (features, proxies):
        each.requires_grad_()
    logits = unit(features) @ unit(proxies).T / fixture["temperature"]
    loss = pcr_loss(logits, labels, occurrences(labels, logits))
    loss.backward()
    assert_close(loss, fixture["loss.value"])
    assert_close(features.grad, fixture["loss.grad_features"])
    assert_close(proxies.grad, fixture["loss.grad_proxies"])


@pytest.mark.parametrize("variant", ["pcr", "hpcr"])
def test_golden_steps(golden, before_golden_steps, assert_after, assert_close, variant):
    fixture = golden("frontier/pcr")
    proxies, temperature = fixture["proxies"], float(fixture["temperature"])
    options = PcrOptions(
        variant=variant,
        pcd_weight=float(fixture["hpcr.pcd_weight"]),
        scd_weight=float(fixture["hpcr.scd_weight"]),
        scale_least=float(fixture["hpcr.scale_min"]),
        scale_most=float(fixture["hpcr.scale_max"]),
        period=int(fixture["hpcr.steps_per_task"]),
    )
    method = before_golden_steps(
        Pcr,
        fixture,
        torch.cat([fixture["stream_crops"], fixture["draw_crops"]], 1),
        classifier=partial(CosineClassifier, n_classes=len(proxies), temperature=temperature),
        replay_batch=len(fixture["draw"][0]),
        options=options,
    )
    with torch.no_grad():
        method.proxies.weight.copy_(proxies)
    coming = iter(fixture["draw"])
    method.buffer.draw_slots = lambda count: next(coming)
    method.begin_task(1)
    method.steps.fill_(int(fixture["hpcr.step_in_task"][0]))
    before = copy.deepcopy(method.network.state_dict())
    for step, (pixels, labels) in enumerate(zip(fixture["stream_images"], fixture["stream_labels"], strict=True)):
        scale = method.scale
        terms = method.observe(Batch(pixels, pixels.double(), labels))
        assert_close(total(terms), fixture[f"{variant}.loss_total"][step])
        assert_close(terms["contrast"], scale * fixture[f"{variant}.loss_pcr"][step])
        offered, _, extra = method.offered[step]
        assert torch.equal(offered, pixels)
        if variant == "hpcr":
            assert int(method.steps) == int(fixture["hpcr.step_in_task"][step]) + 1
            assert_close(extra["logits"], fixture["hpcr.stored_logits"][step])
            assert_close(extra["features"], fixture["hpcr.stored_features"][step])
    assert_after(method.network, fixture, variant, before, lambda name: name.replace("proxies", "classifier.weight"))
    seen = int(fixture["seen_classes"])
    method.seen.fill_(False)[:seen] = True
    with torch.no_grad(), method.answering():
        logits = method.logits(method.views.plain(fixture["test_images"]))
    assert_close(logits[:, :seen], fixture[f"{variant}.test_logits"][:, :seen])
    assert logits[:, seen:].eq(-math.inf).all()


def test_the_loss_is_the_mean_over_pairs_of_images_and_proxies():
    """Every image of the batch brings its proxy along: once for each, classes that occur oftener count more."""
    logits, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 2, 2, 0, 2])
    columns = logits[:, labels]  # the proxy of each image
    expected = -columns.log_softmax(1).where(labels.unsqueeze(1) == labels, 0.0).sum(1)
    expected /= (labels.unsqueeze(1) == labels).sum(1)
    assert float(pcr_loss(logits, labels, occurrences(labels, logits))) == pytest.approx(float(expected.mean()))


def test_similarities_are_distilled_without_those_to_itself():
    features, stored = torch.randn(2, 4, 6, dtype=torch.float64)
    expected = 0.0
    for row in range(4):
        others = [each for each in range(4) if each != row]
        new, old = (F.normalize(each) @ F.normalize(each)[row] / 0.5 for each in (features, stored))
        expected -= float((old[others].softmax(0) * new[others].log_softmax(0)).sum()) / 4
    assert float(scd_loss(features, stored, 0.5)) == pytest.approx(expected, rel=1e-5)
    features, stored = features.float(), stored.float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = scd_loss(features, stored, 0.5)
    assert torch.equal(loss, scd_loss(features, stored, 0.5))  # nothing is rounded
    features.requires_grad_()
    scd_loss(features, stored, 0.5).backward()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_learned_until_there_is_something_to_replay(variant):
    run = toy.make_run("pcr", variant=variant)
    run.begin_task(0)
    before = copy.deepcopy(dict(run.method.network.named_parameters()))
    moved = []
    for _ in range(2):
        run.step()
        moved.append([not torch.equal(each, before[name]) for name, each in run.method.network.named_parameters()])
    assert not any(moved[0])
    assert all(moved[1])


def test_hpcr_distills_from_the_second_task_on_and_its_scale_starts_over():
    run = toy.make_run("pcr", variant="hpcr", replay_batch=4, period=4)
    method, scales = run.method, []
    for task, names in enumerate([["contrast"], ["contrast", "proxy distillation", "sample distillation"]]):
        run.begin_task(task)
        for _ in range(3):
            scales.append(float(method.scale))
            terms = method.observe(run._batch(torch.arange(8) + 48 * task))
        assert list(terms) == names
    least, most = method.options.scale_least, method.options.scale_most
    middle = (least + most) / 2
    assert scales == pytest.approx([0, middle, most, least, middle, most])


def test_hpcr_resumes_to_the_bit(tmp_path):
    training.resumes("pcr", variant="hpcr", stops=[(1, 1)], folder=tmp_path, data=toy.colors())


def test_hpcr_learns_without_tasks_and_gets_more_classes():
    images, labels = toy.colors().train_images, toy.colors().train_labels.tolist()
    usual = {"image_size": 12, "width": 2, "buffer": 16, "device": "cpu"}
    learner = Learner("pcr", "none", variant="hpcr", **usual).partial_fit(images[::4], labels[::4])
    learner.partial_fit(images[:26], [100 + number % 20 for number in range(26)])
    method = learner._core.method
    assert method.task == 1  # so that it distills
    assert method.buffer.extra["logits"].shape[1] == method.n_classes > 16
    assert learner.predict_proba(images).shape == (len(images), 24)
