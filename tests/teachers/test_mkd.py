import copy

import pytest
import torch

from cler import Learner, ResNet18
from cler.config.making import make_settings
from cler.data.views import Views
from cler.engine import train
from cler.errors import UsageError
from cler.methods import METHODS, Setup
from cler.methods.loss import total
from cler.promises import check, toy, training
from cler.promises.state import differences
from cler.runs.networks import load_network, save_network
from cler.streams import Batch, Tasks
from cler.teachers.base import Lesson
from cler.teachers.distillation import distillation
from cler.teachers.mkd import Mkd, MkdOptions
from toys import CIFAR, given_crops, ours

TEACHABLE = [name for name, method in METHODS.items() if method.teachable]


def golden_network(golden, load_golden, name):
    network = ResNet18(20, width=4).double()
    load_golden(network, golden(f"frontier/{name}"))
    return network


def parameters_of(network):
    return {name: each.detach().clone() for name, each in network.named_parameters()}


GOLDEN = {
    "er": ["mkd_crops"],
    "er_ace": ["draw1_crops", "mkd_crops"],
    "derpp": ["draw1_crops", "draw2_crops", "mkd_crops"],
}
"""The views that are drawn in a step, beside that of the stream."""


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_steps(golden, load_golden, assert_close, case):
    """Two steps from two networks, and what answers after them."""
    fixture = golden("frontier/mkd")
    found = fixture.under(f"{case}.")
    network, views = golden_network(golden, load_golden, "net_nf4"), Views(*CIFAR, dtype=torch.float64)
    weight, temperature = float(fixture["kd_lambda"]), float(fixture["temperature"])
    options = MkdOptions(mkd_rate=float(fixture["alpha"]), mkd_weight=weight, mkd_temperature=temperature)
    teacher = Mkd(network, options)
    load_golden(teacher.network, golden("frontier/peer_nf4"))
    method = METHODS[case.replace("_", "-")]
    weights = {"alpha": float(fixture["derpp_alpha"]), "beta": float(fixture["derpp_beta"])}
    method = method(
        Setup(
            network=network,
            views=views,
            tasks=Tasks.of_sizes([5] * 4),
            image_shape=tuple(fixture["buffer_images"].shape[1:]),
            teacher=teacher,
            options=method.Options(**weights) if case == "derpp" else method.Options(),
            lr=float(fixture["lr"]),
            buffer=len(fixture["buffer_labels"]),
            replay_batch=fixture["draw1"].shape[1],
        )
    )
    buffer = method.buffer
    buffer.extra = {name: each.double() for name, each in buffer.extra.items()}
    kept = {name: fixture[f"buffer_{name}"] for name in buffer.extra}
    buffer.add(fixture["buffer_images"], fixture["buffer_labels"], **kept)
    offered = []
    buffer.add = lambda *batch, **extra: offered.append(extra)  # the fixture replays what was there before
    if hasattr(method, "seen"):
        method.seen.fill_(True)
    method.begin_task(1)
    before = {"": parameters_of(network), "teacher.": parameters_of(teacher.network)}
    for step, (pixels, labels) in enumerate(zip(fixture["stream_images"], fixture["stream_labels"], strict=True)):
        views.view = given_crops(*(fixture[name][step] for name in ("stream_crops", *GOLDEN[case])))
        draws = iter([fixture["draw1"][step], fixture["draw2"][step]])
        buffer.draw_slots = lambda count, draws=draws: next(draws)
        terms = method.observe(Batch(pixels, views.augmented(pixels), labels))
        assert_close(total(terms), found["loss_total"][step])
        if "loss_ce_mkd" in found:
            assert_close(terms["strong cross-entropy"], found["loss_ce_mkd"][step])
        assert_close(terms["strong distillation"], weight / 2 * found["loss_kd_aug"][step])
        assert_close(terms["raw distillation"], weight / 2 * found["loss_kd_raw"][step])
        for name in ("loss_stream", "loss_replay", "loss_replay_unweighted"):
            if name in found:
                assert_close(terms[name.split("_")[1]], found[name][step] * (weights["beta"] if "un" in name else 1))
    if "stored_logits" in found:
        assert_close(torch.stack([each["logits"] for each in offered]), found["stored_logits"])
    for kind, each in {"": network, "teacher.": teacher.network}.items():
        state = each.state_dict()
        stored = fixture.under(f"{case}.{kind}after.")
        assert any(name.endswith(".mean") for name in stored)
        for name, value in stored.items():
            assert_close(state[ours(name)], value, f"{kind}{name}")
        names = [ours(name) for name in found[f"{kind}step_norm_names"]]
        assert set(names) == before[kind].keys()
        for name, norm in zip(names, found[f"{kind}step_norms"], strict=True):
            assert_close((state[name] - before[kind][name]).norm(), norm, f"{kind}{name}")
    with torch.no_grad(), method.answering():
        assert_close(method.network.classifier.weight, found["evaluated.classifier.weight"])
        assert_close(method.logits(views.plain(fixture["test_images"])), found["evaluated_logits"])


