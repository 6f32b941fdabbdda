"""Networks by name, and from what a user gives as a network to one that is ready to be trained."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from cler.config.registry import NETWORKS
from cler.errors import UsageError, unknown
from cler.nets.adapter import backbone
from cler.nets.backbone import Backbone
from cler.nets.randomness import borrowed_generator, no_global_draws
from cler.nets.resnet import ResNet18
from cler.nets.submodules import output_at, shape_of

TIMM = "timm:"
"""Prefix of the names of networks from the package timm."""


@dataclass(frozen=True)
class Network:
    """A network as the command line knows it."""

    name: str
    summary: str
    build: Callable[..., Backbone]
    """Called with the number of outputs, channels=… and, where it has one, width=…."""
    width: int | None = None
    """Default number of filters in the first layer; None for a network whose width cannot be chosen."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings for runs with this network."""
    given: Any = None
    """The module or function that it was made of, if it is a user's own."""
    pretrained: bool = False
    """Whether it can be had with weights that have been trained on other images: `build` then takes pretrained=…."""


register = NETWORKS.add
"""Registers a network for the command line and the tests."""


register(Network("resnet18", "ResNet-18 for small images, with 64 filters in its first layer", ResNet18, width=64))
register(
    Network("slim-resnet18", "ResNet-18 with 20 filters in its first layer", ResNet18, width=20, defaults={"width": 20})
)


def own_network(name: str, network: Any) -> Network:
    """A user's module, or function from the number of outputs to one, as the command line would know it."""

    def build(n_outputs: int, *, channels: int) -> Backbone:  # it has its own number of channels
        return _of_user(network, n_outputs)

    return Network(name, "a network of your own", build, given=network)


NetworkLike: TypeAlias = str | nn.Module | Callable[[int], nn.Module]
"""A name, a module that is copied, or a function from the number of outputs to a module."""


def find_network(name: str) -> Network:
    """The network of that name: one of the table, or of the package timm ('timm:resnet50')."""
    if name.startswith(TIMM):
        return Network(name, "a network of timm", partial(_of_timm, name.removeprefix(TIMM)), pretrained=True)
    if name not in NETWORKS:
        raise unknown("network", name, [*NETWORKS, f"{TIMM}NAME"])
    entry: Network = NETWORKS[name]
    return entry


def check_pretrained(entry: Network) -> None:
    """Refuse pretrained weights of a network that has none."""
    if not entry.pretrained:
        raise UsageError(f"has no effect on {entry.name}, which has no pretrained weights; use timm:NAME", "pretrained")


def build_network(
    network: NetworkLike,
    n_outputs: int,
    *,
    image_shape: tuple[int, ...],
    width: int | None = None,
    pretrained: bool = False,
    freeze: bool = False,
    generator: torch.Generator | None = None,
) -> Backbone:
    """A backbone with so many outputs for images of this shape (C, H, W); initial weights come from torch's generator.

    Args:
        network: a name; a function from the number of outputs to a backbone; or a backbone, which is copied as it is.
        n_outputs: a network whose classifier has another number gets a new classifier.
        image_shape: what it has to take; a network that is not built in is tried out.
        width: filters of the first layer, of a network whose width can be chosen.
        pretrained: start from weights that were trained on other images.
        freeze: parameters up to the tap are not trained, and the layers there stay in evaluation mode.
        generator: what dropout draws from.
    """
    if isinstance(network, str):
        built = _by_name(find_network(network), n_outputs, image_shape[0], width=width, pretrained=pretrained)
    else:
        if width is not None:
            raise UsageError(f"{width} has no effect on a network of your own: leave it out", "width")
        if pretrained:
            raise UsageError("has no effect on a network of your own, whose weights are as you give them", "pretrained")
        built = _of_user(network, n_outputs)
    if built.classifier.out_features != n_outputs:
        built.replace_classifier(_another(built.classifier, n_outputs))
    if type(built) is not ResNet18 and not built.classifier.weight.is_meta:
        try_out(built, n_outputs, image_shape)
    if freeze:
        freeze_to_tap(built, image_shape)
    built.use(generator)
    return built


def _by_name(entry: Network, n_outputs: int, channels: int, *, width: int | None, pretrained: bool) -> Backbone:
    if pretrained:
        check_pretrained(entry)
    if width is not None and entry.width is None:
        raise UsageError(f"{width} has no effect on {entry.name}: leave it out", "width")
    options: dict[str, Any] = {"pretrained": pretrained} if entry.pretrained else {}
    if entry.width is not None:
        options["width"] = entry.width if width is None else width
    return entry.build(n_outputs, channels=channels, **options)


def _of_user(network: Any, n_outputs: int) -> Backbone:
    check_own(network)
    if isinstance(network, Backbone):
        return copy.deepcopy(network)
    built = network(n_outputs)
    if not isinstance(built, nn.Module):
        kind = type(built).__name__
        raise UsageError(f"is a function that gives a {kind}, not a torch.nn.Module", "network")
    check_own(built)
    assert isinstance(built, Backbone)
    return built


