"""Folders of images: layouts, the split, what is broken, and the file of pixels."""

import json
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import cler
import photos
from cler import data, pictures
from cler.config.making import make_settings, unusual
from cler.data import decoding
from cler.data.reading import split
from cler.errors import UsageError
from cler.streams.domain_incremental import DomainIncremental

PLAIN = {f"{number}.png": photos.KINDS["plain.png"] for number in range(10)}


@pytest.fixture
def root(tmp_path):
    """Four classes of ten pictures of one size."""
    return photos.write_folder(tmp_path / "photos", kinds=PLAIN, size=(12, 12))


def load(root, **reading):
    return data.load(f"folder:{root}", root.parent / "kept", **reading)


def kept(root):
    return sorted((root.parent / "kept" / "decoded").iterdir())


def pixels_of(path):
    return np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_a_share_of_each_class_is_to_test_on(root):
    found = load(root)
    assert found.classes == photos.CLASSES
    assert found.train_labels.bincount().tolist() == [8] * 4
    assert found.test_labels.bincount().tolist() == [2] * 4
    every = {pixels_of(path).tobytes(): path.parent.name for path in root.rglob("*.png")}
    both = [(found.train_images, found.train_labels), (found.test_images, found.test_labels)]
    told = [
        (image.numpy().tobytes(), int(label))
        for images, labels in both
        for image, label in zip(images, labels, strict=True)
    ]
    assert {image: photos.CLASSES[label] for image, label in told} == every
    assert load(root, test_share=0.5).test_labels.bincount().tolist() == [5] * 4


def test_the_split_knows_no_place_and_hardly_changes_with_a_picture(root, tmp_path):
    before = load(root)
    root.rename(tmp_path / "elsewhere")
    moved = load(tmp_path / "elsewhere")
    assert moved.fingerprint() == before.fingerprint()
    photos.picture(0, 99, (12, 12)).save(tmp_path / "elsewhere/apple/new.png")
    after = load(tmp_path / "elsewhere")
    tested = {image.numpy().tobytes() for image in before.test_images}
    assert len(tested - {image.numpy().tobytes() for image in after.test_images}) <= 1


def test_a_class_keeps_an_image_on_each_side():
    assert sum(split(["a", "b"], [0, 0], ["x"], 0.9)) == 1
    assert sum(split(["a", "b", "c"], [0, 0, 0], ["x"], 0.01)) == 1
    with pytest.raises(UsageError, match="class x has one image: it needs one to train on and one to test on"):
        split(["a"], [0], ["x"], 0.2)


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("train", "val"), ("Train", "Validation"), ("training", "TESTING")]
)
def test_folders_to_train_and_to_test_on(tmp_path, train, test):
    photos.write_folder(tmp_path / "set" / train, kinds=PLAIN, size=(12, 12), fewer=2)
    photos.write_folder(tmp_path / "set" / test, kinds=dict([*PLAIN.items()][:3]), size=(12, 12), start=50)
    found = load(tmp_path / "set")
    assert found.train_labels.bincount().tolist() == [10, 8, 6, 4]
    assert found.test_labels.bincount().tolist() == [3] * 4
    assert np.array_equal(found.train_images[0].numpy(), pixels_of(tmp_path / "set" / train / "apple/0.png"))
    with pytest.raises(UsageError, match=r"test_share has no effect: folder:.* says itself which"):
        load(tmp_path / "set", test_share=0.5)
    (tmp_path / "set" / test / "zebra").mkdir()
    photos.picture(0, 0, (12, 12)).save(tmp_path / "set" / test / "zebra/1.png")
    with pytest.raises(UsageError, match="zebra is a class that has no images to train on"):
        load(tmp_path / "set")


def test_the_layout_of_tiny_imagenet_has_a_name_of_its_own(tmp_path):
    photos.write_tiny_imagenet(tmp_path / "tiny")
    with pytest.raises(
        UsageError, match=r"dataset .*tiny is laid out like tiny-imagenet: give that name, and .*tiny as the"
    ):
        load(tmp_path / "tiny")
    assert data.load("tiny-imagenet", tmp_path / "tiny").n_classes == 4


