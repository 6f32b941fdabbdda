import pytest
import torch
import torch.nn.functional as F

from cler.data.views import Views, crop_and_flip
from cler.methods import Setup
from cler.methods.loss import total
from cler.methods.mose import Mose, MoseOptions, Sizes, contrastive_loss, random_view
from cler.nets.mose import MoseNetwork
from cler.promises import toy
from cler.streams import Batch, Tasks
from toys import CIFAR
from toys import ours as usual_name

CONVOLUTIONS = ("depth1", "point1", "depth2", "point2")


def ours(name):
    """The name that our network has for a tensor of the golden files."""
    return f"{name}.weight" if name.endswith(CONVOLUTIONS) else usual_name(name)


def golden_method(golden, task):
    """MOSE before the golden step; the views are handed out as stored."""
    fixture, weights = golden("frontier/mose"), golden("frontier/mose_net_nf4")
    network = MoseNetwork(len(weights["expert.0.classifier.bias"]), width=len(weights["stem.conv"])).double()
    network.load_state_dict({ours(name): value for name, value in weights.items()}, strict=True)
    capacity = len(fixture["buffer_labels"])
    setup = Setup(
        network=network,
        views=Views(*CIFAR, dtype=torch.float64),
        tasks=Tasks.of_sizes([5] * 4),
        image_shape=tuple(fixture["buffer_images"].shape[1:]),
        lr=float(fixture["lr"]),
        buffer=capacity,
        replay_batch=capacity,
        options=MoseOptions(temperature=float(fixture["temperature"])),
    )
    method = Mose(setup)
    method.buffer.pixels[:capacity] = fixture["buffer_images"]
    method.buffer.labels[:capacity] = fixture["buffer_labels"]
    method.buffer.offered.fill_(capacity)
    method.buffer.filled = capacity
    method.begin_task(task)
    present, past, again = len(fixture["task_draw"]), len(fixture["past_draw"]), int(fixture["new_in_balanced"])
    method.sizes = lambda stream: Sizes(present, again, past) if task else Sizes(present, 0, 0)
    draws = iter([fixture["task_draw"], fixture["past_draw"] if task else fixture["past_draw"][:0]])
    method.buffer.draw_slots_of = lambda count, classes: (next(draws), torch.tensor(True))
    method.random_view = stored_views(method, fixture, task)
    return method


def stored_views(method, fixture, task):
    """The file has balanced images with those of the stream first; ours has them last."""

    def view(images):
        pixels = ((images + method.views._shift) / method.views._scale).round()
        n_new, again = len(fixture["new_crops"]) // 2, int(fixture["new_in_balanced"]) if task else 0
        crops = []
        for new, balanced in zip(fixture["new_crops"].chunk(2), fixture["balanced_crops"].chunk(2), strict=True):
            crops += [new, balanced[again:], balanced[:again]] if task else [new]
        assert len(images) == 2 * n_new + (len(fixture["balanced_crops"]) if task else 0)
        return method.views.plain(crop_and_flip(pixels, torch.cat(crops)))

    return view


@pytest.mark.parametrize(("case", "task"), [("later", 2), ("first", 0)])
def test_golden_step(golden, assert_close, case, task):
    fixture = golden("frontier/mose")
    method = golden_method(golden, task)
    if task:
        assert torch.equal(method.present_classes, fixture["task_classes"])
    before = {name: value.clone() for name, value in method.network.state_dict().items()}
    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    terms = method.observe(Batch(pixels, torch.full(pixels.shape, torch.nan), labels))
    names = {"contrastive": "contrastive", "ce": "cross-entropy", "distillation": "distillation"}
    for stored, name in names.items():
        assert_close(terms[name], fixture[f"{case}.loss_{stored}"], name)
    assert_close(total(terms), fixture[f"{case}.loss_total"])
    state = method.network.state_dict()
    for name, value in fixture.under(f"{case}.after.").items():
        assert_close(state[ours(name)], value, name)
    keys = list(map(ours, fixture[f"{case}.step_norm_names"]))
    assert set(keys) == {name for name, _ in method.network.named_parameters()}
    for name, norm in zip(keys, fixture[f"{case}.step_norms"], strict=True):
        assert_close((state[name] - before[name]).norm(), norm, name)
    if case == "later":
        check_answers(method, fixture, assert_close)


def check_answers(method, fixture, assert_close):
    """By the nearest class mean of what the buffer held before the step."""
    capacity = len(fixture["buffer_labels"])
    method.buffer.pixels[:capacity] = fixture["buffer_images"]
    method.buffer.labels[:capacity] = fixture["buffer_labels"]
    images, classes = method.views.plain(fixture["test_images"]), fixture["ncm.classes"]
    with torch.no_grad(), method.answering():
        assert_close(method.network.experts(images).transpose(0, 1), fixture["forward.features_eval"])
        assert_close(method.means()[0][:, classes], fixture["ncm.means"])
        logits = method.logits(images)
        assert_close(-logits[:, classes], fixture["ncm.distances"].mean(0))
        assert torch.equal(logits.argmax(1), fixture["ncm.predicted"])
        assert logits.isfinite().sum(1).tolist() == [len(classes)] * len(images)
        object.__setattr__(method, "options", MoseOptions(experts="last"))
        assert_close(-method.logits(images)[:, classes], fixture["ncm.distances"][-1])
    assert method.means is None


