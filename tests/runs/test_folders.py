import errno
import os
import subprocess
import sys

import filelock
import pytest

from cler.errors import UsageError
from cler.runs.folders import locked


def test_two_do_not_work_in_one_folder(tmp_path):
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert (first, second) == (True, False)
    with locked(tmp_path) as ours:
        assert ours
    assert not list(tmp_path.iterdir())


def test_another_process_is_kept_out(tmp_path):
    program = (
        "import sys, pathlib, cler.runs.folders as f\nwith f.locked(pathlib.Path(sys.argv[1])) as ours: print(ours)"
    )

    def ask():
        command = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with locked(tmp_path):
        assert ask() == "False\n"
    assert ask() == "True\n"


def test_a_lock_is_given_back_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with locked(tmp_path) as ours:
        assert ours


def test_what_a_killed_process_left_is_no_lock(tmp_path):
    (tmp_path / ".lock").write_text("")
    with locked(tmp_path) as ours:
        assert ours


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_refused_and_left_alone(tmp_path, kind):
    other, lock = tmp_path / "other", tmp_path / ".lock"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(other)
        if kind == "link":
            other.write_text("precious")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"\.lock is not a plain file"), locked(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == before
    assert kind != "link" or other.read_text() == "precious"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOLCK])
def test_a_lock_that_cannot_be_had_for_another_reason_is_told_so(tmp_path, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(UsageError, match=f"cannot write to {tmp_path}: {os.strerror(number)}"), locked(tmp_path):
        pass
