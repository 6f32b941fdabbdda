import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cler import Equivariant, ResNet18
from cler.config.making import make_settings
from cler.data.views import Views
from cler.errors import UsageError
from cler.methods import Setup
from cler.methods.cope import EMBEDDING_SIZE, CoPE, CopeOptions, evolved, ppp_loss, similarities, sums_and_counts
from cler.methods.loss import total
from cler.streams import Batch, Tasks
from toys import CIFAR, given_crops, ours, tensors

PPP_CASES = ["two_class", "single_class", "single_class_two_protos", "singletons", "mixed20", "shuffled_protos"]


def placed(rows, labels, n_classes):
    """Prototypes by class, from rows in the order of `labels`, and which classes have one."""
    prototypes = torch.zeros(n_classes, rows.shape[1], dtype=rows.dtype).index_copy(0, labels, rows)
    return prototypes, torch.zeros(n_classes, dtype=torch.bool).index_fill(0, labels, True)


def unit_rows(*shape, seed=0, dtype=torch.float64):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype))


# -- the PPP loss ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unseen", [0, 3])
@pytest.mark.parametrize("case", PPP_CASES)
def test_golden_ppp_loss(golden, assert_close, case, unseen):
    fixture = golden("cope")
    rows, fixture = fixture["ppp.prototypes"], fixture.under(f"ppp.{case}.")
    names = fixture["proto_labels"]
    prototypes, seen = placed(rows[: len(names)], names, int(names.max()) + 1 + unseen)
    prototypes[~seen] = unit_rows(int((~seen).sum()), rows.shape[1])  # what is there does not matter
    embeddings = fixture["embeddings"].requires_grad_()
    loss = ppp_loss(embeddings, fixture["labels"], prototypes, seen, float(fixture["tau"]))
    loss.backward()
    assert_close(loss, fixture["loss"])
    assert_close(embeddings.grad, fixture["grad"])


def test_golden_ppp_cases_are_all_tested(golden):
    assert {name.split(".")[1] for name in golden("cope") if name.startswith("ppp.")} == {"prototypes", *PPP_CASES}


def by_the_book(embeddings, labels, prototypes, seen, temperature):
    """The loss class by class and sample by sample, as it is written."""

    def s(a, b):
        return torch.exp(a @ b / temperature)

    total = 0.0
    for c in set(labels.tolist()):
        own, others = embeddings[labels == c], embeddings[labels != c]
        apart = [prototype for k, prototype in enumerate(prototypes) if seen[k] and k != c]

        def share(a, x, apart=apart):
            return s(a, x) / (s(a, x) + sum(s(p, x) for p in apart))

        for i, x in enumerate(own):
            near = [prototypes[c], *(other.detach() for j, other in enumerate(own) if j != i)]
            total = total + torch.log(sum(share(a, x) for a in near) / len(own))
            for other in others:
                total = total + torch.log(1 - (share(x, other) + share(prototypes[c], other)) / 2)
    return -total / len(embeddings)


@pytest.mark.parametrize("labels", [[0, 1, 1, 3, 0, 0], [2, 2, 2], [4], [0, 1, 2, 3]])
def test_the_loss_is_what_is_written(labels, assert_close):
    labels, prototypes = torch.tensor(labels), unit_rows(6, 8)
    seen = torch.tensor([True, True, True, True, True, False])
    ours = unit_rows(len(labels), 8, seed=1).requires_grad_()
    book = ours.detach().clone().requires_grad_()
    losses = ppp_loss(ours, labels, prototypes, seen, 0.3), by_the_book(book, labels, prototypes, seen, 0.3)
    for loss in losses:
        loss.backward()
    assert_close(*losses, tolerance=1e-12)
    assert_close(ours.grad, book.grad, tolerance=1e-12)


def test_two_classes_by_hand():
    """One sample of each class, on the other class's prototype: everything is 0 or 1 before the exponential.

    With e = exp(1/τ) = 2: for each sample A = 1/(1 + e) = 1/3. In each of the two pairs Z is the sum over the one other
    prototype, at which s = 1 at x_k; x and x_k are orthogonal: ½·[1/(1 + 1) + e/(e + 1)] = ½·(1/2 + 2/3) = 7/12.
    """
    axes = torch.eye(2, dtype=torch.float64)
    seen = torch.tensor([True, True])
    loss = ppp_loss(axes.flip(0), torch.tensor([0, 1]), axes, seen, 1 / math.log(2))
    assert float(loss) == pytest.approx(-(2 * math.log(1 / 3) + 2 * math.log(5 / 12)) / 2, rel=1e-12)