@pytest.mark.parametrize("case", ["supcon", "alone"])
def test_golden_contrastive_loss(golden, assert_close, case):
    fixture = golden("frontier/scr")
    projections = fixture[f"{case}.projections"].clone().requires_grad_()
    loss = contrastive_loss(projections, fixture[f"{case}.labels"], float(fixture["supcon.temperature"]))
    loss.backward()
    assert_close(loss, fixture[f"{case}.loss"])
    assert_close(projections.grad, fixture[f"{case}.grad"])


# -- its parts ---------------------------------------------------------------------------------------------------------


def test_how_many_images_come_from_where():
    """In the setting of its authors: ten of the stream, 64 replayed, ten classes in each task."""
    assert Sizes.of(64, 10, 10, 10) == Sizes(present=64, again=0, past=0)
    assert Sizes.of(64, 10, 10, 20) == Sizes(present=22, again=10, past=54)
    assert Sizes.of(64, 10, 10, 100) == Sizes(present=22, again=6, past=58)
    assert Sizes.of(64, 10, 1, 2) == Sizes(present=22, again=10, past=14)  # seven of a class


def test_a_view_is_a_window_of_the_image_that_is_gray_in_a_quarter_of_the_cases():
    size, count = 16, 2000
    ramp = torch.linspace(-1 + 1 / size, 1 - 1 / size, size)  # each pixel says where it is
    place = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size), torch.full((size, size), 9.0)])
    seen = random_view(place.expand(count, -1, -1, -1), torch.Generator().manual_seed(0))
    is_gray = (seen[:, 0] == seen[:, 2]).flatten(1).all(1)
    assert abs(float(is_gray.float().mean()) - 0.25) < 0.03
    x, y, blue = seen[~is_gray].unbind(1)
    assert torch.allclose(blue, torch.tensor(9.0))
    width, height = (each.amax((1, 2)) - each.amin((1, 2)) for each in (x, y))  # of 2, but for reflection at the border
    area = width * height / (2 - 2 / size) ** 2
    assert 0.25 < area.min() < 0.35
    assert area.max() > 0.95
    assert abs(float(area.median()) - 0.65) < 0.06
    ratio = (width / height).log()
    assert 0.25 < ratio.max() < 0.35
    assert -0.35 < ratio.min() < -0.25
    for middle in (x.mean((1, 2)), y.mean((1, 2))):
        assert abs(float(middle.mean())) < 0.02
        assert middle.min() < -0.35
        assert middle.max() > 0.35
    assert (x.diff(dim=2) > -1e-6).all()  # nothing is mirrored
    assert max(x.abs().max(), y.abs().max()) < 1


def test_the_contrastive_loss_is_computed_in_full_under_autocast():
    projections, labels = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    with torch.autocast("cpu", torch.bfloat16):
        loss = contrastive_loss(projections, labels, 0.07)
    assert torch.equal(loss, contrastive_loss(projections, labels, 0.07))


def test_a_gray_image_has_its_luminance_in_every_channel():
    seen = random_view(
        torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1).expand(50, 3, 4, 4), torch.Generator().manual_seed(0)
    )
    values = {tuple(round(each, 3) for each in row) for row in seen[:, :, 0, 0].tolist()}
    assert values == {(1.0, 2.0, 3.0), (1.815, 1.815, 1.815)}
    one_channel = torch.rand(50, 1, 4, 4)
    views = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            views.append(random_view(one_channel, torch.Generator().manual_seed(0)))
    assert torch.equal(*views)  # nothing is rounded


def test_the_stream_stands_in_for_images_that_the_buffer_has_not():
    """In the first batch of a task there are none of it in the buffer."""
    run = toy.make_run("mose")
    run.begin_task(0)
    run.step()
    run.end_task(0)
    run.begin_task(1)
    method = run.method
    batch = Batch(torch.arange(3).view(3, 1, 1, 1).expand(3, 3, 12, 12).to(torch.uint8), None, torch.tensor([2, 3, 2]))
    pixels, labels = method.replay_of(5, method.setup.tasks.of_class == 1, batch)
    assert labels.tolist() == [2, 3, 2, 2, 3]
    assert pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1]
    assert set(method.replay_of(5, method.setup.tasks.of_class != 1, batch)[1].tolist()) <= {0, 1}


def test_empty_slots_of_the_buffer_count_for_no_class():
    run = toy.make_run("mose", buffer=64)
    run.begin_task(0)
    run.step()
    method = run.method
    assert method.buffer.filled < 64
    with method.answering():
        stored = method.unit_features(method.views.plain(method.buffer.pixels[: method.buffer.filled]))
        of_zero = stored[:, method.buffer.labels[: method.buffer.filled] == 0].mean(1)
        assert torch.allclose(method.means()[0][:, 0], F.normalize(of_zero), atol=1e-6)
