"""Trained networks on disk: one safetensors file beside a run's result, from which the network can be had again."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from cler.config.settings import Settings
from cler.engine import Run, tensorfile
from cler.engine.tensorfile import on_host, pieces
from cler.errors import DamagedError, UsageError
from cler.files import replacing
from cler.methods import find_method
from cler.nets.backbone import Backbone
from cler.nets.randomness import borrowed_generator
from cler.runs.build import make_network, normalization
from cler.runs.usual_modes import usual_modes

NAME = "network.safetensors"


def save_network(folder: Path, run: Run, settings: Settings) -> None:
    """Write the network of a run that answers, whole."""
    data = run.stream.data
    mean, std = normalization(settings, data)
    about = {
        "settings": settings.to_dict(),
        "classes": [data.classes[number] for number in run.stream.class_order.tolist()],
        "image_shape": list(data.train_images.shape[1:]),
        "mean": mean,
        "std": std,
    }
    tensors = on_host(run.method.answerer.state_dict())
    with replacing(folder / NAME) as file:
        file.writelines(pieces(tensors, {"about": json.dumps(about)}))


@usual_modes()
def load_network(folder: Path) -> Backbone:
    """The network that a run kept, in evaluation, on the CPU; it takes images normalized as in the run."""
    path = folder / NAME
    try:
        tensors, metadata = tensorfile.read(path)
    except FileNotFoundError:
        raise UsageError(
            f"{folder} has no {NAME}: train with save_network=True, and redo=True if the run is finished"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except DamagedError as error:
        raise _damaged(path, error) from None
    try:
        about: dict[str, Any] = json.loads(metadata["about"])
        settings = about["settings"]
        method, shape = find_method(settings["method"]), tuple(about["image_shape"])
        network = _build(settings, method, len(about["classes"]), shape)
        network.load_state_dict(tensors)
    except UsageError:
        raise
    except Exception as error:
        raise _damaged(path, error) from None
    return network.eval()


def _damaged(path: Path, error: Exception) -> UsageError:
    why, _, _ = str(error).partition("\n")
    return UsageError(f"{path} is damaged: {why}; to make it again, train with save_network=True and redo=True")


def _build(settings: dict[str, Any], method: Any, n_classes: int, shape: tuple[int, ...]) -> Backbone:
    own = {each.name: settings[each.name] for each in fields(method.Options) if each.name in settings}
    with borrowed_generator():
        return make_network(
            method,
            n_classes,
            network=settings["network"],
            width=settings["width"],
            freeze=settings["freeze"],
            image_shape=shape,
            options=method.Options(**own),
        )
