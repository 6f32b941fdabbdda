import errno
import os

import pytest

from cler.errors import UsageError
from cler.runs import folders
from cler.runs.folders import locked


def test_two_processes_do_not_work_on_one_run(tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="another cler is working"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_given_back_while_it_was_asked_for_is_none(tmp_path, monkeypatch):
    """Its file has been deleted, and a third process could lock a new one."""
    monkeypatch.setattr(folders.fcntl, "flock", lambda file, how: (tmp_path / ".lock").unlink())
    with pytest.raises(UsageError, match="another cler is working"), locked(tmp_path):
        pass


def raising(number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(("where", "number"), [("open", errno.EMFILE), ("flock", errno.ENOLCK)])
def test_a_lock_that_cannot_be_had_for_another_reason_is_told_so(tmp_path, monkeypatch, where, number):
    owner = folders.Path if where == "open" else folders.fcntl
    monkeypatch.setattr(owner, where, raising(number))
    with pytest.raises(UsageError, match=f"cannot write to {tmp_path}: {os.strerror(number)}"), locked(tmp_path):
        pass