def test_a_folder_to_test_on_without_pictures_is_passed_over(tmp_path):
    photos.write_folder(tmp_path / "set/train", kinds=PLAIN, size=(12, 12))
    (tmp_path / "set/test/apple").mkdir(parents=True)
    assert load(tmp_path / "set").test_labels.bincount().tolist() == [2] * 4
    photos.write_folder(tmp_path / "set/val", kinds=dict([*PLAIN.items()][:3]), size=(12, 12), start=50)
    assert load(tmp_path / "set").test_labels.bincount().tolist() == [3] * 4


def test_pictures_that_come_later_change_what_is_usual(tmp_path):
    for name in photos.CLASSES:
        (tmp_path / "set" / name).mkdir(parents=True)
    assert make_settings(dataset=f"folder:{tmp_path / 'set'}").tasks == 1
    for label, name in enumerate(photos.CLASSES):
        photos.picture(label, 0).save(tmp_path / "set" / name / "1.png")
    assert make_settings(dataset=f"folder:{tmp_path / 'set'}").tasks == 2


def test_a_folder_called_train_may_be_a_class(tmp_path):
    photos.write_folder(tmp_path / "vehicles", kinds=PLAIN, classes=("bus", "train"), size=(12, 12))
    assert load(tmp_path / "vehicles").classes == ("bus", "train")


def test_folders_in_classes_and_links_are_looked_into(root, tmp_path):
    deep = root / "apple/2024/may"
    deep.mkdir(parents=True)
    (root / "bear").rename(tmp_path / "bears")
    (root / "bear").symlink_to(tmp_path / "bears")
    (deep / "around").symlink_to(root / "apple")
    (root / "apple/0.png").rename(deep / "0.png")
    assert load(root).train_labels.bincount().tolist() == [8] * 4


def test_what_is_no_image_by_its_name_is_passed_over(root):
    before = load(root)
    for name, content in photos.OTHERS.items():
        (root / "apple" / name).write_bytes(content)
        (root / name).write_bytes(content)
    (root / "notes").mkdir()
    (root / "notes/a.xml").write_text("<a/>")
    (root / ".git").mkdir()
    photos.picture(0, 0).save(root / ".git/icon.png")
    assert load(root).fingerprint() == before.fingerprint()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda root: None, "there is no folder .*: folder:PATH takes one with a folder for each class"),
        (lambda root: root.mkdir(), "there are no images in .*: they are looked for in .*CLASS/"),
        (lambda root: root.write_text("x"), "there is no folder"),
        (
            lambda root: photos.write_folder(root, kinds=PLAIN, classes=("one",), size=(9, 9)),
            "has 1 class: it needs at",
        ),
    ],
)
def test_folders_that_are_no_dataset(tmp_path, make, says):
    make(tmp_path / "no")
    with pytest.raises(UsageError, match=says):
        load(tmp_path / "no")
    assert data.check(f"folder:{tmp_path / 'no'}", tmp_path).state == "missing"


def test_pictures_of_different_sizes_need_one(tmp_path):
    root = photos.write_folder(tmp_path / "photos", fewer=1)
    with pytest.raises(UsageError, match=r"size must be given, such as 64, .*: there are .* with \d+×\d+ and .*24$"):
        load(root)
    assert load(root, size=20).train_images.shape[1:] == (3, 20, 20)
    fingerprints = {load(root, size=20, fit=fit).fingerprint() for fit in ("crop", "pad", "stretch")}
    assert len(fingerprints) == 3
    with pytest.raises(UsageError, match="fit has no effect without a size"):
        load(root, fit="pad")
    status = data.check(f"folder:{root}", tmp_path / "kept")
    assert status.state == "present"
    assert status.reason.endswith(
        "in 4 classes of 9 to 11, 10 test images, of different sizes: runs need a size, such as 64"
    )


