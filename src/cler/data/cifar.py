"""CIFAR-10 and CIFAR-100 (Krizhevsky, Nair and Hinton, 2009) from their official archives.

The binary archives are fetched and preferred. The Python ones, which many people already have, are pickles: they
are read with an unpickler that can build a uint8 array and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cler.data import download, unpack
from cler.data.images import Advance, ImageData, Status, register
from cler.errors import DamagedError, UsageError
from cler.files import read_bytes

PIXELS = 3 * 32 * 32
LARGEST = 200_000_000
"""Bytes of an archive, and of what it holds: the official ones have 169 to 171 million, and hold 187."""
MOST_MEMBERS = 20
"""Files and folders in an archive: the official ones hold nine at most."""
Arrays = tuple[np.ndarray, np.ndarray]
"""Images N×3×32×32 and labels N."""


@dataclass(frozen=True)
class Member:
    """A file of a layout, with its checksum and size."""

    name: str
    digest: str
    """SHA-256, or MD5 where that is what was published."""
    size: int | None = None
    """In bytes, where known: shows that a file is truncated without reading it."""

    def read(self, folder: Path) -> bytes:
        """The file's bytes, verified."""
        path = folder / self.name
        if not path.is_file():
            raise DamagedError(f"{path} is missing")
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            raise DamagedError(f"{path} has {size} bytes instead of {self.size}")
        content = read_bytes(path, LARGEST)
        if not _matches(content, self.digest):
            raise DamagedError(f"{path} was altered (its checksum is wrong)")
        return content


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a dataset is published: an archive that unpacks to a folder of files."""

    archive: str
    archive_md5: str
    folder: str
    train: tuple[Member, ...]
    test: tuple[Member, ...]
    parse: Callable[[bytes], Arrays]

    def read(self, folder: Path, members: tuple[Member, ...]) -> Arrays:
        """The verified images and labels of some members, one after the other."""
        images, labels = zip(*(self.parse(member.read(folder)) for member in members), strict=True)
        return np.concatenate(images), np.concatenate(labels)


@dataclass(frozen=True)
class Cifar:
    """A dataset of 32×32 color images in one of several layouts."""

    name: str
    title: str
    description: str
    base_url: str
    layouts: tuple[Layout, ...]
    """The first is the one to fetch."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings for runs on this dataset."""

    @property
    def url(self) -> str:
        """Where the archive to fetch is."""
        return self.base_url + self.layouts[0].archive

    def load(self, folder: Path) -> ImageData:
        """Read and verify the dataset, unpacking its archive if that is all there is."""
        found = self._find(folder)
        if found is None:
            raise UsageError(self._missing(folder))
        layout, path = found
        try:
            if path.is_file():
                path = _unpack(layout, path, folder)
            train, test = layout.read(path, layout.train), layout.read(path, layout.test)
        except (DamagedError, OSError) as error:
            raise self._damaged(error) from error
        return ImageData(
            name=self.name,
            train_images=torch.from_numpy(train[0]),
            train_labels=torch.from_numpy(train[1].astype(np.int64)),
            test_images=torch.from_numpy(test[0]),
            test_labels=torch.from_numpy(test[1].astype(np.int64)),
            classes=self.classes,
            mean=self.mean,
            std=self.std,
        )

    def check(self, folder: Path) -> Status:
        """Read every file, or the archive, and compare its checksum."""
        found = self._find(folder)
        if found is None:
            return Status("missing", self._missing(folder), folder)
        layout, path = found
        try:
            if path.is_file():
                _verify_archive(layout, path)
                return Status("present", f"{path} is intact and will be unpacked when loaded", path)
            for member in layout.train + layout.test:
                member.read(path)
        except (DamagedError, OSError) as error:
            return Status("damaged", str(self._damaged(error)), path)
        return Status("present", f"{self.title} is intact in {path}", path)

    def get(self, folder: Path, progress: Advance | None = None) -> Status:
        """Fetch and unpack the archive, unless the dataset is there and intact."""
        layout = self.layouts[0]
        target = folder / layout.archive
        with download.alone(target, progress):
            status = self.check(folder)
            if status.state != "present":
                archive = download.fetch(self.url, target, layout.archive_md5, progress, most=LARGEST)
                unpack.extract(archive, folder, limit=LARGEST, members=MOST_MEMBERS)
                status = self.check(folder)
        return status

    def _find(self, folder: Path) -> tuple[Layout, Path] | None:
        """What to read: an unpacked folder, `folder` itself being one, or an archive."""
        for layout in self.layouts:
            if (folder / layout.folder).is_dir():
                return layout, folder / layout.folder
        for layout in self.layouts:
            if all((folder / member.name).is_file() for member in layout.train):
                return layout, folder
        for layout in self.layouts:
            if (folder / layout.archive).is_file():
                return layout, folder / layout.archive
        return None

    def _missing(self, folder: Path) -> str:
        return (
            f"{self.title} is not in {folder}: run {download.get_command(self.name, folder)}, look in another "
            f"data folder, or fetch {self.url} by hand and put it in {folder}"
        )

    def _damaged(self, problem: DamagedError | OSError) -> UsageError:
        if isinstance(problem, OSError):
            return UsageError(f"cannot read {problem.filename} ({problem.strerror})")
        return UsageError(f"{problem}: delete it and run `cler data get {self.name}`")


