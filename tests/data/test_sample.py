from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cler import data
from cler.data import sample
from cler.data.cifar import cifar10
from cler.errors import UsageError
from hostile import alter, truncate

FILES = Path(sample.__file__).parent / "sample"
MAKE = Path(__file__).parents[2] / "benchmarks" / "make_sample.py"


@pytest.fixture(scope="module")
def images() -> data.ImageData:
    return data.load("cifar10-sample", "a folder that does not exist")


def test_contents(images: data.ImageData):
    assert images.train_images.shape == (5000, 3, 32, 32)
    assert images.test_images.shape == (1000, 3, 32, 32)
    assert torch.bincount(images.train_labels).tolist() == [500] * 10
    assert torch.bincount(images.test_labels).tolist() == [100] * 10
    assert images.classes == cifar10.classes
    assert images.fingerprint() == "df15686f79cf6177"


def test_pixels_are_those_of_cifar10(images: data.ImageData):
    """The first pixels of the first frog: the very first image of data_batch_1.bin."""
    frog = images.train_images[images.train_labels == 6][0]
    assert frog[0, 0, :8].tolist() == [59, 43, 50, 68, 98, 119, 139, 145]


def test_statistics_are_near_those_of_the_whole(images: data.ImageData):
    pixels = images.train_images.float() / 255
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.tensor(images.mean), atol=0.01)
    assert torch.allclose(pixels.std((0, 2, 3)), torch.tensor(images.std), atol=0.01)


def test_no_image_is_in_twice(images: data.ImageData):
    pixels = torch.cat([images.train_images, images.test_images]).flatten(1).numpy()
    assert len({row.tobytes() for row in pixels}) == 6000


def test_files_are_small():
    sizes = [path.stat().st_size for path in FILES.iterdir()]
    assert max(sizes) < 2_000_000
    assert sum(sizes) < 9_900_000


def test_check_and_get(tmp_path: Path):
    assert data.check("cifar10-sample").state == "present"
    status = data.get("cifar10-sample", tmp_path)
    assert status.state == "present"
    assert "nothing to fetch" in status.reason
    assert list(tmp_path.iterdir()) == []


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.just(3), st.integers(1, 5), st.integers(1, 5)),
    choices=st.sampled_from([(0, 255), (0, 1, 128, 255), tuple(range(256))]),
)
def test_packing_loses_nothing(tmp_path_factory: pytest.TempPathFactory, seed: int, shape: tuple, choices: tuple):
    images = np.random.default_rng(seed).choice(np.array(choices, np.uint8), shape)
    path = tmp_path_factory.getbasetemp() / "packed.xz"
    path.write_bytes(sample.pack(images))
    assert np.array_equal(sample.restore(sample.unpack_errors(path, shape)), images)


def test_prediction_is_the_median():
    left, above, corner = np.random.default_rng(0).integers(-255, 256, (3, 500)).astype(np.int16)
    expected = np.median([left, above, left + above - corner], axis=0)
    assert np.array_equal(sample.predict(left, above, corner), expected)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A sample of two classes of four random images each."""
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 3, 5, 5), dtype=np.uint8)
    shards = []
    for label, pixels in enumerate(images):
        (tmp_path / f"{label}.xz").write_bytes(sample.pack(pixels))
        digest = sample.hashlib.sha256(pixels.tobytes()).hexdigest()
        shards.append({"file": f"{label}.xz", "label": label, "sha256": digest})
    index = {"train_per_class": 3, "test_per_class": 1, "height": 5, "width": 5, "shards": shards}
    (tmp_path / "index.json").write_text(json.dumps(index))
    return tmp_path


def test_small_sample(small: Path):
    images = sample.Sample(small).load(small)
    assert images.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.test_labels.tolist() == [0, 1]


def exchange(path: Path) -> None:
    shutil.copy(path.with_name("0.xz"), path)


@pytest.mark.parametrize("damage", [truncate, alter, exchange, Path.unlink])
def test_damaged_file_is_named(small: Path, damage: Callable[[Path], None]):
    damage(small / "1.xz")
    with pytest.raises(UsageError, match=r"damaged \(.*1\.xz.*\): install cler again"):
        sample.Sample(small).load(small)
    assert sample.Sample(small).check(small).state == "damaged"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"shards": [], "train_per_class": 1}', "[" * 100_000])
def test_damaged_index(small: Path, content: str):
    (small / "index.json").write_text(content)
    with pytest.raises(UsageError, match="install cler again"):
        sample.Sample(small).load(small)


@pytest.mark.skipif(not MAKE.exists(), reason="benchmarks/ is not in the source distribution")
def test_script_needs_the_real_data(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, MAKE, tmp_path, "--out", tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "CIFAR-10 is not in" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()