def test_headers_are_read_only_where_sizes_differ(root, monkeypatch):
    """In one process: of a hundred thousand pictures it would take as long as all the rest."""
    read, size_of = [], pictures.size_of
    monkeypatch.setattr(pictures, "size_of", lambda source: read.append(source) or size_of(source))
    (root / "apple/0.png").write_bytes(b"")
    load(root, skip_broken=True)
    assert read == [root / "apple/0.png", root / "apple/1.png"]
    photos.picture(3, 3, (13, 12)).save(root / "door/3.png")
    with pytest.raises(UsageError, match=r"sizes: there are apple/1.png with 12×12 and door/3.png with 13×12$"):
        load(root, skip_broken=True)


def test_a_picture_that_is_not_what_its_header_says_is_broken(root, monkeypatch):
    photos.picture(3, 3, (13, 12)).save(root / "door/3.png")
    monkeypatch.setattr(pictures, "size_of", lambda source: (12, 12))
    with pytest.raises(UsageError, match=r"1 of 40 cannot be read, door/3.png \(it turns out to have 13×12 pixels\)$"):
        load(root)


def test_pictures_that_would_fill_the_memory_need_a_size(root, monkeypatch):
    monkeypatch.setattr(decoding, "_memory", lambda: 30_000)
    with pytest.raises(UsageError, match=r"size must be given, such as 64: 40 images of 12×12 pixels take 0 GB"):
        load(root)


# -- domains -----------------------------------------------------------------------------------------------------------


def write_domains(root, names=("clip", "art", "real")):
    for number, name in enumerate(names):
        kinds = dict([*PLAIN.items()][: 10 - 2 * number])
        photos.write_folder(root / name, kinds=kinds, size=(12, 12), start=20 * number)
    return root


def test_folders_of_domains_are_the_tasks_of_a_stream(tmp_path):
    found = data.load(f"domains:{write_domains(tmp_path / 'set')}", tmp_path)
    assert (found.classes, found.domains) == (photos.CLASSES, ("art", "clip", "real"))
    assert found.train_domains.bincount().tolist() == [4 * 6, 4 * 8, 4 * 5]
    assert found.test_domains.bincount().tolist() == [4 * 2, 4 * 2, 4 * 1]
    settings = make_settings(dataset=f"domains:{tmp_path / 'set'}")
    assert (settings.stream, settings.tasks, settings.options["domains"]) == ("domain-incremental", 3, "folders")
    stream = DomainIncremental(found, 3, batch=4, options=DomainIncremental.Options("folders"))
    for task, name in enumerate(found.domains):
        files = {pixels_of(path).tobytes() for path in (tmp_path / "set" / name).rglob("*.png")}
        came = stream.order(task, torch.Generator().manual_seed(0)).flatten()
        trained, tested = found.train_images[came], stream.test(task)
        assert {image.numpy().tobytes() for image in trained} <= files
        assert {image.numpy().tobytes() for image in tested.images[tested.members]} <= files
        assert len(tested.labels) == found.test_domains.bincount()[task]
    for stream in ("class-incremental", "blurry"):
        mixed = make_settings(dataset=f"domains:{tmp_path / 'set'}", stream=stream)
        assert (mixed.tasks, "domains" in mixed.options) == (2, False)
        assert "tasks" not in unusual(mixed)
    turned = make_settings(dataset=f"domains:{tmp_path / 'set'}", domains="rotations")
    assert (turned.stream, turned.tasks) == ("domain-incremental", 4)


def test_domains_with_folders_to_test_on(tmp_path):
    write_domains(tmp_path / "set/train")
    write_domains(tmp_path / "set/test", ("clip", "art"))
    found = data.load(f"domains:{tmp_path / 'set'}", tmp_path)
    assert found.test_domains.bincount().tolist() == [4 * 8, 4 * 10]
    with pytest.raises(UsageError, match="the domain real has no images to test on"):
        DomainIncremental(found, 3, batch=4, options=DomainIncremental.Options("folders"))
    DomainIncremental(found, 2, batch=4, options=DomainIncremental.Options("folders"))
    (tmp_path / "set/test/art/zebra").mkdir()
    photos.picture(0, 0, (12, 12)).save(tmp_path / "set/test/art/zebra/1.png")
    with pytest.raises(UsageError, match="zebra has a domain or class that has no images to train on"):
        data.load(f"domains:{tmp_path / 'set'}", tmp_path)


