import errno
import math
import os
import subprocess
import sys
import tracemalloc
from itertools import cycle
from pathlib import Path

import pytest

from cler.errors import UsageError
from cler.files import (
    DEEPEST,
    HOST,
    append,
    frozen,
    read_bytes,
    read_json,
    read_text,
    replacing,
    sweep,
    temporary_folder,
    without_non_finite,
    write_json,
    write_text,
)
from cler.runs.folders import check_writable


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "plain").write_bytes(b"content")
    return tmp_path / "plain"


def test_a_plain_file_is_read(plain, tmp_path):
    assert read_bytes(plain) == read_bytes(plain, 7, follow=False) == b"content"
    (tmp_path / "link").symlink_to(plain)
    assert read_bytes(tmp_path / "link") == b"content"


def test_a_link_is_not_followed_where_none_should_be(plain, tmp_path):
    for number, target in enumerate((plain, tmp_path / "nothing", "/dev/zero")):
        (tmp_path / f"link-{number}").symlink_to(target)
        with pytest.raises(UsageError, match="is a link"):
            read_bytes(tmp_path / f"link-{number}", follow=False)


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(UsageError, match=f"{path} is not a plain file"):
            read_bytes(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_a_pipe_that_takes_the_place_of_a_file_meanwhile_is_not_waited_for(plain, monkeypatch):
    stat = os.stat

    def look(*arguments, **options):
        about = stat(*arguments, **options)
        plain.unlink()
        os.mkfifo(plain)
        return about

    monkeypatch.setattr(os, "stat", look)
    with pytest.raises(UsageError, match="not a plain file"):
        read_bytes(plain)


def test_no_more_is_read_than_the_limit(plain, tmp_path):
    with pytest.raises(UsageError, match="has 7 bytes, more than the 6 that cler reads"):
        read_bytes(plain, 6)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match=f"has {1 << 40} bytes, more than the"):
        read_text(tmp_path / "sparse")


def test_a_high_limit_takes_no_memory(plain):
    tracemalloc.start()
    try:
        assert read_bytes(plain, 1 << 40) == b"content"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not Path("/proc/self/pagemap").is_file(), reason="there is no such file here")
def test_nor_of_a_file_that_does_not_know_its_size():
    with pytest.raises(UsageError, match="more than the 8000 that cler reads"):
        read_bytes(Path("/proc/self/pagemap"), 8000)


@pytest.mark.parametrize("read", [read_text, read_json])
def test_text_that_is_none_is_refused_in_one_line(plain, tmp_path, read):
    plain.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not a UTF-8 text file"):
        read(plain)
    with pytest.raises(UsageError, match=f"cannot read {tmp_path}: {os.strerror(errno.EISDIR)}"):
        read(tmp_path)


# -- written -----------------------------------------------------------------------------------------------------------


def test_what_is_appended_goes_to_the_end_of_a_plain_file(tmp_path):
    for line in ("one\n", "two\n", "caf\udce9\n"):
        append(tmp_path / "log", line)
    assert (tmp_path / "log").read_text() == "one\ntwo\ncaf?\n"


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe"])
def test_nothing_is_appended_to_what_is_no_plain_file(plain, tmp_path, kind):
    log = tmp_path / "log"
    if kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to(plain if kind == "link" else tmp_path / "nothing")
    with pytest.raises(UsageError, match="log is"):
        append(log, "line")
    assert plain.read_bytes() == b"content"
    assert not (tmp_path / "nothing").exists()


def test_a_link_is_replaced_and_not_followed(plain, tmp_path):
    (tmp_path / "link").symlink_to(plain)
    write_text(tmp_path / "link", "other")
    assert (plain.read_bytes(), (tmp_path / "link").read_bytes()) == (b"content", b"other")
    assert not (tmp_path / "link").is_symlink()


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is not a plain file"):
        write_text(tmp_path / "pipe", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(plain, tmp_path, monkeypatch):
    monkeypatch.setattr("cler.files._NUMBERS", cycle([7]))
    write_text(tmp_path / "file", "first")
    (tmp_path / f".file.{HOST}.{os.getpid()}.7.tmp").symlink_to(plain)
    write_text(tmp_path / "file", "second")
    assert plain.read_bytes() == b"content"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "plain"]


def test_a_signal_handler_may_write_the_file_that_is_being_written(tmp_path):
    with replacing(tmp_path / "file") as file:
        file.write(b"what was interrupted")
        write_text(tmp_path / "file", "the handler's")
        assert (tmp_path / "file").read_text() == "the handler's"
    assert (tmp_path / "file").read_text() == "what was interrupted"
    with temporary_folder(tmp_path) as ours:
        with temporary_folder(tmp_path) as of_the_handler:
            assert ours != of_the_handler
        assert ours.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["a" * 250, "漢" * 80])