def test_golden_distillation(golden, assert_close):
    fixture = golden("frontier/mkd")
    student = fixture["kd.student_logits"].requires_grad_()
    loss = distillation(fixture["kd.teacher_logits"], student, float(fixture["temperature"]))
    loss.backward()
    assert_close(loss, fixture["kd.loss"])
    assert_close(student.grad, fixture["kd.grad_student"])


@pytest.mark.parametrize("method", TEACHABLE)
def test_it_teaches_replay_and_stream_beside_what_the_method_learns_itself(method, monkeypatch):
    """The method's own terms are those without it, but for experience replay, whose only one it replaces."""
    alone, taught = (toy.in_later_task(toy.make_run(method, teacher="mkd")) for _ in range(2))
    alone.method.teacher = None
    replayed, lessons = [], []
    sample, lesson = taught.method.buffer.sample, taught.method.teacher.lesson
    monkeypatch.setattr(
        taught.method.buffer, "sample", lambda *a, **k: replayed.append(sample(*a, **k)) or replayed[-1]
    )
    monkeypatch.setattr(taught.method.teacher, "lesson", lambda *a: lessons.append(lesson(*a)) or lessons[-1])
    batch = taught._batch(torch.arange(8))
    own, terms = alone.method.observe(alone._batch(torch.arange(8))), taught.method.observe(batch)
    ours = ["strong cross-entropy", "strong distillation", "raw distillation"]
    assert list(terms) == ([] if method == "er" else list(own)) + ours
    assert all(torch.allclose(term, own[name], atol=1e-5) for name, term in terms.items() if name in own)
    (*_, replay), (given,) = replayed, lessons
    for name, stream in (("pixels", batch.pixels), ("labels", batch.labels)):
        labeled = getattr(replay, name)[-taught.method.setup.replay_batch :]  # the last draw, where there are two
        assert torch.equal(getattr(given, name), torch.cat([labeled, stream]))


@pytest.mark.parametrize("method", TEACHABLE)
def test_what_is_taught_are_the_logits_of_its_images(method, monkeypatch):
    run = toy.in_later_task(toy.make_run(method, teacher="mkd"))
    lessons, lesson = [], run.method.teacher.lesson
    monkeypatch.setattr(run.method.teacher, "lesson", lambda *a: lessons.append(lesson(*a)) or lessons[-1])
    before = copy.deepcopy(run.method.network)
    terms = run.method.observe(run._batch(torch.arange(8)))
    (given,) = lessons
    expected = given.terms({name: before(images) for name, images in given.images.items()})
    assert expected.keys() <= terms.keys()
    assert all(torch.allclose(terms[name], value, atol=1e-5) for name, value in expected.items())


@pytest.mark.parametrize("method", TEACHABLE)
def test_what_it_teaches_is_learned(method):
    """With CLER; it follows quickly, since the stream is short."""
    settings = {"lr": 0.05, "epochs": 4, "weight": 1.0, "mkd_rate": 0.3}
    training.learns(method, "jigsaw", teacher="mkd", tries=[settings], least=40, kept=60, seeds=(1,))


@pytest.mark.parametrize("method", [name for name in TEACHABLE if name != "pcr"])
def test_it_teaches_the_stream_alone_before_there_is_something_to_replay(method, monkeypatch):
    run = toy.make_run(method, teacher="mkd")
    run.begin_task(0)
    lessons, lesson = [], run.method.teacher.lesson
    monkeypatch.setattr(run.method.teacher, "lesson", lambda *a: lessons.append(lesson(*a)) or lessons[-1])
    batch = run._batch(torch.arange(8))
    terms = run.method.observe(batch)
    (given,) = lessons
    assert torch.equal(given.pixels, batch.pixels)
    assert torch.equal(given.labels, batch.labels)
    assert {"strong cross-entropy", "strong distillation", "raw distillation"} <= terms.keys()


