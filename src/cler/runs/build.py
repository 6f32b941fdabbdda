"""From settings and a seed to a method, and with images to a run that is ready to be trained."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from cler.config.registry import NETWORKS, is_own
from cler.config.settings import CUSTOM, Settings
from cler.config.values import OWN_SEED
from cler.data.images import ImageData
from cler.data.views import Views
from cler.engine import Run, RunName
from cler.engine.steps import lack_of_memory
from cler.errors import UsageError, failure
from cler.methods import Method, Setup, find_method
from cler.nets.backbone import Backbone
from cler.nets.build import NetworkLike, build_network, check_pretrained, find_network, freeze_to_tap
from cler.nets.peers import Peers
from cler.nets.randomness import borrowed_generator
from cler.nets.resnet import compile_blocks
from cler.regularizers import REGULARIZERS
from cler.streams import STREAMS, Stream, Tasks
from cler.teachers import TEACHERS

MOST_LEFT_OUT = 0.05
"""Share of the training images that may be left out, because they fill no batch, without a line about it."""


def check_fit(settings: Settings, data: ImageData, seeds: Sequence[int] = (0,)) -> None:
    """Refuse, before anything is written, settings that this data cannot be used with."""
    for order in dict.fromkeys(_class_order(settings, seed) for seed in seeds):
        _stream(settings, data, order)
    method, classes = find_method(settings.method), data.n_classes
    if method.shares_buffer and settings.buffer < classes:
        raise UsageError(f"{settings.buffer} is too small for one image of each of {classes} classes", "buffer")
    if settings.pretrained and settings.network in NETWORKS:
        check_pretrained(NETWORKS[settings.network])
    for name in settings.regularizers:
        REGULARIZERS[name].check(*data.train_images.shape[2:])


def advice(settings: Settings, data: ImageData) -> Iterator[str]:
    """Lines about settings that work with this data, but hardly make sense."""
    stream = _stream(settings, data, _class_order(settings, seed=0))
    images, steps = sum(stream.schedule) * settings.batch // settings.epochs, min(stream.schedule)
    if find_method(settings.method).replays and settings.buffer >= images:
        yield f"buffer {settings.buffer} holds all {images} images of the stream: nothing has to be forgotten"
    if settings.epochs == 1 and stream.left_out > MOST_LEFT_OUT * (images + stream.left_out):
        yield (
            f"{stream.left_out} of {images + stream.left_out} training images are left out, because they do not fill a "
            f"batch of {settings.batch} at the end of their task: a smaller batch leaves out fewer"
        )
    if settings.teacher != "none":
        teacher = TEACHERS[settings.teacher]
        yield from teacher.advice(settings.options_of(teacher), steps)
    if settings.freeze and not settings.pretrained and not settings.network.startswith(CUSTOM):
        yield f"freeze keeps layers of {settings.network} at their random weights: did you leave out pretrained?"


def _class_order(settings: Settings, seed: int) -> int | None:
    """The seed of a run's permutation of the classes, or of all of its stream; None for the natural order."""
    own = settings.class_order == OWN_SEED or (settings.class_order is None and STREAMS[settings.stream].own_seed)
    return seed if own else settings.class_order  # type: ignore[return-value]


def _stream(settings: Settings, data: ImageData, class_order: int | None) -> Stream:
    kind: type[Stream] = STREAMS.find(settings.stream)
    try:
        return kind(
            data,
            settings.tasks,
            batch=settings.batch,
            epochs=settings.epochs,
            class_order=class_order,
            merged=find_method(settings.method).merged,
            validate=settings.validate,
            options=settings.options_of(kind),
        )
    except Exception as error:
        if isinstance(error, UsageError) or not is_own(kind) or lack_of_memory(error):
            raise
        raise UsageError(f"the stream {kind.__qualname__} fails with {failure(error)}") from error


def normalization(settings: Settings, data: ImageData) -> tuple[Sequence[float], Sequence[float]]:
    """What pixels, from 0 to 1, are normalized by: mean and deviation of each channel."""
    return (data.mean, data.std) if settings.normalize else ([0.0] * len(data.mean), [1.0] * len(data.std))


def build_run(
    settings: Settings,
    seed: int,
    data: ImageData,
    name: RunName | None = None,
    *,
    network: NetworkLike | None = None,
) -> Run:
    """A run ready to be trained, on the device where the data is; `network` is as `build_method` takes it."""
    device = data.train_images.device
    generator = torch.Generator(device).manual_seed(seed)
    mean, std = normalization(settings, data)
    views = Views(mean, std, settings.augment, generator=generator, device=device)
    stream = _stream(settings, data, _class_order(settings, seed))
    method = build_method(
        settings,
        seed,
        views=views,
        generator=generator,
        tasks=stream.tasks,
        image_shape=tuple(data.train_images.shape[1:]),
        network=network,
    )
    name = name or RunName(f"{settings.pair}, seed {seed}", settings.pair, seed)
    return Run(
        method,
        stream,
        views=views,
        generator=generator,
        precision=settings.precision,
        evaluate_every=settings.evaluate_every,
        name=name,
    )


