"""`cler learn`, as a user types it: in this process, but for what is about processes."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image

from cler.errors import UsageError
from cler.files import HOST, writing
from cler.learner import Learner, fileformat
from cler.learner import folder as watching
from cler.learner.core import Core
from cler.methods import METHODS
from cler.runs import folders
from toys import wait_until

TINY = ("--width", "4", "--image-size", "8", "--buffer", "20", "--device", "cpu")


def put(folder, count, first=0, labels=("red", "green")):
    """So many images of each label, of an odd size, in files that are numbered and as old as their numbers say."""
    for channel, label in enumerate(labels):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            pixels = np.random.default_rng([number, channel]).integers(0, 60, (9, 13, 3))
            pixels[..., channel] += 150
            path = folder / label / f".{number}.png"  # hidden until it is complete, for who watches
            Image.fromarray(pixels.astype(np.uint8)).save(path)
            os.utime(path, (number, number))
            path.rename(folder / label / f"{number}.png")


@pytest.fixture
def learn(cler_here):
    """The command `cler learn`."""
    return partial(cler_here, "learn")


def summary(answer):
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


def journal(folder):
    return [json.loads(line)[0] for line in (folder / ".cler" / watching.JOURNAL).read_text().splitlines()]


def names(folder):
    return {f"{path.parent.name}/{path.name}" for path in folder.glob("[!.]*/*.png")}


# -- what it does ------------------------------------------------------------------------------------------------------


def test_learns_what_is_there_and_tests_on_the_rest(learn, tmp_path):
    put(tmp_path, 40)
    found = summary(learn(tmp_path, "--once", "--json", "--held-out", 0.3, "--lr", 0.03, *TINY))
    assert found["images"] + found["held_out"] == 80
    assert 10 < found["held_out"] < 40
    assert sorted(found["classes"]) == ["green", "red"]
    assert found["accuracy"] is not None
    assert len(journal(tmp_path)) == found["images"]
    learner = Learner.load(found["learner"])
    assert learner.n_seen_ == found["images"]
    assert set(learner.predict([Image.new("RGB", (5, 7), "red")])) <= {"red", "green"}


def test_names_in_json_are_as_they_are_written(learn, tmp_path):
    put(tmp_path, 5, labels=("été", "hiver"))
    out = learn(tmp_path, "--once", "--json", "--held-out", 0, *TINY).out
    assert '"été"' in out
    assert json.loads(out)["classes"] == ["hiver", "été"]


def test_the_words_for_numbers_of_images():
    summary = {"images": 1, "waiting": 0, "classes": ["a"], "accuracy": 0.0, "held_out": 1}
    line = "1 image of 1 class learned, 0.0 % accuracy on 1 held-out image"
    assert import_module("cler.learner.watch").summary_line(summary) == line


def test_a_method_of_the_users_own_learns_and_resumes(learn, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "watchful", raising=False)
    put(tmp_path / "photos", 5)
    (tmp_path / "watchful.py").write_text(
        "import cler\nfrom cler.methods.er import ExperienceReplay\n"
        "@cler.register\nclass Watchful(ExperienceReplay):\n    name = 'watchful'\n"
    )
    own = ("--method", "watchful", "--import", tmp_path / "watchful.py", "--once", "--json", "--held-out", 0)
    assert summary(learn(tmp_path / "photos", *own, *TINY))["images"] == 10
    put(tmp_path / "photos", 1, first=5)
    assert summary(learn(tmp_path / "photos", *own, *TINY))["images"] == 12
    monkeypatch.delitem(METHODS._entries, "watchful")  # as in the next process
    told = mistake(learn(tmp_path / "photos", "--once"))
    assert "it was made with the method 'watchful', one of your own: name its file with --import (in Python, " in told


def test_resuming_learns_only_what_is_new(learn, tmp_path):
    put(tmp_path, 12)
    first = summary(learn(tmp_path, "--once", "--json", *TINY))
    again = summary(learn(tmp_path, "--once", "--json"))
    assert again == first
    put(tmp_path, 12, first=12, labels=("red", "green", "blue"))
    more = summary(learn(tmp_path, "--once", "--json"))
    assert more["images"] + more["held_out"] == 60
    assert len(set(journal(tmp_path))) == more["images"]
    assert "blue" in more["classes"]


def test_held_out_images_stay_held_out(learn, tmp_path):
    put(tmp_path, 30)
    summary(learn(tmp_path, "--once", "--json", "--held-out", 0.3, *TINY))
    learned = set(journal(tmp_path))
    again = summary(learn(tmp_path, "--once", "--json"))
    assert again["images"] == len(learned)  # and what is held out does not become an example
    assert again["held_out"] == 60 - len(learned)
    assert "has --held-out 0.3" in mistake(learn(tmp_path, "--once", "--held-out", 0.1))
    (tmp_path / ".cler" / watching.HELD_OUT).write_text('{"held_out": "half"}')
    assert "give --held-out" in mistake(learn(tmp_path, "--once"))


def test_an_image_that_is_written_again_is_learned_again(learn, tmp_path):
    put(tmp_path, 12)
    summary(learn(tmp_path, "--once", "--json", "--held-out", 0, *TINY))
    Image.new("RGB", (30, 30)).save(tmp_path / "red" / "3.png")
    assert summary(learn(tmp_path, "--once", "--json", "--held-out", 0))["images"] == 25


def test_other_files_are_left_alone(learn, tmp_path):
    put(tmp_path, 10)
    put(tmp_path, 1, first=50, labels=(".hidden",))
    (tmp_path / "red" / "notes.txt").write_text("not an image")
    (tmp_path / "red" / ".5.png").write_text("a temporary file of a copy")
    (tmp_path / "at-the-top.png").write_bytes((tmp_path / "red" / "0.png").read_bytes())
    assert summary(learn(tmp_path, "--once", "--json", "--held-out", 0, *TINY))["images"] == 20


def test_broken_images_are_left_out_with_a_line(learn, tmp_path):
    put(tmp_path, 10)
    (tmp_path / "red" / "broken.png").write_text("nothing that could be read")
    whole = (tmp_path / "red" / "0.png").read_bytes()
    (tmp_path / "green" / "half.png").write_bytes(whole[: len(whole) // 2])
    code, out, err = learn(tmp_path, "--once", "--held-out", 0, *TINY)
    assert code == 0
    assert "20 images of 2 classes learned" in out
    assert [line.split(" is left out")[0].split("/")[-1] for line in err.splitlines()] == ["broken.png", "half.png"]


def test_entries_that_are_no_files_are_left_alone(learn, tmp_path):
    put(tmp_path, 5)
    os.mkfifo(tmp_path / "red" / "pipe.png")
    (tmp_path / "red" / "loop.png").symlink_to("loop.png")
    (tmp_path / "red" / "nothing.png").symlink_to("nowhere.png")
    (tmp_path / "red" / "folder.png").mkdir()
    (tmp_path / "blue").symlink_to("blue")
    code, out, err = learn(tmp_path, "--once", "--held-out", 0, *TINY)
    assert (code, err) == (0, "")
    assert "10 images of 2 classes learned" in out


def test_names_that_would_break_the_line(learn, tmp_path):
    put(tmp_path, 5)
    (tmp_path / "red" / "two\nlines\x1b[2J.png").write_bytes(b"")
    code, _, err = learn(tmp_path, "--once", "--held-out", 0, *TINY)
    assert code == 0
    assert len(err.splitlines()) == 1
    assert "\x1b" not in err


def test_what_is_odd_about_a_picture_is_not_printed(learn, tmp_path):
    put(tmp_path, 5)
    Image.new("RGB", (9, 9)).quantize(2).save(tmp_path / "red" / "odd.png", transparency=b"\0\x80")
    code, out, err = learn(tmp_path, "--once", "--held-out", 0, *TINY)
    assert (code, err) == (0, "")
    assert out.startswith("10 images of 2 classes learned, 1 waiting for a full batch, no held-out image")


def test_a_half_written_image_is_tried_again(tmp_path):
    put(tmp_path, 10)
    state = tmp_path / ".cler"
    state.mkdir()
    whole = (tmp_path / "red" / "0.png").read_bytes()
    late, never = tmp_path / "red" / "late.png", tmp_path / "red" / "never.png"
    for path in (late, never):
        path.write_bytes(whole[:100])
    said = []
    learner = Learner(image_size=8, width=4, buffer=20, device="cpu")
    watched = watching.FolderLearner(tmp_path, state, learner, held_out=0, message=said.append)
    for _ in watched.learn():
        pass
    assert learner.n_seen_ == 20
    assert said == []
    late.write_bytes(whole)
    for _ in range(watching.TRIES + 2):
        for _ in watched.learn():
            pass
    assert learner.n_seen_ == 21
    assert len(said) == 1
    assert "never.png is left out" in said[0]


def test_only_so_many_held_out_images_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "MOST_HELD_OUT", 5)
    put(tmp_path, 20)
    (tmp_path / ".cler").mkdir()
    learner = Learner(image_size=8, width=4, buffer=20, device="cpu")
    watched = watching.FolderLearner(tmp_path, tmp_path / ".cler", learner, held_out=0.5)
    for _ in watched.learn():
        pass
    assert watched.accuracy()[1] == 5
    assert learner.n_seen_ < 30  # the others are not learned for it


# -- files and folders that go away ------------------------------------------------------------------------------------


def killed(*_):
    raise KeyboardInterrupt


@pytest.fixture
def watch(tmp_path):
    """A learner of tmp_path that goes on from what is kept there."""
    state = tmp_path / ".cler"
    state.mkdir()

    def call():
        file = state / watching.LEARNER
        learner = Learner.load(file) if file.exists() else Learner("finetune", "none", image_size=8, width=1)
        return watching.FolderLearner(tmp_path, state, learner, held_out=0)

    return call


def look(watched):
    """Learn what is there; how many images these are."""
    before = watched.learner.n_seen_
    for _ in watched.learn():
        pass
    return watched.learner.n_seen_ - before


def test_names_do_not_pile_up(watch, tmp_path):
    watched = watch()
    for first in range(0, 60, 10):
        put(tmp_path, 10, first)
        assert look(watched) == 20
        watched.save()
        assert len(journal(tmp_path)) == len(watched._taken) <= 21
        for name in names(tmp_path):
            (tmp_path / name).unlink()
    assert look(watched) == 0
    watched.save()
    assert journal(tmp_path) == ["red/59.png"]
    put(tmp_path, 10, 55)
    assert look(watch()) == 19  # what comes back is new, but for the one that marks how far it is


def test_a_file_that_is_renamed_is_not_learned_again(watch, tmp_path):
    put(tmp_path, 5)
    watched, said = watch(), []
    watched.message = said.append
    look(watched)
    watched.save()
    for number in (2, 4):  # the last one marks how far it is
        (tmp_path / "red" / f"{number}.png").rename(tmp_path / "red" / f"new-{number}.png")
    assert look(watched) == 0
    assert watched.unsaved
    watched.save()
    assert sorted(journal(tmp_path)) == sorted(names(tmp_path))
    (tmp_path / "red" / "1.png").rename(tmp_path / "red" / "new-1.png")
    assert look(watch()) == 0  # it was renamed while nobody watched
    put(tmp_path, 3, labels=("red",))
    assert look(watched) == 2  # others in the place of the ones that have another name now
    assert said == []


def test_files_that_cannot_be_told_apart_are_not_taken_for_renamed_ones(watch, tmp_path):
    def fill(names):
        for label in ("red", "green"):
            (tmp_path / label).mkdir(exist_ok=True)
            for name in names:
                Image.new("RGB", (9, 9), label).save(tmp_path / label / f"{name}.bmp")
                os.utime(tmp_path / label / f"{name}.bmp", (1, 1))

    watched = watch()
    fill("abcde")
    assert look(watched) == 10
    for path in tmp_path.glob("*/*.bmp"):
        path.unlink()
    fill("vwxyz")
    assert look(watched) == 10


def test_a_label_that_is_renamed_is_left_out_with_a_line(watch, tmp_path):
    put(tmp_path, 20)
    for restarted in (False, True):
        watched, said = watch(), []
        watched.message, watched.held_out = said.append, 0.3
        seen = watched.learner.n_seen_ + look(watched)
        count = sum(name.startswith("red/") for name in watched._taken)
        watched.save()
        (tmp_path / "red").rename(tmp_path / "rouge")
        watched = watch() if restarted else watched
        watched.message, watched.held_out = said.append, 0.3
        assert [look(watched) for _ in range(3)] == [0, 0, 0]
        assert not {each.label for each in watched._exam} & {"rouge"}
        assert said == [
            f"{tmp_path / 'rouge'} holds {count} images learned as red, and is left out, or rouge would be one more "
            f"class: rename it back to red, or, to start over, stop the command, delete {watched.path} and run it again"
        ]
        watched.save()
        assert watch().learner.classes_.tolist() == ["green", "red"]
        (tmp_path / "rouge").rename(tmp_path / "red")
        assert look(watched) == 0
        assert watched.learner.n_seen_ == seen
    (tmp_path / "red").rename(tmp_path / "rouge")
    for path in (tmp_path / "rouge").iterdir():
        path.touch()
    look(watched)  # which asks for it
    assert watched.learner.classes_.tolist() == ["green", "red", "rouge"]


def test_an_image_that_moves_to_another_label_is_left_out_with_a_line(watch, tmp_path):
    put(tmp_path, 5)
    watched, said = watch(), []
    watched.message = said.append
    look(watched)
    moved = tmp_path / "green" / "moved.png"
    (tmp_path / "red" / "1.png").rename(moved)
    put(tmp_path, 1, first=5)
    assert [look(watched) for _ in range(2)] == [2, 0]
    assert len(said) == 1
    assert f"{tmp_path / 'green'} holds 1 image learned as red, left out here: move back what was moved" in said[0]
    watched.save()
    watched = watch()
    watched.message = said.append
    assert look(watched) == 0
    assert said[0] == said[1]
    moved.touch()
    assert look(watched) == 1
    assert "red/1.png" not in watched._taken


def test_a_copy_with_other_times_is_not_learned_again(learn, tmp_path):
    put(tmp_path / "in", 10)
    kept = ("--once", "--held-out", 0)
    first = summary(learn(tmp_path / "in", *kept, "--json", *TINY))
    shutil.copytree(tmp_path / "in", tmp_path / "copy", copy_function=shutil.copyfile)
    put(tmp_path / "copy", 1, first=10)
    code, _, err = learn(tmp_path / "copy", *kept)
    told = "20 images of the name and size of what was learned, but of another time, as after a copy: not learned again"
    assert (code, err.splitlines()) == (0, [told])
    again = learn(tmp_path / "copy", *kept, "--json")
    assert summary(again)["images"] == first["images"] + 2
    assert again.err == ""
    for number in range(3):
        (tmp_path / "copy" / "red" / f"{number}.png").touch()
    assert summary(learn(tmp_path / "copy", *kept, "--json"))["images"] == first["images"] + 5


def test_a_file_that_cannot_be_looked_at_for_a_moment_has_not_gone(watch, tmp_path):
    put(tmp_path, 5)
    watched = watch()
    look(watched)
    file = tmp_path / "red" / "0.png"
    file.rename(tmp_path / "away")
    file.symlink_to("nowhere")
    assert look(watched) == 0
    (tmp_path / "away").rename(file)
    assert look(watched) == 0


def test_what_was_in_a_folder_that_comes_back_is_not_learned_again(watch, tmp_path):
    put(tmp_path, 5)
    watched = watch()
    look(watched)
    for labels in (("red",), ("red", "green")):
        for label in labels:
            (tmp_path / label).rename(tmp_path / f".{label}")
        assert look(watched) == 0
        watched.save()
        watched = watch()
        assert look(watched) == 0
        for label in labels:
            (tmp_path / f".{label}").rename(tmp_path / label)
        assert look(watched) == 0


def test_killed_after_files_have_gone_nothing_is_lost_or_learned_twice(watch, tmp_path, monkeypatch):
    put(tmp_path, 10)
    watched = watch()
    look(watched)
    watched.save()
    put(tmp_path, 10, first=10)
    look(watched)
    for number in (3, 9, 12, 19):
        (tmp_path / "red" / f"{number}.png").unlink()
    put(tmp_path, 1, first=20)
    look(watched)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            watched.save()
    watched = watch()
    assert watched.learner.n_seen_ == 20
    assert look(watched) == 20  # two of the later images have gone
    watched.save()
    assert sorted(journal(tmp_path)) == sorted(names(tmp_path))


def test_journals_without_numbers_are_read(watch, tmp_path):
    put(tmp_path, 10)
    watched = watch()
    look(watched)
    watched.save()
    file = tmp_path / ".cler" / watching.JOURNAL
    lines = [json.dumps(json.loads(line)[:3]) for line in file.read_text().splitlines()]
    file.write_text("\n".join([*lines, '["half a li']))
    assert look(watch()) == 0


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_journal_that_is_no_plain_file_is_refused_and_not_waited_for(watch, tmp_path, kind):
    put(tmp_path, 10)
    watched = watch()
    look(watched)
    watched.save()
    file = tmp_path / ".cler" / watching.JOURNAL
    file.rename(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"journal\.jsonl does not belong"):
        watch()


def test_a_label_that_disappears_during_a_look(learn, tmp_path, monkeypatch):
    put(tmp_path, 10)
    (tmp_path / "blue").mkdir()
    scandir = os.scandir

    def vanish(path):
        if path == tmp_path / "blue":
            path.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanish)
    code, out, err = learn(tmp_path, "--once", "--held-out", 0, *TINY)
    assert (code, err) == (0, "")
    assert "20 images of 2 classes learned" in out


def test_a_label_that_cannot_be_read_is_named_once_and_the_rest_goes_on(watch, tmp_path, monkeypatch):
    put(tmp_path, 5)
    watched, said, scandir = watch(), [], os.scandir
    watched.message = said.append
    assert look(watched) == 10
    put(tmp_path, 5, first=5)

    def closed(path):
        if path == tmp_path / "red":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", closed)
        assert [look(watched) for _ in range(3)] == [5, 0, 0]
    assert said == [f"{tmp_path / 'red'} is left out as long as it cannot be read: Permission denied"]
    assert look(watched) == 5  # and nothing of it is learned twice


def test_what_a_killed_watcher_left_is_deleted_by_the_next(learn, tmp_path):
    put(tmp_path, 5)
    state = tmp_path / ".cler"
    state.mkdir()
    for name in (watching.LEARNER, watching.JOURNAL, watching.HELD_OUT):
        (state / f".{name}.{HOST}.999999999.456.tmp").write_text("half of it")
    (state / ".theirs.tmp").write_text("of somebody else")
    summary(learn(tmp_path, "--once", "--json", *TINY))
    assert {each.name for each in state.glob(".*")} == {".theirs.tmp"}


@pytest.fixture
def between_looks(monkeypatch):
    """Let the steps of a generator happen between the looks, one each time."""
    return lambda steps: monkeypatch.setattr(import_module("cler.learner.watch"), "sleep", lambda *_: next(steps))


AWAY = "is no longer there, after 20 images seen; waiting for it to come back"


def test_a_folder_that_disappears_is_waited_for(learn, tmp_path, between_looks):
    images, away, state = tmp_path / "images", tmp_path / "away", tmp_path / "state"
    put(images, 10)

    def steps():
        images.rename(away)
        yield
        assert Learner.load(state / watching.LEARNER).n_seen_ == 20
        yield
        put(away, 5, first=10)
        away.rename(images)
        yield
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(steps())
    code, out, err = learn(images, "--held-out", 0, "--state", state, *TINY)
    assert code == 0
    new = "a new learner, er-ace+jigsaw, for which images are scaled to 8×8 pixels"
    assert err.splitlines() == [f"watching {images}/LABEL/ with {new}; Ctrl-C saves and stops", f"{images} {AWAY}"]
    assert "30 images of 2 classes learned" in out

    def end():
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(end())
    kept = "the learner that is kept for it, which has seen 30 images"
    told = learn(images, "--state", state).err.splitlines()
    assert told == [f"watching {images}/LABEL/ with {kept}; Ctrl-C saves and stops"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_does_not_wait_and_gives_its_own_code(number, code, learn, tmp_path, between_looks):
    put(tmp_path, 10)

    def steps():
        signal.raise_signal(number)
        signal.raise_signal(number)
        yield

    between_looks(steps())
    assert learn(tmp_path, *TINY)[0] == code


@pytest.mark.parametrize("save_every", [1000, 1e-9])
@pytest.mark.parametrize("more", [0, 5])
def test_a_folder_that_is_removed_with_the_state_in_it(more, save_every, learn, tmp_path, between_looks):
    images = tmp_path / "images"
    put(images, 10)

    def steps():
        shutil.rmtree(images)
        yield
        if more:
            put(images, 10 + more)
            yield
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(steps())
    code, _, err = learn(images, "--held-out", 0, "--save-every", save_every, *TINY)
    assert code == 0, err
    assert f"{images} {AWAY}" in err
    assert len(journal(images)) == 20 + 2 * more
    put(images, 10)
    assert summary(learn(images, "--once", "--json", "--held-out", 0))["images"] == 20 + 2 * more


def test_a_folder_that_comes_back_with_an_older_state(learn, tmp_path, between_looks):
    images, older = tmp_path / "images", tmp_path / "older"
    put(images, 10)

    def steps():
        shutil.copytree(images, older)
        put(images, 5, first=10)
        yield
        shutil.rmtree(images)
        older.rename(images)
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(steps())
    code, _, err = learn(images, "--held-out", 0, "--save-every", 1e-9, *TINY)
    assert code == 0, err
    assert Learner.load(images / ".cler" / watching.LEARNER).n_seen_ == 30
    put(images, 5, first=10)
    assert summary(learn(images, "--once", "--json", "--held-out", 0))["images"] == 30


def test_a_state_that_cannot_be_made_again_is_waited_for(learn, tmp_path, between_looks):
    images, state = tmp_path / "images", tmp_path / "away" / "state"
    put(images, 10)

    def steps():
        shutil.rmtree(state.parent)
        state.parent.write_text("in the way")
        yield
        yield
        state.parent.unlink()
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(steps())
    code, _, err = learn(images, "--held-out", 0, "--state", state, "--save-every", 1e-9, *TINY)
    assert code == 0
    assert err.splitlines()[-1] == f"{state} {AWAY}"
    assert Learner.load(state / watching.LEARNER).n_seen_ == 20


FULL = "No space left on device; make room there"


@pytest.fixture
def full(monkeypatch):
    """Fill the disk, and make room again."""

    def write(path, content):
        with writing(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    whole = fileformat.write
    return lambda is_full: monkeypatch.setattr(fileformat, "write", write if is_full else whole)


@pytest.mark.parametrize("again", [True, False])
def test_a_full_disk_is_told_once_and_tried_again(again, learn, tmp_path, full, between_looks):
    put(tmp_path, 10)
    full(True)

    def steps():
        yield
        put(tmp_path, 5, first=10)
        yield
        if again:
            full(False)
            put(tmp_path, 5, first=15)
            yield
            assert Learner.load(tmp_path / ".cler" / watching.LEARNER).n_seen_ == 40
        signal.raise_signal(signal.SIGINT)
        yield

    between_looks(steps())
    code, _, err = learn(tmp_path, "--held-out", 0, "--save-every", 1e-9, *TINY)
    said = [line for line in err.splitlines() if FULL in line]
    assert said[0].endswith(f"{FULL}; it goes on learning meanwhile, and tries again at each save")
    if again:
        assert (code, len(said)) == (0, 1)
    else:
        assert (code, len(said)) == (2, 2)
        assert said[1].endswith(f"{FULL}, and run the command again, which will learn what is not saved")


def test_a_full_disk_at_the_end(learn, tmp_path, full):
    put(tmp_path, 5)
    full(True)
    assert f"{FULL}, and run the command again" in mistake(learn(tmp_path, "--once", *TINY))
    full(False)
    assert summary(learn(tmp_path, "--once", "--json", "--held-out", 0, *TINY))["images"] == 10


def test_what_was_learned_is_saved_before_an_error_is_told(learn, tmp_path, monkeypatch, between_looks):
    put(tmp_path, 10)

    def fail(folder):
        raise UsageError("cannot read it: Input/output error")

    def steps():
        monkeypatch.setattr(watching, "arrivals", fail)
        yield

    between_looks(steps())
    code, out, err = learn(tmp_path, "--held-out", 0, *TINY)
    assert (code, out, err.splitlines()[1:]) == (2, "", ["cler: cannot read it: Input/output error"])
    assert Learner.load(tmp_path / ".cler" / watching.LEARNER).n_seen_ == len(journal(tmp_path)) == 20


def test_a_learner_whose_step_failed_is_not_saved(learn, tmp_path, monkeypatch):
    put(tmp_path, 10)
    summary(learn(tmp_path, "--once", "--json", "--held-out", 0, *TINY))
    put(tmp_path, 10, first=10)

    def diverge(self, what, *_):
        if what == "the loss was" and self.steps == 4:
            raise UsageError("the loss was not finite")

    with monkeypatch.context() as patch:
        patch.setattr(Core, "_check_finite", diverge)
        mistake(learn(tmp_path, "--once", "--held-out", 0))
    assert summary(learn(tmp_path, "--once", "--json", "--held-out", 0))["images"] == 40


# -- being stopped -----------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path):
    """Start the command in a process of its own."""
    processes = []

    def call(*arguments):
        command = [sys.executable, "-m", "cler", "learn", str(tmp_path), *map(str, arguments)]
        own = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "TERM": "dumb"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=os.environ | own, **pipes))
        return processes[-1]

    yield call
    for process in processes:
        process.kill()
        process.communicate()


def test_ctrl_c_before_the_first_look_is_not_lost(learn, tmp_path, monkeypatch):
    put(tmp_path, 10)
    monkeypatch.setattr(folders, "check_writable", lambda state: (state.mkdir(), os.kill(os.getpid(), signal.SIGINT)))
    for once in ((), ("--once",)):
        shutil.rmtree(tmp_path / ".cler", ignore_errors=True)
        assert summary(learn(tmp_path, "--json", *once, *TINY))["images"] == 0


def test_watches_stops_and_resumes(start, learn, tmp_path):
    put(tmp_path, 10)
    process = start("--every", 0.1, "--save-every", 0.01, *TINY)
    file = tmp_path / ".cler" / watching.LEARNER
    wait_until(file.exists)
    code, _, err = learn(tmp_path, "--once")
    assert code == 2
    assert err == f"cler: another cler is learning in {tmp_path / '.cler'}: wait for it, or choose another --state\n"
    saved = file.stat().st_mtime_ns
    put(tmp_path, 5, first=10, labels=("red", "green", "blue"))
    wait_until(lambda: file.stat().st_mtime_ns > saved)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "images of" in out
    found = summary(learn(tmp_path, "--once", "--json"))
    assert found["images"] + found["held_out"] == 35
    assert set(journal(tmp_path)) < names(tmp_path)
    assert len(journal(tmp_path)) == len(set(journal(tmp_path))) == found["images"]


def test_killed_between_journal_and_learner_nothing_is_lost_or_learned_twice(learn, tmp_path, monkeypatch):
    put(tmp_path, 10)
    summary(learn(tmp_path, "--once", "--json", "--held-out", 0, *TINY))
    put(tmp_path, 10, first=10)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "save", killed)
        assert learn(tmp_path, "--once", "--held-out", 0)[0] == 130
    assert len(journal(tmp_path)) == 40
    with (tmp_path / ".cler" / watching.JOURNAL).open("a") as file:
        file.write('["half a li')
    assert summary(learn(tmp_path, "--once", "--json", "--held-out", 0))["images"] == 40
    assert sorted(journal(tmp_path)) == sorted(names(tmp_path))


def test_stopping_and_resuming_gives_the_same_learner(learn, tmp_path):
    learners = []
    for name, stops in (("one", (24,)), ("two", (7, 13, 4))):
        for number, count in enumerate(stops):
            put(tmp_path / name, count, first=sum(stops[:number]))
            found = summary(learn(tmp_path / name, "--once", "--json", *TINY))
        learners.append(Learner.load(found["learner"]))
    images = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8)
    assert learners[0].n_seen_ == learners[1].n_seen_
    assert np.array_equal(*(each.predict_proba(images) for each in learners))


# -- mistakes ----------------------------------------------------------------------------------------------------------


def mistake(answer):
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("cler: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--held-out", "1"), "--held-out must be a share"),
        (("--held-out", "nan"), "--held-out must be a share"),
        (("--every", "0"), "--every must be above zero, not 0"),
        (("--save-every", "-1"), "--save-every must be above zero, not -1"),
        (("--lr", "0.01,0.03"), "--lr must be a number, not '0.01,0.03'"),
        (("--lr", "1", "--lr", "2"), "--lr is given twice"),
        (("--set", "alpha=1"), "er-ace has no settings of its own"),
        (("--pretrained",), "--pretrained has no effect on resnet18"),
        (("--network", "resnet19"), "did you mean 'resnet18'?"),
        (("--method", "xder"), "xder has to know where tasks begin and end"),
        (("--method", "er-ac"), "did you mean 'er-ace'?"),
        (("--image-size", "33"), "--image-size 33 does not suit the regularizer: jigsaw needs images of even size"),
        (("--channels", "2"), "--channels must be 1 or 3 for image files, not 2"),
        (("--buffer", "5"), "--buffer 5 is smaller than the replay batch of 10"),
        (("--replay-batch", "501"), "--buffer 500 is smaller than the replay batch of 501"),
        (("--device", "tpu"), "unknown device 'tpu'"),
    ],
)
def test_options_that_cannot_be_meant(arguments, message, learn, tmp_path):
    put(tmp_path, 1)
    for once in ((), ("--once",)):
        assert message in mistake(learn(tmp_path, *once, *arguments))
    assert [each.name for each in tmp_path.iterdir() if each.name not in ("red", "green")] == []


def test_what_needs_no_pytorch_is_refused_before_it_is_imported(tmp_path):
    code = "import sys, cler.cli\ntry: cler.cli.main()\nfinally: print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "learn", str(tmp_path), "--held-out", "2"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stderr == "cler: --held-out must be a share from 0 to less than 1, not 2.0\n"
    assert answer.stdout == "False\n"


def test_folders_that_cannot_be_meant(learn, tmp_path):
    assert "is not a folder" in mistake(learn(tmp_path / "missing"))
    put(tmp_path, 2, labels=["train/red", "train/green"])
    nothing = mistake(learn(tmp_path, "--once", *TINY))
    assert "there are no images to learn" in nothing
    assert "LABEL/, not deeper" in nothing
    assert names(tmp_path) == set()
    assert not (tmp_path / ".cler").exists()
    (tmp_path / "empty").mkdir()
    assert "no images to learn" in mistake(learn(tmp_path / "empty", "--once", "--state", tmp_path / "a" / "b", *TINY))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "train"]
    (tmp_path / "file").write_text("")
    refused = mistake(learn(tmp_path, "--state", tmp_path / "file" / "state"))
    assert refused.startswith("cler: cannot write to")
    assert refused.endswith("; choose another --state\n")


def test_options_that_the_learner_does_not_have(learn, tmp_path):
    put(tmp_path, 6)
    summary(learn(tmp_path, "--once", "--json", *TINY))
    assert "has --width 4: leave --width out" in mistake(learn(tmp_path, "--once", "--width", "8"))
    assert "was made without --prequential: leave" in mistake(learn(tmp_path, "--once", "--prequential"))


def test_settings_that_only_a_method_has(learn, tmp_path):
    put(tmp_path, 6)
    several = learn(tmp_path, "--once", "--method", "cope", "--set", "inner=1,2", *TINY)
    assert "a learner takes one value, not 2: --set inner=VALUE" in mistake(several)
    summary(learn(tmp_path, "--once", "--json", "--method", "cope", "--set", "inner=1", *TINY))
    assert Learner.load(tmp_path / ".cler" / watching.LEARNER).get_params()["inner"] == 1
    same = learn(tmp_path, "--once", "--json", "--set", "inner=1", "--set", "temperature=0.05")
    assert summary(same)["images"] > 0
    assert "has --set inner 1: leave --set inner out" in mistake(learn(tmp_path, "--once", "--set", "inner=2"))


def test_a_damaged_state(learn, tmp_path):
    put(tmp_path, 6)
    summary(learn(tmp_path, "--once", "--json", *TINY))
    state = tmp_path / ".cler"
    lines = (state / watching.JOURNAL).read_text()
    (state / watching.JOURNAL).write_text(lines.partition("\n")[0])
    assert "does not belong to the learner" in mistake(learn(tmp_path, "--once"))
    for line in ("[[], 1, 2]", "[" * 100_000):
        (state / watching.JOURNAL).write_text(f"{line}\n" * lines.count("\n"))
        assert "does not belong to the learner" in mistake(learn(tmp_path, "--once"))
    (state / watching.JOURNAL).write_text(lines)
    (state / watching.LEARNER).write_bytes(b"rubbish")
    assert "is not a saved learner, or is damaged" in mistake(learn(tmp_path, "--once"))


def test_tells_how_well_it_predicts_the_stream(learn, tmp_path):
    put(tmp_path, 12)
    found = summary(learn(tmp_path, "--once", "--json", "--prequential", *TINY))
    assert 0 <= found["prequential"] <= 100
    assert 0 <= found["blind"] <= 100
    told = learn(tmp_path, "--once").out
    assert "% predicted right before learning them" in told
    assert "% by repeating the last label)" in told