def test_a_teacher_that_shows_what_no_method_knows_is_refused(monkeypatch):
    run = toy.in_later_task(toy.make_run("er", teacher="mkd"))
    monkeypatch.setattr(Mkd, "lesson", lambda *_: Lesson(None, None, {"strong": None, "upside down": None}, None))
    with pytest.raises(UsageError, match=r"^teacher mkd shows strong, upside down; er can be shown strong, raw$"):
        run.step()


def test_pcr_learns_nothing_before_there_is_something_to_replay():
    run = toy.make_run("pcr", teacher="mkd")
    run.begin_task(0)
    before = parameters_of(run.method.network)
    run.step()
    assert not differences(before, parameters_of(run.method.network))
    run.step()
    assert differences(before, parameters_of(run.method.network))


def test_er_learns_the_first_batch_alone():
    run = toy.make_run("er", teacher="mkd")
    run.begin_task(0)
    before = parameters_of(run.method.network)
    run.step()
    assert differences(before, parameters_of(run.method.network))


def test_the_teacher_begins_as_a_copy_and_follows_slowly_in_single_precision():
    run = toy.make_run("er-ace", "jigsaw", teacher="mkd", precision="bf16", mkd_rate=0.25)
    network, teacher = run.method.network, run.method.teacher.network
    assert not differences(teacher.state_dict(), network.state_dict())
    before = parameters_of(teacher)
    run.begin_task(0)
    run.step()
    assert teacher.stem.conv.working is None
    after, learned = parameters_of(teacher), parameters_of(network)
    assert differences(after, before)
    assert all(torch.allclose(after[name], value.lerp(learned[name], 0.25)) for name, value in before.items())
    moved = differences(dict(teacher.named_buffers()), dict(network.named_buffers()))
    assert {name for name, _ in teacher.named_buffers() if "running" in name} == set(moved)


def test_the_network_that_is_kept_is_the_one_that_answers(tmp_path):
    run = toy.make_run("er", teacher="mkd")
    train([run])
    save_network(tmp_path, run, make_settings(method="er", teacher="mkd", tasks=2, width=4, buffer=16))
    kept, network = load_network(tmp_path), run.method.network
    taught = parameters_of(run.method.teacher.network)
    wanted = {name: (value + taught[name]) / 2 for name, value in parameters_of(network).items()}
    assert all(torch.allclose(value, wanted[name]) for name, value in kept.named_parameters())
    assert not differences(dict(kept.named_buffers()), dict(network.named_buffers()))


def test_a_learner_is_taught_answers_saves_and_exports_with_it(tmp_path):
    """With a network of one's own that has PyTorch's batch norm, which counts its batches."""
    data = toy.colors(size=16)
    images, labels = data.train_images.permute(0, 2, 3, 1).numpy(), data.train_labels.tolist()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    own = {"network": toy.small_network}
    learner = Learner("er", "none", teacher="mkd", image_size=16, buffer=20, device="cpu", **own)
    learner.partial_fit(images[order], [labels[i] for i in order])
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", **own)
    for each in (learner, again):
        each.partial_fit(images[:20], range(100, 120))  # its network grows
    assert (again.predict_proba(images) == learner.predict_proba(images)).all()
    again.export(tmp_path / "classifier.pt2")
    exported = torch.export.load(tmp_path / "classifier.pt2").module()(data.train_images).numpy()
    assert abs(exported - again.predict_proba(images)).max() < 1e-4


def test_a_method_that_it_cannot_teach_is_refused_in_one_line():
    line = f"teacher mkd cannot teach cope; it can teach {', '.join(TEACHABLE)}"
    with pytest.raises(UsageError) as refused:
        make_settings(method="cope", teacher="mkd")
    assert (str(refused.value), refused.value.parameter) == (line, "teacher")
    with pytest.raises(UsageError, match=line):
        Learner("cope", "none", teacher="mkd", image_size=16).partial_fit(torch.zeros(1, 3, 16, 16), [0])
    assert make_settings(method="er", teacher="mkd").options == {
        "mkd_rate": 0.01, "mkd_weight": 5.5, "mkd_temperature": 4.0
    }  # fmt: skip


def test_evaluation_changes_nothing():
    """What answers is made anew each time."""
    training.evaluation_changes_nothing("er", teacher="mkd")


def test_it_is_checked_with_methods_that_it_can_teach(monkeypatch):
    tried = []
    monkeypatch.setattr(
        "cler.promises.checking.TRAINING", {"": lambda *pair, **changes: tried.append((*pair, changes))}
    )
    assert check("mkd").passed
    assert tried == [(method, "jigsaw", {"teacher": "mkd"}) for method in ("er-ace", "er")]