def test_attraction_moves_a_sample_towards_constants():
    """In a batch of one class only attraction acts; the others of the class stand still for it."""
    prototypes, seen = unit_rows(2, 4), torch.ones(2, dtype=torch.bool)
    embeddings, labels = unit_rows(3, 4, seed=1), torch.zeros(3, dtype=torch.int64)
    together = embeddings.clone().requires_grad_()
    ppp_loss(together, labels, prototypes, seen, 0.5).backward()
    for i in range(3):
        x = embeddings[i].clone().requires_grad_()
        others = [prototypes[0], *embeddings[torch.arange(3) != i]]
        away = torch.exp(prototypes[1] @ x / 0.5)
        near = torch.stack([torch.exp(a @ x / 0.5) for a in others])
        (-torch.log((near / (near + away)).mean()) / 3).backward()
        assert torch.allclose(together.grad[i], x.grad, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-3, 0.05, 10.0])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 2], [1]])
def test_the_loss_stays_finite(labels, temperature, dtype):
    """Also where samples sit exactly on prototypes, their own or another class's."""
    prototypes, seen = unit_rows(3, 4, dtype=dtype), torch.ones(3, dtype=torch.bool)
    for order in ([0, 1, 2, 2], [2, 0, 1, 0], [0, 0, 0, 0]):
        embeddings = prototypes[order][: len(labels)].clone().requires_grad_()
        loss = ppp_loss(embeddings, torch.tensor(labels), prototypes, seen, temperature)
        loss.backward()
        assert loss.dtype == dtype
        assert loss.isfinite()
        assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_prototype_asks_for_nothing(dtype):
    seen = torch.tensor([False, True, False])
    embeddings = unit_rows(5, 4, dtype=dtype).requires_grad_()
    loss = ppp_loss(embeddings, torch.full((5,), 1), unit_rows(3, 4, seed=1, dtype=dtype), seen, 0.05)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert not embeddings.grad.any()


def test_the_loss_is_computed_in_full_under_autocast():
    labels, prototypes, seen = torch.tensor([0, 1, 2, 0]), unit_rows(3, 16).float(), torch.ones(3, dtype=torch.bool)
    embeddings = unit_rows(4, 16, seed=1).float()
    with torch.autocast("cpu", torch.bfloat16):
        loss, cosines = ppp_loss(embeddings, labels, prototypes, seen, 0.05), similarities(embeddings, prototypes, seen)
    assert torch.equal(loss, ppp_loss(embeddings, labels, prototypes, seen, 0.05))
    assert torch.equal(cosines, similarities(embeddings, prototypes, seen))


# -- prototypes --------------------------------------------------------------------------------------------------------


def test_golden_prototypes_evolve(golden, assert_close):
    fixture = golden("cope").under("proto.")
    order, n_classes = fixture["labels"], len(fixture["labels"])
    replays = zip(fixture["replay_embeddings"], fixture["replay_labels"], strict=True)
    parts = [*replays, (fixture["stream_embeddings"], fixture["stream_labels"])]
    sums, counts = sums_and_counts(parts, n_classes, released=True)
    assert_close(sums[order], fixture["sum"])
    assert torch.equal(counts[order], fixture["count"])
    before, _ = placed(fixture["before"], order, n_classes)
    after = evolved(before, sums, counts, float(fixture["momentum"]))
    assert_close(after[order], fixture["after"])
    absent = counts == 0
    assert absent.any()
    assert torch.equal(after[absent], before[absent])


