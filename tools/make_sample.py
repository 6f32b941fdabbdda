"""Make the images that come with the package from CIFAR-10.

    python tools/make_sample.py FOLDER [--out OUT] [--train 500] [--test 100]

FOLDER is `cifar-10-batches-bin`, or a data folder that holds it. Takes the first images of each class in their
original order and writes one file per class, and an index, to OUT (the package's own folder unless told otherwise).
Nothing is random: the same images give the same files, up to the version of xz. Takes about 20 seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch

from cler import data
from cler.data import sample
from cler.errors import UsageError

PACKAGE_FOLDER = Path(sample.__file__).parent / "sample"


def first_of_class(images: torch.Tensor, labels: torch.Tensor, label: int, count: int) -> torch.Tensor:
    return images[(labels == label).nonzero().flatten()[:count]]


def write_shard(images: data.ImageData, label: int, train: int, test: int, out: Path) -> dict[str, object]:
    pixels = torch.cat(
        [
            first_of_class(images.train_images, images.train_labels, label, train),
            first_of_class(images.test_images, images.test_labels, label, test),
        ]
    ).numpy()
    name = f"{images.classes[label]}.xz"
    (out / name).write_bytes(sample.pack(pixels))
    return {"file": name, "label": label, "sha256": hashlib.sha256(pixels.tobytes()).hexdigest()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the images that come with the package from CIFAR-10.")
    parser.add_argument("folder", help="cifar-10-batches-bin, or a data folder that holds it")
    parser.add_argument("--out", type=Path, default=PACKAGE_FOLDER, help="where to write the files")
    parser.add_argument("--train", type=int, default=500, help="training images per class")
    parser.add_argument("--test", type=int, default=100, help="test images per class")
    options = parser.parse_args()

    try:
        images = data.load("cifar10", options.folder)
    except UsageError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    shards = [write_shard(images, label, options.train, options.test, options.out) for label in range(images.n_classes)]
    index = {
        "train_per_class": options.train,
        "test_per_class": options.test,
        "height": images.image_size,
        "width": images.image_size,
        "shards": shards,
    }
    (options.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    for path in sorted(options.out.iterdir()):
        print(f"{path.stat().st_size:>9}  {path.name}")
    sample.Sample(options.out).load(options.out)


if __name__ == "__main__":
    main()
