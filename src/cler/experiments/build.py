"""From settings, a seed and images to a run that is ready to be trained."""

from __future__ import annotations

import torch

from cler.data.augment import Views
from cler.data.images import ImageData
from cler.data.stream import Stream
from cler.engine import Run
from cler.experiments.settings import Settings
from cler.methods import Setup, find_method
from cler.nets.resnet import compile_blocks
from cler.regularizers import REGULARIZERS, build_regularizer


def check_fit(settings: Settings, data: ImageData) -> None:
    """Refuse, before anything is written, settings that this data cannot be used with."""
    _stream(settings, data)
    if settings.regularizer != "none":
        REGULARIZERS[settings.regularizer].check(*data.train_images.shape[2:])


def _stream(settings: Settings, data: ImageData) -> Stream:
    return Stream(
        data,
        settings.tasks,
        batch=settings.batch,
        epochs=settings.epochs,
        class_order=settings.class_order,
        merged=find_method(settings.method).merged,
    )


def build_run(settings: Settings, seed: int, data: ImageData, label: str = "") -> Run:
    """A run ready to be trained, on the device where the data is."""
    device = data.train_images.device
    generator = torch.Generator(device).manual_seed(seed)
    views = Views(data.mean, data.std, generator=generator, device=device)
    stream = _stream(settings, data)
    method = find_method(settings.method)
    with torch.random.fork_rng(devices=[]):  # initial weights come from the seed, the same on every device
        torch.manual_seed(seed)
        network = method.make_network(data.n_classes, width=settings.width, channels=data.train_images.shape[1])
        regularizers = build_regularizer(
            settings.regularizer, network, weight=settings.weight, views=views, generator=generator
        )
    if settings.compile:
        compile_blocks(network, *regularizers)
    setup = Setup(
        network=network.to(device),
        regularizers=[each.to(device) for each in regularizers],
        views=views,
        tasks=settings.tasks,
        classes_per_task=stream.classes_per_task,
        image_shape=tuple(data.train_images.shape[1:]),
        generator=generator,
        lr=settings.lr,
        optimizer=settings.optimizer,
        buffer=settings.buffer,
        replay_batch=settings.replay_batch,
        options=settings.method_options,
        bfloat16=settings.precision == "bf16",
        device=device,
    )
    return Run(method(setup), stream, views=views, generator=generator, precision=settings.precision, label=label)