def test_prototypes_follow_the_mean_when_samples_are_counted():
    parts = [(torch.eye(2), torch.tensor([0, 0])), (torch.eye(2)[:1], torch.tensor([0]))]
    sums, counts = sums_and_counts(parts, 3, released=False)
    assert sums.tolist() == [[2.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert counts.tolist() == [3, 0, 0]
    before = F.normalize(torch.ones(3, 2))
    after = evolved(before, sums, counts, 0.5)
    assert torch.allclose(after[0], F.normalize(0.5 * before[0] + 0.5 * torch.tensor([2.0, 1.0]) / 3, dim=0))
    assert torch.equal(after[1:], before[1:])
    _, released = sums_and_counts(parts, 3, released=True)
    assert released.tolist() == [2 * 2, 0, 0]  # two parts, embeddings of size 2


def test_golden_prediction(golden, assert_close):
    fixture = golden("cope").under("predict.")
    expected = fixture["similarities"]
    prototypes, seen = placed(fixture["prototypes"], fixture["proto_labels"], expected.shape[1])
    outputs = fixture["net_outputs"]
    method = CoPE(setup(GivenOutputs(outputs), tasks=expected.shape[1]))
    method.prototypes.copy_(prototypes)
    method.seen.copy_(seen)
    logits = method.logits(torch.zeros(len(outputs), 3, 4, 4))
    known = expected.isfinite()
    assert known.any()
    assert torch.equal(logits.isneginf(), ~known)
    assert_close(logits[known], expected[known])


def test_prototypes_start_as_positive_directions_from_the_generator():
    drawn = [CoPE(setup(GivenOutputs(), seed=seed)).prototypes for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert (drawn[0] > 0).all()
    assert torch.allclose(drawn[0].norm(dim=1), torch.ones(len(drawn[0]), dtype=torch.float64))
    assert float((drawn[0] @ drawn[0].T).min()) == pytest.approx(0.75, abs=0.07)  # of uniform vectors: (1/2)² / (1/3)


# -- whole steps -------------------------------------------------------------------------------------------------------


class GivenOutputs(nn.Module):
    """A network whose outputs are parameters: row i for image i, whatever the image."""

    def __init__(self, outputs=None):
        super().__init__()
        self.table = nn.Parameter(unit_rows(8, EMBEDDING_SIZE, seed=7) if outputs is None else outputs)

    def forward(self, images, parts=None):
        return self.table[: len(images)]


def setup(network, *, tasks=4, seed=0, views=None, shape=(3, 4, 4), regularizers=(), lr=0.1, buffer=8, replay=4, **own):
    """What CoPE is made of, with options of its own."""
    return Setup(
        network=network,
        views=views or Views(*CIFAR, dtype=torch.float64),
        tasks=Tasks.of_sizes([1] * tasks),
        image_shape=shape,
        generator=torch.Generator().manual_seed(seed),
        regularizers=regularizers,
        lr=lr,
        buffer=buffer,
        replay_batch=replay,
        options=CopeOptions(**own),
    )


def batch_of(labels, shape=(3, 4, 4)):
    pixels = torch.zeros(len(labels), *shape, dtype=torch.uint8)
    return Batch(pixels, pixels.double(), torch.tensor(labels))


def test_with_one_class_nothing_is_learned_and_its_prototype_follows():
    network = GivenOutputs()
    method = CoPE(setup(network, momentum=0.5, variant="text"))
    weights, prototypes = network.table.detach().clone(), method.prototypes.clone()
    loss = total(method.observe(batch_of([2, 2, 2])))
    assert float(loss) == pytest.approx(0, abs=1e-12)
    assert torch.equal(network.table, weights)
    assert method.seen.tolist() == [False, False, True, False]
    moved = (method.prototypes != prototypes).any(1)
    assert torch.equal(moved, method.seen)
    mean = F.normalize(weights[:3]).mean(0)
    assert torch.allclose(method.prototypes[2], F.normalize(0.5 * prototypes[2] + 0.5 * mean, dim=0))
    method.observe(batch_of([0, 2, 2]))
    assert not torch.equal(network.table, weights)


def test_with_one_class_the_regularizer_is_still_learned():
    network = ResNet18(EMBEDDING_SIZE, width=2).double()
    method = CoPE(setup(network, shape=(3, 8, 8), regularizers=[Equivariant(network, "rotation")]))
    before = copy.deepcopy(network)
    loss = total(method.observe(batch_of([2, 2, 2], (3, 8, 8))))
    assert float(loss) > 0
    assert torch.equal(network.classifier.weight, before.classifier.weight)
    assert torch.equal(network.layer4[0].conv1.weight, before.layer4[0].conv1.weight)
    assert not torch.equal(network.layer3[0].conv1.weight, before.layer3[0].conv1.weight)
    assert all(parameter.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize("inner", [1, 3])
def test_each_inner_step_draws_its_own_replay(inner):
    method = CoPE(setup(GivenOutputs(), inner=inner))
    draws, steps, sample, descend = [], [], method.buffer.sample, method.descend
    method.buffer.sample = lambda count: draws.append(sample(count)) or draws[-1]
    method.descend = lambda terms, **options: steps.append(options) or descend(terms, **options)
    method.observe(batch_of([0, 1]))
    assert not draws  # nothing to replay yet
    assert len(steps) == inner
    method.observe(batch_of([1, 2, 0, 1]))
    assert [sorted(replay.slots.tolist()) for replay in draws] == [[0, 1]] * inner  # all that there is
    method.observe(batch_of([1, 2]))
    assert len(draws) == 2 * inner
    assert all(len(replay.slots) == 4 for replay in draws[inner:])
    assert int(method.buffer.offered) == 8


@pytest.mark.parametrize("variant", ["released", "text"])
def test_gradients_add_up_as_released_only(variant):
    network = GivenOutputs()
    method = CoPE(setup(network, variant=variant, inner=3))
    seen, own, descend = [], [], method.descend

    def watched(terms, **options):
        own.append(torch.autograd.grad(total(terms), network.table, retain_graph=True)[0])
        descend(terms, **options)
        seen.append(network.table.grad.clone())

    method.descend = watched
    method.observe(batch_of([0, 1, 2, 1]))
    expected = torch.stack(own).cumsum(0) if variant == "released" else torch.stack(own)
    assert torch.allclose(torch.stack(seen), expected, rtol=1e-12)
    method.observe(batch_of([0, 1, 2, 1]))
    assert torch.allclose(seen[3], own[3], rtol=1e-12)  # every batch begins anew


@pytest.mark.parametrize("options", [{}, {"optimizer": "adamw"}])
def test_bfloat16_gradients_add_up_in_single_precision(options):
    """Working copies hand over each step's gradient, and what was there before is not lost."""
    torch.manual_seed(0)
    network = ResNet18(EMBEDDING_SIZE, width=2)
    tasks = Tasks.of_sizes([1] * 4)
    method = CoPE(Setup(network, Views(*CIFAR), tasks, (3, 8, 8), bfloat16=True, options=CopeOptions(), **options))
    pixels = torch.randint(256, (4, 3, 8, 8)).to(torch.uint8)
    gathered, gather = [], method.working_copies.gather_gradients
    weight = network.layer2[0].conv1.weight
    method.working_copies.gather_gradients = lambda: (gather(), gathered.append(weight.grad.clone()))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        method.observe(Batch(pixels, method.views.augmented(pixels), torch.tensor([0, 1, 2, 1])))
    assert len(gathered) == method.options.inner
    assert weight.grad.dtype == torch.float32
    assert torch.allclose(weight.grad, torch.stack(gathered).sum(0))


def step_method(golden, load_golden, golden_cler, fixture, case, **options):
    """CoPE as it stands before the golden batch, every draw replaced by the stored one."""
    weights = {name: value for name, value in golden("net_nf4").items() if not name.startswith("classifier.")}
    network = ResNet18(len(fixture["classifier.bias"]), width=len(weights["stem.conv"])).double()
    load_golden(network, weights | {name: fixture[name] for name in ("classifier.weight", "classifier.bias")})
    regularizers = []
    if case != "plain":
        regularizer = golden_cler(network, "jigsaw", fixture, float(fixture[f"{case}.lambda_r"]))
        pretext_labels = iter(fixture[f"{case}.pretext_labels"])
        regularizer.draw_labels = lambda count, device: next(pretext_labels)
        regularizers = [regularizer]
    views = Views(*CIFAR, dtype=torch.float64)
    crops = [fixture["stream_crops"], *fixture["replay_crops"]]
    views.view = given_crops(*crops)
    capacity, images = len(fixture["buffer_labels"]), fixture["buffer_images"]
    made = setup(
        network,
        tasks=int(fixture["plain.proto_labels_after"].max()) + 1,
        views=views,
        shape=tuple(images.shape[1:]),
        regularizers=regularizers,
        lr=float(fixture["lr"]),
        buffer=capacity,
        replay=fixture["replay_indices"].shape[1],
        temperature=float(fixture["tau"]),
        momentum=float(fixture["momentum"]),
        inner=len(fixture["replay_indices"]),
        **options,
    )
    method = CoPE(made)
    method.seen.index_fill_(0, fixture["seen_before"], True)
    method.prototypes.index_copy_(0, fixture["proto_labels_before"], fixture["prototypes_before"])
    method.prototypes.index_copy_(0, fixture[f"{case}.new_proto_labels"], fixture[f"{case}.new_prototypes"])
    method.buffer.pixels[:capacity] = images
    method.buffer.labels[:capacity] = fixture["buffer_labels"]
    method.buffer.offered.fill_(int(fixture["offered_before"]))
    method.buffer.filled = capacity
    draws = iter(fixture["replay_indices"])
    method.buffer.draw_slots = lambda count: next(draws)
    method.buffer.draw_positions = lambda count: fixture["reservoir_draws"]
    return method


def observe_golden(method, fixture):
    """The golden batch: gives back the loss, each inner step's loss, and a layer's corner after each."""
    method.network.train()
    losses, corners, descend = [], [], method.descend
    shape = fixture["plain.layer3.1.conv2_corner_per_step"].shape[1:]

    def watched(terms, **options):
        descend(terms, **options)
        losses.append(total(terms).detach())
        corners.append(method.network.layer3[1].conv2.weight.detach()[: shape[0], : shape[1]].clone())

    method.descend = watched
    pixels = fixture["stream_images"]
    loss = total(method.observe(Batch(pixels, method.views.augmented(pixels), fixture["stream_labels"])))
    return loss, torch.stack(losses), torch.stack(corners)


@pytest.mark.parametrize("case", ["plain", "cler_jigsaw"])
def test_golden_inner_loop(golden, load_golden, golden_cler, assert_close, case):
    fixture = golden("cope_inner_loop")
    method = step_method(golden, load_golden, golden_cler, fixture, case)
    before = tensors(method)
    loss, losses, corners = observe_golden(method, fixture)
    after = tensors(method)

    assert_close(loss, fixture[f"{case}.loss_mean"])
    expected = fixture[f"{case}.ppp_losses"]
    if case != "plain":
        expected = expected + fixture[f"{case}.lambda_r"] * fixture[f"{case}.pretext_losses_unweighted"]
    assert_close(losses, expected)
    assert_close(corners, fixture[f"{case}.layer3.1.conv2_corner_per_step"])

    stored = fixture.under(f"{case}.after.")
    rows = stored.pop("classifier.weight_first16rows")
    assert_close(after["classifier.weight"][: len(rows)], rows)
    assert any(name.endswith(".mean") for name in stored)
    for name, value in stored.items():
        assert_close(after[ours(name)], value, name)
    norms = dict(zip(map(ours, fixture[f"{case}.step_norm_names"]), fixture[f"{case}.step_norms"], strict=True))
    assert norms.keys() == {name for name in after if not name.rpartition(".")[2].startswith("running_")}
    for name, norm in norms.items():
        assert_close((after[name] - before[name]).norm(), norm, name)

    order = fixture[f"{case}.proto_labels_after"]
    assert_close(method.prototypes[order], fixture[f"{case}.prototypes_after"])
    assert sorted(order.tolist()) == method.seen.nonzero().squeeze(1).tolist()
    capacity = len(fixture["buffer_labels"])
    assert torch.equal(method.buffer.labels[:capacity], fixture["buffer_labels_after"])
    everything = torch.cat([fixture["buffer_images"], fixture["stream_images"]])
    names = torch.cat([fixture["buffer_labels"], fixture["stream_labels"]])
    for image, label in zip(method.buffer.pixels[:capacity], method.buffer.labels[:capacity], strict=True):
        assert label in names[(everything == image).flatten(1).all(1)]
    assert int(method.buffer.offered) == int(fixture["offered_before"]) + len(fixture["stream_labels"])


def test_golden_inner_loop_with_gradients_cleared(golden, load_golden, golden_cler, assert_close):
    fixture = golden("cope_inner_loop")
    method = step_method(golden, load_golden, golden_cler, fixture, "plain", variant="text")
    observe_golden(method, fixture)
    after = tensors(method)
    for name, value in fixture.under("cleared.after.").items():
        assert_close(after[ours(name)], value, name)


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"variant": "relased"}, "did you mean 'released'"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"momentum": 1.5}, "momentum must be at least 0 and at most 1"),
        ({"inner": 0}, "inner must be at least 1"),
    ],
)
def test_settings_that_make_no_sense(options, complaint):
    with pytest.raises(UsageError, match=complaint):
        make_settings(method="cope", **options)