def test_a_name_may_be_as_long_as_the_file_system_allows(name, tmp_path):
    write_text(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_whole_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    path, old, calls = tmp_path / "file", tmp_path / "old", []
    write_text(path, "first")
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor):
        calls.append(("on disk", os.fstat(descriptor).st_size))
        sync(descriptor)

    def note_replace(source, target):
        calls.append(("replaced", Path(source).read_text(), Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    with replacing(path, previous=old, check=lambda: calls.append("checked")) as file:
        file.write(b"second")
        assert path.read_text() == "first"
    assert calls == [("on disk", 6), "checked", ("replaced", "first", old), ("replaced", "second", path)]
    assert (path.read_text(), old.read_text()) == ("second", "first")


def fail():
    raise ZeroDivisionError


@pytest.mark.parametrize("while_written", [fail, lambda: None], ids=["while it is written", "when it is checked"])
def test_after_an_error_the_old_file_is_there_and_no_other(plain, tmp_path, while_written):
    with pytest.raises(ZeroDivisionError), replacing(plain, previous=tmp_path / "old", check=fail) as file:
        file.write(b"other") and while_written()
    assert plain.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [plain]


# -- JSON --------------------------------------------------------------------------------------------------------------


def nested(levels, kind):
    """JSON of so many lists or objects in one another."""
    start, end = {"list": ("[", "]"), "object": ('{"a": ', "}")}[kind]
    return '{"a": ' + start * (levels - 1) + "1" + end * (levels - 1) + "}"


@pytest.mark.parametrize("kind", ["list", "object"])
def test_json_is_read_to_a_depth(plain, kind):
    plain.write_text(nested(DEEPEST - 1, kind))
    read_json(plain)
    plain.write_text(nested(DEEPEST, kind))
    with pytest.raises(UsageError, match=f"plain: has more than {DEEPEST} levels"):
        read_json(plain)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NaN", r"not finite \(NaN\)"),
        ("-Infinity", r"not finite \(-Infinity\)"),
        ("1e999", r"not finite \(1e999\)"),
        ("1" * 19, "too large"),
        ("-" + "1" * 18, "too large"),
        ('"\\ud800"', "surrogates not allowed"),
    ],
)
def test_numbers_and_strings_that_cannot_be_used_are_refused(plain, text, says):
    plain.write_text(f'{{"a": [{text}]}}')
    with pytest.raises(UsageError, match=f"plain: .*{says}"):
        read_json(plain)


def test_only_an_object_of_json_is_read(plain):
    plain.write_text("[1]")
    with pytest.raises(UsageError, match="plain is not a JSON object"):
        read_json(plain)
    plain.write_text('{"a": 111111111111111111, "b": -0.5}')
    assert read_json(plain) == {"a": 111_111_111_111_111_111, "b": -0.5}


def test_what_is_written_is_read_again_with_a_line_for_each_row(tmp_path):
    value = {
        "matrix": [[100 / 3] * row for row in range(1, 10)],
        "long": list(range(60)),
        "name": "Grüße",
        "none": None,
    }
    write_json(tmp_path / "new" / "file", value)
    assert read_json(tmp_path / "new" / "file") == value
    lines = (tmp_path / "new" / "file").read_text().splitlines()
    assert len(lines) == 2 + 3 + 2 + 9
    assert lines[2] == f"    [{100 / 3}],"


def test_values_are_the_same_whatever_the_order_of_their_names():
    one, other = {"a": [1, {"b": 2, "c": 3}], "d": None}, {"d": None, "a": [1.0, {"c": 3, "b": 2}]}
    assert frozen(one) == frozen(other)
    assert hash(frozen(one)) == hash(frozen(other))
    assert frozen(one) != frozen({"d": None, "a": [{"c": 3, "b": 2}, 1.0]})


def test_what_json_has_not_is_none():
    assert without_non_finite({"a": [1.5, math.nan, (-math.inf,)], "b": 3}) == {"a": [1.5, None, [None]], "b": 3}


# -- litter ------------------------------------------------------------------------------------------------------------


KILLED = """
import os, sys, pathlib, cler.files as files
folder = pathlib.Path(sys.argv[1])
with files.replacing(folder / "file") as file, files.temporary_folder(folder) as temporary:
    (temporary / "inside").mkdir()
    os._exit(9)
"""


@pytest.fixture
def litter(tmp_path):
    """What a process has left that was killed while it wrote a file and had a temporary folder."""
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode == 9
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2
    return left


def use_folder(folder):
    with temporary_folder(folder):
        pass


@pytest.mark.parametrize("work", [lambda folder: write_text(folder / "other", ""), use_folder, check_writable, sweep])
def test_what_a_killed_process_left_is_deleted_by_the_next_one(litter, tmp_path, work):
    work(tmp_path)
    assert not [path for path in litter if path.exists()]


def test_what_is_in_use_stays(tmp_path):
    with temporary_folder(tmp_path) as ours:
        sweep(tmp_path)
        assert ours.is_dir()
    assert not list(tmp_path.iterdir())


def test_other_hosts_have_a_day(tmp_path):
    new, old = (tmp_path / f".file.elsewhere.{number}.7.tmp" for number in (1, 2))
    new.touch()
    old.touch()
    os.utime(old, (0, 0))
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [new.name]


def test_only_our_own_litter_is_deleted(tmp_path):
    names = [".mine.tmp", "notes.tmp", f".file.{HOST}.x.7.tmp", f"file.{HOST}.999999999.7.tmp", f".folder.{HOST}"]
    for name in names:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_mark_at_the_beginning_of_a_text_is_no_part_of_it(tmp_path):
    (tmp_path / "run.toml").write_bytes("lr = 0.1".encode("utf-8-sig"))
    assert read_text(tmp_path / "run.toml") == "lr = 0.1"
