"""The plugin for Avalanche: with that library where it can be imported, else with a stand-in for what it calls."""

import importlib
import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from cler import Equivariant, ResNet18
from cler.errors import UsageError


def real_avalanche():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("avalanche.training.supervised")
        except Exception:  # torchvision fails in its own ways beside another torch
            return None


@pytest.fixture
def plugin_of(monkeypatch):
    """The plugin's class."""
    if not real_avalanche():
        core, utils = ModuleType("avalanche.core"), ModuleType("avalanche.models.utils")
        core.SupervisedPlugin = object
        utils.is_multi_task_module = lambda model: isinstance(model, MultiTask)
        modules = {"avalanche": ModuleType("avalanche"), "avalanche.models": ModuleType("avalanche.models")}
        for name, module in {**modules, core.__name__: core, utils.__name__: utils}.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "cler.avalanche", raising=False)
    return importlib.import_module("cler.avalanche").EquivariantPlugin


class MultiTask(nn.Module):
    pass


def regularized(weight=1.0):
    torch.manual_seed(0)
    model = ResNet18(4, width=4)
    return model, Equivariant(model, "rotation", weight=weight, generator=torch.Generator().manual_seed(1))


def strategy_for(model, **more):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SimpleNamespace(model=model, optimizer=optimizer, device="cpu", loss=torch.tensor(2.0), **more)


def test_the_head_is_trained_once_also_after_the_optimizer_was_set_up_again(plugin_of):
    model, regularizer = regularized()
    strategy = strategy_for(model)
    expected = [id(parameter) for module in (model, regularizer) for parameter in module.parameters()]
    for anew in (False, False, True):
        if anew:
            strategy.optimizer.param_groups[0]["params"] = [*model.parameters()]
        plugin_of(regularizer).before_training_exp(strategy)
        assert [id(each) for group in strategy.optimizer.param_groups for each in group["params"]] == expected


def test_its_loss_is_added(plugin_of):
    model, regularizer = regularized(weight=0.5)
    images = torch.randn(4, 3, 8, 8)
    strategy = strategy_for(model, mb_x=images, mb_y=torch.zeros(4, dtype=torch.int64))
    plugin_of(regularizer).before_backward(strategy)
    regularizer.generator.manual_seed(1)
    assert float(strategy.loss.detach()) == pytest.approx(2 + float(regularizer(images).detach()), rel=1e-5)


def test_models_that_need_task_labels_are_refused(plugin_of):
    _, regularizer = regularized()
    if real_avalanche():
        model = importlib.import_module("avalanche.models").MTSimpleMLP()
    else:
        model = MultiTask()
        model.weight = nn.Parameter(torch.zeros(1))
    with pytest.raises(UsageError, match="no task labels"):
        plugin_of(regularizer).before_training_exp(strategy_for(model))


def trained(library, plugins, model):
    """The model after two experiences of two classes."""
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from torch.utils.data import TensorDataset

    torch.manual_seed(3)
    images = TensorDataset(torch.randn(16, 3, 8, 8), torch.arange(16) % 4)
    images.targets = images.tensors[1]
    images = as_classification_dataset(images)
    benchmark = nc_benchmark(images, images, n_experiences=2, task_labels=False, shuffle=False)
    strategy = library.Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=4,
        plugins=plugins,
        evaluator=None,
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    return model.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_in_a_real_strategy_the_head_learns_and_a_weight_of_zero_changes_nothing(plugin_of):
    library = real_avalanche()
    if not library:
        pytest.skip("avalanche cannot be imported")
    plain = trained(library, [], regularized()[0])
    for weight in (0.0, 1.0):
        model, regularizer = regularized(weight)
        head = regularizer.linear.weight.detach().clone()
        found = trained(library, [plugin_of(regularizer)], model)
        assert torch.equal(head, regularizer.linear.weight) == (weight == 0)
        assert all(torch.equal(value, plain[name]) for name, value in found.items()) == (weight == 0)
