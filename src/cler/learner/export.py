"""A classifier as a file that runs without cler: a torch.export program, or ONNX."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cler.data.inputs import Label
from cler.errors import UsageError
from cler.learner.classifier import Classifier
from cler.learner.core import Core
from cler.learner.fileformat import write
from cler.learner.worker import Worker

LABELS = "classes.json"
"""Where a program keeps the labels, in the order of its outputs."""
TOLERANCE = 1e-4
"""How far the probabilities of a file may be from our own: other kernels, the same function."""


_tracer = Worker()
"""Where programs are traced, one after the other, in a thread that lasts as long as the process.

torch 2.11 built for CUDA, where no GPU is to be seen, keeps something of the first thread that traces a program, and
crashes the process when a program is traced after that thread has ended, as a learner's own does.
"""


def export(core: Core, path: Path) -> None:
    """Write what a learner knows; the file is tried out before it gets its name."""
    core.check_sound()
    if core.device.type != "cpu":
        core = core.copy_on("cpu")  # where everybody can run it
    _tracer(_export, core.classifier(), path, core.shape, core.labels)


@torch.no_grad()
def _export(classifier: Classifier, path: Path, shape: Sequence[int], labels: list[Label]) -> None:
    if path.suffix not in WRITERS:
        raise UsageError(f"{path} must end in {' or '.join(WRITERS)}")
    if path.suffix == ".onnx":
        _check_packages()
    classifier = classifier.standalone()
    examples = torch.randint(256, (3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(classifier, (examples,), dynamic_shapes=({0: torch.export.Dim("images")},))
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        outputs = WRITERS[path.suffix](program, temporary, json.dumps(labels))
        for count in (1, len(examples)):
            difference = np.abs(outputs(examples[:count]) - classifier(examples[:count]).numpy()).max()
            if not difference < TOLERANCE:
                raise RuntimeError(f"the exported classifier is off by {difference:.1e}; nothing was written")
        write(path, temporary.read_bytes())


def _write_program(program: torch.export.ExportedProgram, path: Path, labels: str) -> Callable[[Tensor], np.ndarray]:
    """Write a file of torch.export; gives back what it computes."""
    torch.export.save(program, path, extra_files={LABELS: labels})
    module = torch.export.load(path).module()
    return lambda images: module(images).numpy()


def _write_onnx(program: torch.export.ExportedProgram, path: Path, labels: str) -> Callable[[Tensor], np.ndarray]:
    """Write a file of ONNX; gives back what it computes."""
    import onnxruntime

    with _quiet():
        converted = torch.onnx.export(
            program,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes=({0: "images"},),  # for its name alone, which would be another one each time
            verbose=False,
        )
    assert converted is not None
    converted.model.metadata_props[LABELS] = labels
    converted.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.numpy()})[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, nothing is said about packages that PyTorch looks for, nor about what will change in it."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _check_packages() -> None:
    needed = ("onnx", "onnxscript", "onnxruntime")
    for name in needed:
        try:
            import_module(name)
        except ImportError:
            raise UsageError(f"ONNX needs the package {name}: pip install {' '.join(needed)}") from None


WRITERS = {".pt2": _write_program, ".onnx": _write_onnx}
