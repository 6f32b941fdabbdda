"""From settings and a seed to a method, and with images to a run that is ready to be trained."""

from __future__ import annotations

import torch

from cler.config.settings import Settings
from cler.data.images import ImageData
from cler.data.views import Views
from cler.engine import Run, RunName
from cler.errors import UsageError
from cler.methods import Method, Setup, find_method
from cler.nets.resnet import compile_blocks
from cler.regularizers import REGULARIZERS
from cler.streams.class_incremental import Stream


def check_fit(settings: Settings, data: ImageData) -> None:
    """Refuse, before anything is written, settings that this data cannot be used with."""
    stream, method = _stream(settings, data), find_method(settings.method)
    classes = stream.tasks * stream.classes_per_task
    if method.shares_buffer and settings.buffer < classes:
        raise UsageError(f"{settings.buffer} has no room for an image of each of {classes} classes", "buffer")
    for name in settings.regularizers:
        REGULARIZERS[name].check(*data.train_images.shape[2:])


def _stream(settings: Settings, data: ImageData) -> Stream:
    return Stream(
        data,
        settings.tasks,
        batch=settings.batch,
        epochs=settings.epochs,
        class_order=settings.class_order,
        merged=find_method(settings.method).merged,
    )


def build_run(settings: Settings, seed: int, data: ImageData, name: RunName | None = None) -> Run:
    """A run ready to be trained, on the device where the data is."""
    device = data.train_images.device
    generator = torch.Generator(device).manual_seed(seed)
    views = Views(data.mean, data.std, generator=generator, device=device)
    stream = _stream(settings, data)
    method = build_method(
        settings,
        seed,
        views=views,
        generator=generator,
        tasks=settings.tasks,
        classes_per_task=stream.classes_per_task,
        image_shape=tuple(data.train_images.shape[1:]),
    )
    name = name or RunName(f"{settings.pair}, seed {seed}", settings.pair, seed)
    return Run(method, stream, views=views, generator=generator, precision=settings.precision, name=name)


def build_method(
    settings: Settings,
    seed: int,
    *,
    views: Views,
    generator: torch.Generator,
    tasks: int,
    classes_per_task: int,
    image_shape: tuple[int, ...],
) -> Method:
    """A method with its network, regularizers and memory, on the generator's device."""
    method, device = find_method(settings.method), generator.device
    with torch.random.fork_rng(devices=[]):  # initial weights come from the seed, the same on every device
        torch.manual_seed(seed)
        network = method.make_network(tasks * classes_per_task, width=settings.width, channels=image_shape[0])
        regularizers = [
            REGULARIZERS[name].build(network, weight=weight, views=views, generator=generator)
            for name, weight in zip(settings.regularizers, settings.weights, strict=True)
        ]
    if settings.compile:
        compile_blocks(network, *regularizers)
    setup = Setup(
        network=network.to(device),
        regularizers=[each.to(device) for each in regularizers],
        views=views,
        tasks=tasks,
        classes_per_task=classes_per_task,
        image_shape=image_shape,
        generator=generator,
        lr=settings.lr,
        optimizer=settings.optimizer,
        buffer=settings.buffer,
        replay_batch=settings.replay_batch,
        options=settings.method_options,
        bfloat16=settings.precision == "bf16",
        device=device,
    )
    return method(setup)