def _unpack(layout: Layout, archive: Path, folder: Path) -> Path:
    with download.alone(archive):
        if not (folder / layout.folder).is_dir():  # as it is once another process has unpacked it
            _verify_archive(layout, archive)
            unpack.extract(archive, folder, limit=LARGEST, members=MOST_MEMBERS)
    return folder / layout.folder


def _verify_archive(layout: Layout, archive: Path) -> None:
    if archive.stat().st_size > LARGEST or download.file_md5(archive) != layout.archive_md5:
        raise DamagedError(f"{archive} is truncated or altered (its checksum is wrong)")


def _matches(content: bytes, digest: str) -> bool:
    algorithm = "md5" if len(digest) == 32 else "sha256"
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == digest


def binary_records(label_bytes: int) -> Callable[[bytes], Arrays]:
    """A parser of records that are `label_bytes` labels, the last being the one to use, and 3072 pixels."""

    def parse(content: bytes) -> Arrays:
        if len(content) % (label_bytes + PIXELS):
            raise DamagedError(f"a file of {len(content)} bytes does not hold whole images")
        records = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + PIXELS)
        return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]

    return parse


def pickled_batch(label_key: bytes) -> Callable[[bytes], Arrays]:
    """A parser of pickled dictionaries with `data`, N×3072, and a list of labels under `label_key`."""

    def parse(content: bytes) -> Arrays:
        try:
            _check_memo(content)
            batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
            images = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
            return images, np.asarray(batch[label_key], dtype=np.uint8)
        except UsageError:
            raise
        except Exception as error:  # a pickle can fail with any error
            raise UsageError(f"a CIFAR pickle cannot be read ({type(error).__name__}: {error})") from error

    return parse


def _check_memo(content: bytes) -> None:
    """Refuse a pickle that numbers what it remembers beyond its own length: room would be made for all of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about texts in it
        numbers = [int(argument or 0) for opcode, argument, _ in pickletools.genops(content) if "PUT" in opcode.name]
    if max(numbers, default=0) > len(content):
        raise UsageError("refused to unpickle: a CIFAR file does not need so much memory")


def _uint8(code: bytes | str, *_: object) -> np.dtype[Any]:
    """Stands for numpy.dtype in a pickle; also keeps numpy from warning about the 0 and 1 of the old files."""
    if code not in (b"u1", "u1"):
        raise UsageError(f"refused to unpickle an array of {code!r}: a CIFAR file holds only bytes")
    return np.dtype(np.uint8)


_reconstruct = np.empty(0).__reduce__()[0]
PICKLE_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _uint8,
}
"""All that a uint8 array needs, under numpy's old name and its new one."""


class _ArrayUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, numbers, strings and uint8 arrays; refuses every other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """What a global name in the pickle stands for."""
        if (module, name) not in PICKLE_NAMES:
            raise UsageError(f"refused to unpickle {module}.{name}: a CIFAR file holds only arrays of bytes")
        return PICKLE_NAMES[module, name]


CIFAR10_BINARY = Layout(
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    # SHA-256 of the official layout rebuilt from a lossless copy of the images; other libraries publish the same.
    train=(
        Member("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", 30_730_000),
        Member("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", 30_730_000),
        Member("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", 30_730_000),
        Member("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", 30_730_000),
        Member("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", 30_730_000),
    ),
    test=(Member("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 30_730_000),),
    parse=binary_records(label_bytes=1),
)
CIFAR10_PYTHON = Layout(
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    train=(
        Member("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        Member("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        Member("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        Member("data_batch_4", "634d18415352ddfa80567beed471001a"),
        Member("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
    ),
    test=(Member("test_batch", "40351d587109b95175f43aff81a1287e"),),
    parse=pickled_batch(b"labels"),
)
CIFAR100_BINARY = Layout(
    archive="cifar-100-binary.tar.gz",
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train=(Member("train.bin", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29", 153_700_000),),
    test=(Member("test.bin", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a", 30_740_000),),
    parse=binary_records(label_bytes=2),
)
CIFAR100_PYTHON = Layout(
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    train=(Member("train", "16019d7e3df5f24257cddd939b257f8d"),),
    test=(Member("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
    parse=pickled_batch(b"fine_labels"),
)

OFFICIAL_SITE = "https://www.cs.toronto.edu/~kriz/"

cifar10 = register(
    Cifar(
        name="cifar10",
        title="CIFAR-10",
        description="60,000 photographs of 32×32 pixels in 10 classes (162 MB to fetch)",
        base_url=OFFICIAL_SITE,
        layouts=(CIFAR10_BINARY, CIFAR10_PYTHON),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2615),
        defaults={"tasks": 5},
    )
)
cifar100 = register(
    Cifar(
        name="cifar100",
        title="CIFAR-100",
        description="60,000 photographs of 32×32 pixels in 100 classes (161 MB to fetch)",
        base_url=OFFICIAL_SITE,
        layouts=(CIFAR100_BINARY, CIFAR100_PYTHON),
        classes=tuple(
            """
            apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
            butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach
            couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster
            house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
            motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
            pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket
            rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
            sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip
            turtle wardrobe whale willow_tree wolf woman worm
            """.split()  # noqa: SIM905  a hundred quoted names are harder to read
        ),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        defaults={"tasks": 10},
    )
)
