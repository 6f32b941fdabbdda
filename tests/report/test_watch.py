from types import SimpleNamespace

import pytest

from cler.report import watch as watching
from cler.report.watch import REST, watch


@pytest.fixture
def waited(monkeypatch):
    """How long was waited between looks."""
    found = []
    monkeypatch.setattr(watching, "sleep", lambda seconds, stop: found.append(seconds))
    return found


def scan_of(changes):
    """Finds something new at some of its looks."""
    coming = iter(changes)
    return SimpleNamespace(update=lambda wait: next(coming), results=[1, 2], unfinished=[SimpleNamespace(running=True)])


def test_it_is_written_first_and_when_something_has_changed(waited):
    written, said = [], []
    scan = scan_of([False, False, True, False])
    watch(scan, lambda: written.append(len(waited)), lambda: len(waited) == 4, every=3.0, status=said.append)
    assert written == [0, 2]
    assert waited == [3.0] * 4
    assert said[0] == "2 runs finished, 1 running, 0 stopped"


def test_a_report_that_takes_long_is_written_less_often(waited, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])

    def write():
        now[0] += 10.0

    watch(scan_of([True]), write, lambda: bool(waited), every=3.0)
    assert waited == [10 * REST]
