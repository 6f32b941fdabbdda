from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import cler
from cler import data
from cler.data.images import DATASETS, ImageData, Status, register
from cler.errors import UsageError


def tiny(**changes: object) -> ImageData:
    fields: dict = {
        "name": "tiny",
        "train_images": torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).reshape(4, 3, 2, 2),
        "train_labels": torch.tensor([0, 1, 0, 1]),
        "test_images": torch.zeros(2, 3, 2, 2, dtype=torch.uint8),
        "test_labels": torch.tensor([0, 1]),
        "classes": ("a", "b"),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.2, 0.2, 0.2),
    }
    return ImageData(**(fields | changes))


def test_it_is_shown_without_its_pixels():
    assert repr(tiny()) == "ImageData('tiny', 4 + 2 images of 3×2×2, 2 classes)"


def test_fingerprint_depends_on_every_tensor():
    reference = tiny().fingerprint()
    assert reference == tiny().fingerprint()
    assert len(reference) == 16
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        changed = getattr(tiny(), field).clone()
        changed.flatten()[0] = 1
        assert tiny(**{field: changed}).fingerprint() != reference, field


def test_fingerprint_ignores_memory_layout():
    images = tiny().train_images.contiguous(memory_format=torch.channels_last)
    assert tiny(train_images=images).fingerprint() == tiny().fingerprint()


def test_to_moves_the_tensors_and_keeps_the_rest():
    moved = tiny().to("cpu")
    assert moved.fingerprint() == tiny().fingerprint()
    assert moved.classes == ("a", "b")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_to_a_gpu_moves_every_tensor():
    moved = tiny().to("cuda")
    assert {value.device.type for value in vars(moved).values() if isinstance(value, torch.Tensor)} == {"cuda"}
    assert moved.fingerprint() == tiny().fingerprint()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("train_images", torch.zeros(4, 3, 2, 2), "uint8"),
        ("train_images", torch.zeros(4, 12, dtype=torch.uint8), "N×C×H×W"),
        ("train_labels", torch.tensor([0, 1]), "one for each"),
        ("test_labels", torch.tensor([0, 1], dtype=torch.int32), "int64"),
        ("test_labels", torch.tensor([0, 2]), "0..1"),
        ("test_labels", torch.tensor([-1, 0]), "0..1"),
        ("test_images", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "differ in shape"),
        ("mean", (0.5,), "3 channels"),
        ("mean", (0.5, 0.5, float("nan")), "must be finite"),
        ("std", (0.5, 0.0, 0.5), "std above 0"),
    ],
)
def test_wrong_tensors_are_refused(field: str, value: object, says: str):
    with pytest.raises(UsageError, match=says):
        tiny(**{field: value})


def test_the_known_names():
    assert {"cifar10", "cifar100", "cifar10-sample"} <= set(data.names())
    assert all("\n" not in data.describe(name) for name in data.names())


@pytest.mark.parametrize("function", [data.load, data.check, data.get, data.describe])
def test_unknown_name_suggests_a_near_one(function):
    with pytest.raises(UsageError, match=r"unknown dataset 'cifar1000'.*did you mean 'cifar100'"):
        function("cifar1000")


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A dataset that only tells which folder it was asked about."""

    name: str = "recorder"
    description: str = "for tests"
    defaults: dict = dataclasses.field(default_factory=dict)

    def load(self, folder: Path) -> ImageData:
        return tiny(name=str(folder))

    def check(self, folder: Path) -> Status:
        return Status("present", "checked", folder)

    def get(self, folder: Path, progress: object) -> Status:
        return Status("present", "got", folder)


@pytest.mark.parametrize("base", [object, cler.Backbone])
def test_a_class_that_has_to_be_registered_in_another_form_is_refused(base: type):
    with pytest.raises(cler.UsageError, match=r"class Mine cannot be registered: .* of a network, register"):
        cler.register(type("Mine", (base,), {"name": "mine", "load": print}))


def test_a_registered_data_set_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS))
    register(Recorder())
    assert "recorder" in DATASETS
    assert data.load("recorder", tmp_path).name == str(tmp_path)
    assert data.check("recorder", str(tmp_path)) == Status("present", "checked", tmp_path)
    assert data.get("recorder", tmp_path).reason == "got"
    register(Recorder())  # again, as from a notebook cell that runs twice
    with pytest.raises(ValueError, match="two datasets are named 'recorder'"):
        register(type("Other", (Recorder,), {})())


def test_data_folder_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLER_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data.data_folder() == tmp_path / "home/.cache/cler/data"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.data_folder() == tmp_path / "cache/cler/data"
    monkeypatch.setenv("CLER_DATA", "~/mine")
    assert data.data_folder() == tmp_path / "home/mine"
    assert data.data_folder("there") == Path("there")


def test_cler_data_is_where_data_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("CLER_DATA", str(tmp_path))
    assert data.check("cifar100").path == tmp_path