@borrowed_generator()  # initial weights of all parts come from the seed, the same on every device
def build_method(
    settings: Settings,
    seed: int,
    *,
    views: Views,
    generator: torch.Generator,
    tasks: Tasks,
    image_shape: tuple[int, ...],
    network: NetworkLike | None = None,
) -> Method:
    """A method with its network, regularizers and buffer, on the generator's device.

    `network` takes the place of the one that the settings name: a backbone, which is copied, or a function from the
    number of outputs to one.
    """
    method, device = find_method(settings.method), generator.device
    torch.manual_seed(seed)
    backbone = make_network(
        method,
        tasks.n_classes,
        network=settings.network if network is None else network,
        width=settings.width,
        pretrained=settings.pretrained,
        freeze=settings.freeze,
        image_shape=image_shape,
        generator=generator,
        options=settings.method_options,
    )
    regularizers = []
    for member in backbone.members:
        for name, weight in zip(settings.regularizers, settings.weights, strict=True):
            entry = REGULARIZERS[name]
            own = vars(settings.options_of(entry))
            given = {"weight": weight, "views": views, "generator": generator, **own}
            _demand_takes(entry.build, (member,), given, "network, *, weight, **others")
            regularizers.append(entry.build(member, **given))
            _demand_begun(regularizers[-1], "_modules", "")
            regularizers[-1].name = name
    if settings.compile:
        compile_blocks(backbone, *regularizers)
    backbone = backbone.to(device)
    teacher = TEACHERS.get(settings.teacher)
    if teacher:
        _demand_takes(teacher, (backbone, None), {}, "network, options")
    setup = Setup(
        network=backbone,
        teacher=teacher and teacher(backbone, settings.options_of(teacher)),
        regularizers=[each.to(device) for each in regularizers],
        views=views,
        tasks=tasks,
        image_shape=image_shape,
        generator=generator,
        lr=settings.lr,
        optimizer=settings.optimizer,
        momentum=settings.sgd_momentum,
        weight_decay=settings.weight_decay,
        buffer=settings.buffer,
        replay_batch=settings.replay_batch,
        repeats=settings.repeats,
        classifier=settings.classifier,
        options=settings.method_options,
        bfloat16=settings.precision == "bf16",
        device=device,
    )
    built = method(setup)
    _demand_begun(built, "setup", "setup")
    return built


def _demand_takes(build: Any, positional: tuple[Any, ...], named: dict[str, Any], told: str) -> None:
    """Refuse a part of a run whose `__init__`, or the function that builds it, does not take what it is given."""
    try:
        if getattr(build, "__init__", None) is nn.Module.__init__:
            raise TypeError("it has none of its own")
        inspect.signature(build).bind(*positional, **named)
    except TypeError as error:
        what = f"__init__ of {build.__qualname__}" if isinstance(build, type) else f"{build!r}"
        raise UsageError(f"{what} has to take ({told}): {error}") from None


def _demand_begun(built: Any, sign: str, given: str) -> None:
    """Refuse what lacks an attribute that its base class gives it."""
    if sign not in vars(built):
        raise UsageError(f"__init__ of {type(built).__name__} has to call super().__init__({given})")


def make_network(
    method: type[Method],
    n_classes: int,
    *,
    image_shape: tuple[int, ...],
    network: NetworkLike = "resnet18",
    width: int | None = None,
    pretrained: bool = False,
    freeze: bool = False,
    generator: torch.Generator | None = None,
    options: Any = None,
) -> Backbone:
    """The network that a method with these options trains, its own or the given one with its classifier, or `Peers`.

    Initial weights come from torch's own generator; dropout draws from the one that is given.
    """
    outputs = method.n_outputs(n_classes)

    def make() -> Backbone:
        if method.own_network is not None:
            return _own_network(
                method, outputs, network, image_shape, width=width, pretrained=pretrained, freeze=freeze
            )
        built = build_network(
            network,
            outputs,
            image_shape=image_shape,
            width=width if isinstance(network, str) and find_network(network).width is not None else None,
            pretrained=pretrained,
            freeze=freeze,
            generator=generator,
        )
        classifier = method.make_classifier(built.classifier, n_classes)
        if classifier is not built.classifier:
            built.replace_classifier(classifier)
        return built

    networks = [make() for _ in range(method.n_networks(options or method.Options()))]
    if len(networks) == 1:
        return networks[0]
    for each in networks[1:]:
        each.classifier.reset_parameters()  # or peers would be equal where their initial weights are given
    return Peers(networks)


def _own_network(
    method: type[Method],
    n_outputs: int,
    network: NetworkLike,
    image_shape: tuple[int, ...],
    *,
    width: int | None,
    pretrained: bool,
    freeze: bool,
) -> Backbone:
    assert method.own_network is not None
    if network not in (method.name, "resnet18"):
        raise UsageError(f"has no effect: {method.name} has a network of its own; leave it out", "network")
    if pretrained:
        raise UsageError(f"has no effect: there are no pretrained weights for {method.name}", "pretrained")
    options = {} if width is None else {"width": width}
    built = method.own_network(n_outputs, channels=image_shape[0], **options)
    if freeze:
        freeze_to_tap(built, image_shape)
    return built
