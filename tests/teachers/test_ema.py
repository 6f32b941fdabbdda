import copy

import pytest
import torch

from cler import Learner, ResNet18
from cler.config.making import make_settings
from cler.data.views import Views
from cler.engine import train
from cler.engine.evaluate import evaluate
from cler.errors import UsageError
from cler.methods import METHODS, Setup
from cler.methods.finetune import Finetune
from cler.methods.loss import total
from cler.promises import toy
from cler.promises.state import differences, tensors_of
from cler.runs.networks import load_network, save_network
from cler.streams import Batch, Tasks
from cler.teachers.ema import Ema, EmaOptions
from toys import CIFAR, ours


def test_golden_average(golden, load_golden, assert_close):
    """Four plain steps, the momentum changing after the first task as the fixture has it."""
    fixture = golden("frontier/ema")
    network = ResNet18(20, width=4).double()
    load_golden(network, golden("frontier/net_nf4"))
    before = copy.deepcopy(network.state_dict())
    views = Views(*CIFAR, dtype=torch.float64)
    momentum, lr = fixture["momentum"].tolist(), float(fixture["lr"])
    teacher = Ema(network, EmaOptions(ema_momentum=momentum[-1], ema_first_momentum=momentum[0]))
    method = Finetune(
        Setup(
            network=network,
            views=views,
            tasks=Tasks.of_sizes([5] * 4),
            image_shape=(3, 32, 32),
            teacher=teacher,
            lr=lr,
        )
    )
    for step, (pixels, labels) in enumerate(zip(fixture["images"], fixture["labels"], strict=True)):
        method.begin_task(0 if momentum[step] == momentum[0] else 1)
        loss = total(method.observe(Batch(pixels, views.plain(pixels), labels)))
        assert_close(loss, fixture["losses"][step])
        average = teacher.average.state_dict()
        for name, value in fixture.under(f"step{step}.after.").items():
            assert_close(average[ours(name)], value, f"step {step}, {name}")
    for kind, state in {"net": network.state_dict(), "average": average}.items():
        for name, value in fixture.under(f"{kind}.after.").items():
            assert_close(state[ours(name)], value, f"{kind}, {name}")
        names, lengths = fixture[f"{kind}.step_norm_names"], fixture[f"{kind}.step_norms"]
        for name, norm in zip(map(ours, names.tolist()), lengths, strict=True):
            assert_close((state[name] - before[name]).norm(), norm, f"{kind}, {name}")
    images = views.plain(fixture["test_images"])
    with torch.no_grad(), method.answering():
        assert_close(method.logits(images), fixture["average.test_logits"])
    with torch.no_grad():
        assert_close(network.eval()(images), fixture["net.test_logits"])


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("method", METHODS)
def test_what_is_trained_is_what_is_trained_without_it(method):
    alone, averaged = toy.trained(method), toy.trained(method, teacher="ema")
    assert not differences(tensors_of(averaged.method.network), tensors_of(alone.method.network))
    assert differences(tensors_of(averaged.method.teacher.average), tensors_of(alone.method.network))
    with averaged.method.unaided():
        found = evaluate(averaged.method, averaged.stream, averaged.views, range(averaged.stream.n_tasks))
    assert found == {name: rows[-1] for name, rows in alone.accuracy.items()}


def test_it_averages_single_precision_not_working_copies():
    run = toy.make_run("er-ace", teacher="ema", precision="bf16")
    train([run])
    layer = run.method.teacher.average.stem.conv
    assert layer.working is None
    assert layer.weight.dtype == torch.float32
    assert not torch.equal(layer.weight, layer.weight.bfloat16().float())


def test_the_network_that_is_kept_is_the_one_that_answers(tmp_path):
    run = toy.make_run("er-ace", teacher="ema")
    train([run])
    settings = make_settings(method="er-ace", teacher="ema", tasks=2, width=4, buffer=16)
    save_network(tmp_path, run, settings)
    kept = load_network(tmp_path).state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in run.method.teacher.average.state_dict().items())


def test_a_learner_answers_saves_and_exports_with_it(tmp_path):
    data = toy.colors(size=16)
    images, labels = data.train_images.permute(0, 2, 3, 1).numpy(), data.train_labels.tolist()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    made = {}
    for teacher in ("none", "ema"):
        learner = Learner("er-ace", "none", teacher=teacher, image_size=16, width=4, buffer=20, device="cpu")
        made[teacher] = learner.partial_fit(images[order], [labels[i] for i in order])
    assert (made["ema"].predict_proba(images) != made["none"].predict_proba(images)).any()
    made["ema"].save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors")
    for learner in (made["ema"], again):
        learner.partial_fit(images[:20], range(100, 120))  # its network grows
    assert (again.predict_proba(images) == made["ema"].predict_proba(images)).all()
    again.export(tmp_path / "classifier.pt2")
    exported = torch.export.load(tmp_path / "classifier.pt2").module()(data.train_images).numpy()
    assert abs(exported - again.predict_proba(images)).max() < 1e-4


def test_its_settings_mean_nothing_without_it():
    with pytest.raises(UsageError, match="ema_momentum"):
        make_settings(method="er-ace", ema_momentum=0.9)
    with pytest.raises(UsageError, match="did you mean 'ema'"):
        make_settings(method="er-ace", teacher="emma")
    assert make_settings(method="er-ace", teacher="ema").options["ema_momentum"] == 0.99