def test_what_has_no_domains(root, tmp_path):
    with pytest.raises(
        UsageError, match=r"domains folders are those of a dataset domains:PATH, and folder:.* has none"
    ):
        DomainIncremental(load(root), 2, batch=4, options=DomainIncremental.Options("folders"))
    photos.write_folder(tmp_path / "set/one", kinds=PLAIN, size=(12, 12))
    with pytest.raises(UsageError, match="needs two domains with images or more: they are looked for in DOMAIN/CLASS/"):
        data.load(f"domains:{tmp_path / 'set'}", tmp_path)
    with pytest.raises(UsageError, match="takes one with a folder for each domain, and in it one for each class"):
        data.load(f"domains:{tmp_path / 'nowhere'}", tmp_path)


# -- broken pictures ---------------------------------------------------------------------------------------------------


def test_broken_pictures_are_named_and_left_out_on_request(root):
    whole = load(root)
    (root / "apple/zero.png").write_bytes(b"")
    (root / "bear/cut.png").write_bytes((root / "bear/1.png").read_bytes()[:-60])
    (root / "cup/text.jpg").write_text("no picture")
    (root / "door/gone.png").symlink_to("nowhere")  # which is no file, and so no picture
    for _ in range(2):  # decoded, and from the file of pixels
        with pytest.raises(UsageError) as raised:
            load(root)
        line = str(raised.value)
        assert line.startswith(f"skip_broken is needed to leave out images of folder:{root}: 3 of 43 cannot be read, ")
        assert "apple/zero.png (it is no image), bear/cut.png (" in line
        assert "cup/text.jpg (it is no image)" in line
        assert "\n" not in line
    assert load(root, skip_broken=True).fingerprint() == whole.fingerprint()
    status = data.check(f"folder:{root}", root.parent / "kept")
    assert (status.state, status.reason[:22]) == ("damaged", "3 of 43 cannot be read")
    assert status.reason.endswith("; runs can leave them out by --skip-broken")


def test_many_broken_pictures_are_counted(root):
    for number in range(9):
        (root / f"cup/z{number}.png").write_bytes(b"x")
    with pytest.raises(
        UsageError, match=r"9 of 49 cannot be read, cup/z0.png .*, cup/z2.png \(it is no image\) and 6 more$"
    ):
        load(root)


def test_a_class_of_which_nothing_can_be_read(root):
    for path in (root / "cup").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(UsageError, match="class cup has no image to train on"):
        load(root, skip_broken=True)
    for path in root.rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.raises(UsageError, match="has no image to test on that can be read"):
        load(root, skip_broken=True)


# -- the file of pixels ------------------------------------------------------------------------------------------------


def forbid_decoding(monkeypatch):
    monkeypatch.setattr(pictures, "decoded", lambda *_: pytest.fail("was decoded"))


def test_pictures_are_decoded_once(root, monkeypatch):
    first = load(root)
    forbid_decoding(monkeypatch)
    again = load(root)
    assert again.fingerprint() == first.fingerprint()
    again.train_images.zero_()  # what a user does to the tensors stays with them
    assert load(root).fingerprint() == first.fingerprint()


@pytest.mark.parametrize("place", [0, 33, 45, -1])
def test_a_damaged_file_of_pixels_is_made_again(root, place):
    first = load(root)
    (path,) = kept(root)
    whole = path.read_bytes()
    for damaged in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place:][1:], whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        assert load(root).fingerprint() == first.fingerprint()
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "about",
    [
        {"shape": [40, 432], "broken": {}},
        {"shape": [40, 3, 12, 12], "broken": {"40": "x"}},
        {"shape": [39, 3, 12, 12], "broken": {"-1": "x"}},
        {"shape": [40, 12, 12, 3], "broken": {}},
        {"shape": [], "broken": {}},
        {"shape": {"0": 40}, "broken": {}},
    ],
    ids=str,
)
def test_a_file_of_pixels_that_lies_is_made_again(tmp_path, about):
    pixels = decoding.Pixels(np.zeros((40, 3, 12, 12), np.uint8), {})
    header, content = json.dumps(about).encode(), pixels.images[: 39 if "-1" in about["broken"] else 40]
    digest = decoding._digest(b"listed", header, content)
    (tmp_path / "x").write_bytes(digest + len(header).to_bytes(8) + header + content.tobytes())
    assert decoding.kept_pixels(tmp_path / "x", b"listed", 40, lambda: pixels) is pixels
    again = decoding.kept_pixels(tmp_path / "x", b"listed", 40, lambda: pytest.fail("was decoded"))
    assert again.images.shape == (40, 3, 12, 12)


