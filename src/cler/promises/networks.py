"""What a network promises beside training: the interface of a `Backbone`, a function for each part of it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from cler.nets.backbone import Backbone, Parts, PretextImages
from cler.nets.build import NetworkLike, build_network, find_network
from cler.nets.norm import frozen_statistics
from cler.nets.randomness import Dropout, no_global_draws
from cler.nets.submodules import output_at
from cler.promises.outcome import demand
from cler.promises.state import named

SIZE = 32
"""Height and width of the images that networks are tried with."""
OUTPUTS = 5


def build(network: NetworkLike, n_outputs: int = OUTPUTS) -> Backbone:
    """The network in training, narrow where its width can be chosen, with a generator of its own."""
    narrow = isinstance(network, str) and find_network(network).width is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        shape = (3, SIZE, SIZE)
        return build_network(
            network, n_outputs, image_shape=shape, width=4 if narrow else None, generator=generator
        ).train()


def without_dropout(network: Backbone) -> Backbone:
    """The network with its dropout in evaluation, so that passes can be compared."""
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.eval()
    return network


def images(count: int, seed: int = 0) -> Tensor:
    """Some noise."""
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def gives_features_and_outputs(network: NetworkLike) -> None:
    """`features` is (N, feature_size), `forward` (N, outputs), for as many outputs as are asked for."""
    for n_outputs in (OUTPUTS, OUTPUTS + 2):
        built = build(network, n_outputs)
        features, outputs = built.features(images(3)), built(images(3))
        wanted = (3, built.feature_size)
        demand(features.shape == wanted, f"features has shape {tuple(features.shape)}, not (N, feature_size) {wanted}")
        demand(
            outputs.shape == (3, n_outputs),
            f"forward has shape {tuple(outputs.shape)}, not (N, outputs) (3, {n_outputs})",
        )
        demand(
            built.classifier.out_features == n_outputs, f"its classifier has {built.classifier.out_features} outputs"
        )


def draws_from_its_own_generator(network: NetworkLike) -> None:
    """No sub-module draws from PyTorch's global generator."""
    built = build(network)
    with no_global_draws(built):
        built(images(3))


def parts_equal_passes(network: NetworkLike) -> None:
    """A batch of two parts gives the outputs and running statistics of a pass for each."""
    one = without_dropout(build(network))
    other = copy.deepcopy(one)
    batch = images(7)
    with torch.no_grad():
        together = one(batch, Parts((4, 3)))
        apart = torch.cat([other(batch[:4]), other(batch[4:])])
    _demand_close(together, apart, "outputs of a batch of two parts are not those of a pass for each")
    moved = _differing_statistics(one, other)
    demand(not moved, f"a batch of two parts moves running statistics differently than two passes do: {named(moved)}")
    with torch.no_grad():
        one(batch, Parts((4, 3), silent=1))
        other(batch[:4])
    moved = _statistics_moved_in_silence(one, other)
    demand(not moved, f"a silent part moves running statistics: {named(moved)}")


def pretext_images_are_silent(network: NetworkLike) -> None:
    """Pretext images are given the maps of the tap, and change neither outputs nor running statistics."""
    one = without_dropout(build(network))
    other = copy.deepcopy(one)
    batch, pretext = images(4), PretextImages(images(6, seed=1), (3, 3))
    with torch.no_grad():
        beside, alone = one(batch, None, [pretext]), other(batch)
    _demand_close(beside, alone, "outputs change with the pretext images beside them")
    moved = _statistics_moved_in_silence(one, other)
    demand(not moved, f"pretext images move running statistics: {named(moved)}")
    demand(pretext.maps is not None, "pretext images are given no maps: fill in `maps` of each of them")
    with torch.no_grad(), frozen_statistics(other):
        tap = other.get_submodule(other.tap)
        wanted = torch.cat([output_at(other, tap, piece) for piece in pretext.images.split(3)])
    assert pretext.maps is not None
    _demand_close(pretext.maps, wanted, "maps of pretext images are not what the tap gives for each of their parts")


def can_be_copied(network: NetworkLike) -> None:
    """A deep copy answers alike and shares no parameters; the copy of a trained network is trained too."""
    one = without_dropout(build(network))
    with torch.no_grad():
        one(images(4))
        other = copy.deepcopy(one)
        _demand_close(one.eval()(images(4)), other.eval()(images(4)), "a deep copy gives other outputs")
    shared = {each.data_ptr() for each in one.parameters()} & {each.data_ptr() for each in other.parameters()}
    demand(not shared, "a deep copy shares parameters with the original")


def can_be_stored(network: NetworkLike) -> None:
    """Its state dict, loaded into a new network, makes it the same."""
    one, other = build(network), build(network)
    with torch.no_grad():
        one(images(6))
        for each in one.parameters():
            each.add_(0.01)
        other.load_state_dict(one.state_dict(), strict=True)
        _demand_close(one.eval()(images(4)), other.eval()(images(4)), "its state dict does not hold all of its state")


def _demand_close(one: Tensor, other: Tensor, otherwise: str) -> None:
    demand(one.shape == other.shape, f"{otherwise}: {tuple(one.shape)} and {tuple(other.shape)}")
    apart = float((one.float() - other.float()).abs().max())
    demand(apart < 1e-4 * (1 + float(other.abs().max())), f"{otherwise}: they differ by {apart:.2g}")


def _differing_statistics(one: Backbone, other: Backbone) -> list[str]:
    pairs = zip(one.named_buffers(), other.buffers(), strict=True)
    return [name for (name, mine), theirs in pairs if not torch.allclose(mine.float(), theirs.float(), atol=1e-5)]


def _statistics_moved_in_silence(one: Backbone, other: Backbone) -> list[str]:
    """Running statistics that differ: what counts passes may move in each, and what spectral norm knows of weights."""
    floats = {name for name, each in one.named_buffers() if each.is_floating_point()}
    return [name for name in _differing_statistics(one, other) if name in floats and not name.endswith(("_u", "_v"))]
