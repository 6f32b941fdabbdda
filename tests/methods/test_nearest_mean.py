import math
from types import SimpleNamespace

import pytest
import torch

from cler import ResNet18
from cler.config.making import grid, make_settings
from cler.data.views import Views
from cler.engine import train
from cler.errors import UsageError
from cler.methods import METHODS, Setup
from cler.methods.er import ExperienceReplay
from cler.methods.nearest_mean import class_means, nearest_mean, unit_features
from cler.promises import toy
from cler.promises.state import differences, tensors_of
from cler.streams import Tasks
from toys import CIFAR


def test_golden_nearest_class_mean(golden, load_golden, assert_close):
    fixture = golden("frontier/scr")
    weights = golden("frontier/net_nf4")
    n_classes = len(weights["classifier.bias"])
    network = ResNet18(n_classes, width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    views = Views(*CIFAR, dtype=torch.float64)
    memory = fixture["memory_images"]
    setup = Setup(
        network=network,
        views=views,
        tasks=Tasks.of_sizes([n_classes]),
        image_shape=tuple(memory.shape[1:]),
        buffer=len(memory) + 3,
        replay_batch=1,
        classifier="ncm",
    )
    method = ExperienceReplay(setup)
    method.buffer.add(memory, fixture["memory_labels"])
    classes = fixture["ncm.classes"]
    with torch.no_grad(), method.answering():
        logits = nearest_mean(method)(views.plain(fixture["test_images"]))
        features = torch.nn.functional.normalize(network.features(views.plain(memory)))
        means, absent = class_means(features, fixture["memory_labels"], n_classes)
    assert_close(-logits[:, classes], fixture["ncm.distances"])
    assert torch.equal(logits.argmax(1), fixture["ncm.predicted"])
    assert_close(means[classes], fixture["ncm.means"])
    others = [number for number in range(n_classes) if number not in classes.tolist()]
    assert absent.nonzero().squeeze(1).tolist() == others
    assert (logits[:, others] == -math.inf).all()


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.replays])
def test_every_method_with_a_buffer_is_trained_as_ever_and_answers_by_it(method):
    by_network, by_means = (
        toy.make_short_run(method, teacher="ema", classifier=classifier, lr=1e-6) for classifier in ("network", "ncm")
    )
    for run in (by_network, by_means):
        train([run])
    assert not differences(tensors_of(by_means.method), tensors_of(by_network.method))
    method, stream, views = by_means.method, by_means.stream, by_means.views
    tested = stream.test(1)
    pixels, labels = tested.pixels, tested.labels
    with torch.no_grad(), method.answering():
        logits = nearest_mean(method)(views.plain(pixels))
    right = 100 * (logits.argmax(1) == labels).double().mean().item()
    assert by_means.accuracy["class_il"][-1][1] == pytest.approx(right)
    among = logits.masked_fill(stream.tasks.of_class != 1, -math.inf).argmax(1)
    assert by_means.accuracy["task_il"][-1][1] == pytest.approx(100 * (among == labels).double().mean().item())
    assert by_means.accuracy["class_il"] != by_network.accuracy["class_il"]


@pytest.mark.parametrize(("given", "taken"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_features_are_scaled_in_single_precision_at_least(given, taken):
    network = SimpleNamespace(features=lambda images: images.to(given))
    features = unit_features(SimpleNamespace(network=network), torch.randn(3, 7))
    assert features.dtype == taken
    torch.testing.assert_close(features.norm(dim=1), torch.ones(3, dtype=taken))


def test_a_method_without_a_buffer_is_refused():
    with pytest.raises(UsageError, match="classifier ncm classifies by the images of a buffer, and finetune has none"):
        make_settings(method="finetune", classifier="ncm")
    made = grid({"method": ["finetune", "er"], "classifier": "ncm"})
    assert [(one.method, one.classifier) for one in made] == [("finetune", "network"), ("er", "ncm")]