def check_own(network: Any) -> None:
    """Refuse what cannot be a network of one's own: neither a backbone nor a function that could make one."""
    if isinstance(network, nn.Module) and not isinstance(network, Backbone):
        raise UsageError(
            f"is a {type(network).__name__}, which cler cannot train as it is: wrap it, as "
            "cler.backbone(module, tap=…, head=…, classifier=…), or make it a cler.Backbone",
            "network",
        )
    if not callable(network):
        raise UsageError(
            f"must be a name, a module, or a function of the number of classes, not {network!r}", "network"
        )


def _another(classifier: nn.Linear, n_outputs: int) -> nn.Linear:
    """A new layer like this one, with another number of outputs."""
    weight, bias = classifier.weight, classifier.bias is not None
    return nn.Linear(classifier.in_features, n_outputs, bias=bias, device=weight.device, dtype=weight.dtype)


def try_out(network: Backbone, n_outputs: int, image_shape: tuple[int, ...]) -> None:
    """Refuse a network that does not keep the promises of a backbone, by a pass of a copy, on a CPU, in training."""
    trial = copy.deepcopy(network).cpu().train()
    trial.use(torch.Generator())
    images = _example(trial, image_shape)
    try:
        with torch.no_grad(), borrowed_generator():
            with no_global_draws(trial):
                _check_shape("features", trial.features(images), trial.feature_size)
            _check_shape("forward", trial(images), n_outputs)
            maps = output_at(trial, trial.get_submodule(trial.tap), images)
    except UsageError:
        raise
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason, shape = str(error).partition("\n")[0], ", ".join(map(str, image_shape))
        raise UsageError(f"the network does not take a batch of images (N, {shape}): {reason}") from error
    if not isinstance(maps, Tensor):
        raise UsageError(f"tap '{trial.tap}' gives a {type(maps).__name__}, not a tensor; name a sub-module inside it")


def _check_shape(what: str, given: Any, width: int) -> None:
    if not isinstance(given, Tensor) or given.shape != (2, width):
        found = shape_of(given) if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise UsageError(
            f"the network's {what} has to give a tensor (N, {width}), not {found}; wrap it in a module that does"
        )


def _example(network: nn.Module, image_shape: tuple[int, ...]) -> Tensor:
    """Two images that differ, so that batch norm can normalize them: float32, or what autocast makes of that."""
    dtype = next((each.dtype for each in network.parameters() if each.is_floating_point()), torch.float32)
    ramp = torch.linspace(-1, 1, 2 * torch.Size(image_shape).numel(), dtype=torch.float32)
    ramp = ramp.to(torch.float32 if dtype == torch.float64 else dtype)
    return ramp.view(2, *image_shape)


def freeze_to_tap(network: Backbone, image_shape: tuple[int, ...]) -> None:
    """Train no parameters that the tap's output depends on; layers that have run by then stay in evaluation."""
    trial, run = copy.deepcopy(network).cpu().requires_grad_().eval(), list[str]()
    for name, module in trial.named_modules():
        module.register_forward_hook(lambda *_, name=name: run.append(name))
    maps = output_at(trial, trial.get_submodule(trial.tap), _example(trial, image_shape))
    names, parameters = zip(*trial.named_parameters(), strict=True)
    slopes = torch.autograd.grad(maps.sum(), parameters, allow_unused=True)
    frozen = set(itertools.compress(names, (slope is not None for slope in slopes)))
    for name, parameter in network.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    network.evaluated = tuple(dict.fromkeys([*network.evaluated, *run]))
    network.train(network.training)


def _of_timm(name: str, n_outputs: int, *, channels: int, pretrained: bool) -> Backbone:
    """A network of the package timm, with the last stage that it names for a head."""
    try:
        timm = import_module("timm")
    except ImportError:
        raise UsageError(f"{TIMM}{name} needs the package timm: pip install timm", "network") from None
    try:
        module = timm.create_model(name, pretrained=pretrained, in_chans=channels, num_classes=n_outputs)
    except RuntimeError as error:  # an unknown name, or no pretrained weights
        raise UsageError(f"timm cannot make {name}: {str(error).partition(chr(10))[0]}") from None
    info = getattr(module, "feature_info", [])
    stages = [each["module"] for each in getattr(info, "info", info)]
    paths = {id(each): path for path, each in module.named_modules()}
    classifier = paths.get(id(module.get_classifier()))
    if len(stages) < 2 or classifier is None:
        raise UsageError(
            f"timm does not say what the stages and the classifier of {name} are: give "
            f"cler.backbone(timm.create_model('{name}'), tap=…, head=…, classifier=…)"
        )
    return backbone(module, tap=stages[-2], head=_from_to(stages[-2], stages[-1]), classifier=classifier)


def _from_to(before: str, last: str) -> str:
    """What comes after one stage, to the end of another: a slice where they are numbered and some lie between."""
    parent, _, first = before.rpartition(".")
    if last.rpartition(".")[0] == parent and first.isdigit() and last.rpartition(".")[2].isdigit():
        start, stop = int(first) + 1, int(last.rpartition(".")[2]) + 1
        return f"{parent}.{start}:{stop}" if stop - start > 1 else last
    return last
