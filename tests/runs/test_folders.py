import errno
import os
import subprocess
import sys
import time

import filelock
import pytest

from cler.errors import UsageError
from cler.files import read_json, write_json
from cler.runs import folders
from cler.runs.folders import ATTEMPT, EXPIRY, HOST, LOCK, OWNER, locked, still_ours
from toys import wait_until


def test_two_do_not_work_in_one_folder(tmp_path):
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert (first, second) == (True, False)
        owner = read_json(tmp_path / OWNER)
        assert (owner["host"], owner["process"], owner["attempt"]) == (HOST, os.getpid(), None)
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


@pytest.mark.parametrize("name", [LOCK, OWNER])
@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_refused_and_left_alone(tmp_path, kind, name):
    other, lock = tmp_path / "other", tmp_path / name
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(other)
        if kind == "link":
            other.write_text("precious")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=f"{name} is not a plain file"), locked(tmp_path):
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


# -- owners that have gone ---------------------------------------------------------------------------------------------


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def owned(folder, host, process=1, *, silent=0.0):
    """A folder that another process has, from which nothing was heard for some seconds."""
    write_json(folder / OWNER, {"host": host, "process": process, "token": "other"})
    os.utime(folder / OWNER, (time.time() - silent,) * 2)


@pytest.mark.parametrize("lock", [True, False])
def test_another_host_keeps_its_folder_while_it_gives_signs_of_life(tmp_path, lock):
    """Also where the file system's locks do not reach from host to host."""
    owned(tmp_path, "elsewhere", silent=EXPIRY / 2)
    if lock:
        (tmp_path / LOCK).touch()
    before = (tmp_path / OWNER).read_bytes()
    with locked(tmp_path) as ours:
        assert not ours
    assert (tmp_path / OWNER).read_bytes() == before


@pytest.mark.parametrize("held", [True, False], ids=["its lock remains", "its lock is gone"])
def test_a_folder_of_another_host_that_is_silent_is_taken_over(tmp_path, held):
    owned(tmp_path, "elsewhere", silent=EXPIRY + 60)
    ghost = filelock.FileLock(tmp_path / LOCK)
    if held:
        ghost.acquire()
    with locked(tmp_path) as ours:
        assert ours
        assert read_json(tmp_path / OWNER)["host"] == HOST
        with locked(tmp_path) as second:
            assert not second
    ghost.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [filelock.FileLock, filelock.SoftFileLock])
def test_a_process_of_this_host_that_has_gone_is_followed_at_once(tmp_path, monkeypatch, kind, gone):
    """A lock may outlive it: held by a child that was forked, or a mere file where there are no others."""
    monkeypatch.setattr(folders, "FileLock", kind)
    owned(tmp_path, HOST, gone)
    with kind(tmp_path / LOCK), locked(tmp_path) as ours:
        assert ours


def test_a_process_of_this_host_that_is_there_keeps_its_folder(tmp_path):
    owned(tmp_path, HOST, os.getpid(), silent=10 * EXPIRY)
    with filelock.FileLock(tmp_path / LOCK), locked(tmp_path) as ours:
        assert not ours


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 3}'])
def test_an_owner_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / OWNER).write_text(text)
    if text == '{"host": 3}':
        os.utime(tmp_path / OWNER, (0, 0))
    with locked(tmp_path) as ours:
        assert ours


def test_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BEAT", 0.001)
    with locked(tmp_path):
        os.utime(tmp_path / OWNER, (0, 0))
        wait_until(lambda: (tmp_path / OWNER).stat().st_mtime > 0)


def test_who_was_taken_over_knows_and_leaves_all_alone(tmp_path):
    with locked(tmp_path):
        assert still_ours(tmp_path)
        owned(tmp_path, "elsewhere")
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).write_text("the other's")
        assert not still_ours(tmp_path)
    assert (tmp_path / LOCK).read_text() == "the other's"
    assert read_json(tmp_path / OWNER)["token"] == "other"
    assert still_ours(tmp_path)  # as far as it knows: it holds it no more


# -- attempts of other machines ----------------------------------------------------------------------------------------


@pytest.fixture
def attempts(tmp_path):
    """The folders of two attempts, and that of a run."""
    folders = [tmp_path / name for name in ("first", "second", "run")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[:2]:
        write_json(folder / ATTEMPT, {})
    return folders


def test_an_attempt_that_is_given_up_loses_its_folder_at_once(attempts):
    """Though its process is there, on this host, and has the lock."""
    first, second, run = attempts
    write_json(run / OWNER, {"host": HOST, "process": os.getpid(), "token": "other", "attempt": str(first)})
    with filelock.FileLock(run / LOCK):
        with locked(run, second) as ours:
            assert not ours
        (first / ATTEMPT).unlink()
        with locked(run, second) as ours:
            assert ours


def test_who_makes_an_attempt_knows_that_it_was_given_up(attempts):
    first, _, run = attempts
    with locked(run, first):
        assert still_ours(run)
        (first / ATTEMPT).unlink()
        assert not still_ours(run)


def test_the_same_attempt_made_again_has_its_folder_at_once(attempts):
    """On another node: where it was before, it was killed, or has to stop."""
    first, second, run = attempts
    owner = {"host": "elsewhere", "process": 1, "token": "other", "attempt": str(first)}
    write_json(run / OWNER, owner)
    with locked(run, second) as others:
        assert not others
    with locked(run, first) as ours:
        assert ours
        assert still_ours(run)


def test_an_attempt_that_was_given_up_takes_nothing(attempts):
    first, _, run = attempts
    (first / ATTEMPT).unlink()
    with locked(run, first) as ours:
        assert not ours
    assert not list(run.iterdir())


def test_an_owner_whose_attempt_is_no_path_keeps_its_folder_while_it_gives_signs_of_life(attempts):
    _, second, run = attempts
    write_json(run / OWNER, {"host": "elsewhere", "process": 1, "token": "other", "attempt": "a\0b"})
    with locked(run, second) as ours:
        assert not ours