def test_a_changed_folder_is_noticed(root):
    before = load(root)
    path = root / "cup/3.png"
    photos.picture(3, 77, (12, 12)).save(path)
    changed = load(root)
    assert changed.fingerprint() != before.fingerprint()
    (root / "cup/3.png").unlink()
    assert len(load(root).train_labels) + len(load(root).test_labels) == 39
    assert len(kept(root)) == 1


def test_without_room_pictures_are_decoded_each_time(root, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    first = load(root)
    assert load(root).fingerprint() == first.fingerprint()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cler", logging.WARNING)
    assert "No space left on device): they are decoded each time" in record.message
    assert kept(root) == []


def test_processes_decode_what_one_does(root, monkeypatch):
    (root / "cup/broken.png").write_bytes(b"x")
    alone = load(root, skip_broken=True)
    (path,) = kept(root)
    path.unlink()
    monkeypatch.setattr(decoding, "ALONE", (1, 1))
    monkeypatch.setattr(decoding, "CHUNK", 21)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    forbid_decoding(monkeypatch)  # in this process
    seen = []
    together = data.load(
        f"folder:{root}", root.parent / "kept", skip_broken=True, progress=lambda *done: seen.append(done)
    )
    assert together.fingerprint() == alone.fingerprint()
    assert seen[-1] == (41, 41)


KILLED = """
import os, signal, sys
from pathlib import Path
from cler.data import decoding

def content(number):
    if number == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return Path(sys.argv[1])

decoding.CHUNK, decoding.ALONE = 1, (0, 0)
os.sched_getaffinity = lambda process: {0, 1}
decoding.decode([decoding.Encoded("x", "", 1)] * 10, content, 8, "crop")
"""


@pytest.mark.skipif(os.name != "posix", reason="nothing is killed like this elsewhere")
def test_processes_that_decode_end_with_the_one_that_is_killed(root):
    command = [sys.executable, "-c", KILLED, root / "cup" / "3.png"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600)
    assert done.returncode == -signal.SIGKILL  # and nobody holds its output open any more


# -- runs --------------------------------------------------------------------------------------------------------------

SMALL = ("--width", 2, "--batch", 8, "--buffer", 8, "--replay-batch", 8, "--workers", 1)


def test_from_a_folder_to_a_trained_run(cler_here, tmp_path):
    """The defaults fit its classes, its name is in the folder's, and its pixels, not its path, are what it is."""
    photos.write_folder(tmp_path / "photos", fewer=1)
    code, _, err = cler_here("run", "er-ace", "--dataset", "folder:photos", *SMALL)
    assert code == 2
    assert err.startswith("cler: --size must be given, such as 64, for images of different sizes: there are apple/")
    run = ("run", "er-ace", "--size", 12, *SMALL, "--dataset")
    code, _, err = cler_here(*run, "folder:photos", "--until-task", 1)
    assert code == 0, err
    (tmp_path / "photos").rename(tmp_path / "moved")
    code, _, err = cler_here(*run, "folder:moved")
    assert code == 0, err
    assert "resuming from task 2, step 1" in err
    (file,) = tmp_path.glob("runs/er-ace_folder-photos_m8*/seed-0/result.json")
    result = json.loads(file.read_text())
    assert result["complete"]
    assert (result["settings"]["dataset"], result["settings"]["tasks"]) == ("folder:moved", 2)
    (tmp_path / "moved").rename(tmp_path / "again")
    code, _, err = cler_here(*run, "folder:again")
    assert (code, err) == (0, "1 of 1 runs are already in runs\n")
    (tmp_path / "again/cup/broken.png").write_bytes(b"x")
    code, out, err = cler_here(*run, "folder:again")
    assert (code, out) == (2, "")
    assert err == (
        "cler: --skip-broken is needed to leave out images of folder:again: 1 of 51 cannot be read, cup/broken.png "
        "(it is no image)\n"
    )
    code, _, err = cler_here(*run, "folder:again", "--skip-broken")
    assert (code, err) == (0, "1 of 1 runs are already in runs\n")
    photos.picture(2, 77).save(tmp_path / "again/cup/broken.png")
    code, _, err = cler_here(*run, "folder:again")
    assert code == 0
    assert "1 of 1 runs are already" not in err


def test_tasks_that_do_not_divide_the_classes_are_refused(cler_here, tmp_path):
    photos.write_folder(tmp_path / "photos", kinds=PLAIN, size=(12, 12))
    code, _, err = cler_here("run", "er-ace", "--dataset", "folder:photos", "--tasks", 3, *SMALL)
    assert code == 2
    assert err.startswith(
        "cler: --tasks must be a number that divides the 4 classes (1, 2, 4), or the number of classes"
    )


def test_settings_of_a_stream_after_set(cler_here, tmp_path):
    """The stream may be the dataset's; a mistake is told in the words of the command line."""
    write_domains(tmp_path / "set")
    run = ("run", "er,er-ace", "--dataset", "domains:set", *SMALL)
    code, _, err = cler_here(*run, "--set", "domains=rotations")
    assert code == 0, err
    assert "ER on domains:set, seed 0: stream domain-incremental, tasks 4, " in err
    assert "ER-ACE on domains:set, seed 0: like the first\n" in err
    assert cler_here(*run, "--set", "blur=7")[::2] == (
        2,
        "cler: unknown setting of er, er-ace 'blur' (known: domains); the stream blurry has one of that name\n",
    )
    assert cler_here("run", "--set", "blur=7")[::2] == (
        2,
        "cler: er-ace has no settings of its own: leave --set out; the stream blurry has one of that name\n",
    )
    assert cler_here("run", "--set", "distill=7").err.endswith(
        "; the method dualnet, the method ccl-dc have one of that name\n"
    )
    assert cler_here("run", "--stream", "blurry", "--set", "blur=700")[::2] == (
        2,
        "cler: --set blur must be at least 0 and at most 100, not 700\n",
    )


def test_settings_that_have_no_effect_are_refused(cler_here):
    assert cler_here("run", "--size", 16)[::2] == (2, "cler: --size has no effect on cifar10-sample: leave it out\n")
    code, _, err = cler_here("run", "--dataset", "fodler:photos")
    assert code == 2
    assert err.endswith("folder:PATH, domains:PATH, npz:PATH, hf:NAME); did you mean 'folder:PATH'?\n")
    code, _, err = cler_here("run", "--dataset", "folder:")
    assert (code, "unknown dataset 'folder:'" in err) == (2, True)


def test_the_list_tells_of_datasets_of_your_own(cler_here, tmp_path):
    code, out, _ = cler_here("data", "list")
    assert code == 0
    assert all(form in out for form in ("folder:PATH", "npz:PATH", "hf:NAME"))
    photos.write_folder(tmp_path / "photos", kinds=PLAIN, size=(12, 12))
    code, out, _ = cler_here("data", "check", "folder:photos")
    assert code == 0
    assert out.startswith(
        "folder:photos: present - 32 training images in 4 classes of 8, 8 test images, of 12×12 pixels"
    )


def test_from_python(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = data.folder(root, size=8, data_dir=tmp_path / "kept")
    assert (images.name, images.defaults) == ("photos", {"tasks": 2})
    small = {"width": 2, "batch": 8, "buffer": 8, "replay_batch": 8, "device": "cpu", "workers": 1, "verbose": False}
    given = cler.train("er-ace", dataset=images, **small)
    named = cler.train("er-ace", dataset=f"folder:{root}", size=8, data_dir=tmp_path / "kept", **small)
    assert given.settings["dataset"] == "photos"
    assert (named.accuracy["class_il"] == given.accuracy["class_il"])[:, 1].all()
