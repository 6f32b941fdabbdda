"""Revisions of the code that decides numbers: as written down, as results keep them, and of code outside."""

import importlib.util
import sys
from functools import partial
from pathlib import Path

import pytest

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.config.registry import DOMAINS
from cler.engine.events import Evaluated
from cler.methods import METHODS, Method
from cler.methods.er_ace import ErAce
from cler.nets.build import own_network
from cler.nets.resnet import ResNet18
from cler.runs import revisions
from cler.runs.execute import execute
from cler.runs.jobs import make_jobs
from cler.runs.results import read_result
from cler.streams.domain_incremental import domains

WHAT = "Code that decides the numbers of runs is not as tests/revisions.json has it:"
TO_DO = """Decide whether runs come out differently (tools/same_numbers.py compares the bits of two commits), raise the
revisions that have to be, then run `python tools/revisions.py`, which writes tests/revisions.json, and commit both."""
TOOL = Path(__file__).parent.parent.parent / "tools" / "revisions.py"


@pytest.mark.skipif(not TOOL.exists(), reason="tools/ is not in the source distribution")
def test_the_code_that_decides_numbers_is_as_written_down():
    spec = importlib.util.spec_from_file_location("revisions_tool", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    if lines := tool.changes():
        pytest.fail("\n".join([WHAT, *lines, TO_DO]), pytrace=False)
    assert tool.as_it_is()["revisions"].keys() >= {"engine", "er-ace", "jigsaw", "network resnet18"}
    assert len(tool.as_it_is()["files"]) > 20


def test_every_part_that_decides_has_a_revision():
    assert revisions.revisions(make_settings(method="er-ace")) == {"engine": 1, "method": 1, "network": 1, "stream": 1}
    with_regularizer = revisions.revisions(make_settings(method="er-ace", regularizer="jigsaw"))
    assert with_regularizer == {"engine": 1, "method": 1, "network": 1, "regularizer": 1, "stream": 1}
    with_two = revisions.revisions(make_settings(method="er-ace", regularizer="jigsaw+barlow-twins"))
    assert with_two["regularizer"] == "1+1"


def test_a_raised_revision_is_told_by_name(monkeypatch):
    settings = make_settings(method="er-ace", regularizer="rotation")
    before = revisions.revisions(settings)
    monkeypatch.setattr(ErAce, "revision", 2)
    monkeypatch.setattr(revisions, "REVISION", 5)
    now = revisions.revisions(settings)
    assert revisions.differing(settings.to_dict(), before, now) == [
        "engine revision 1, this is 5",
        "er-ace revision 1, this is 2",
    ]
    assert revisions.differing(settings.to_dict(), {}, now) == []


OUTSIDE = '''
from cler.methods.er_ace import ErAce


class Outside(ErAce):
    """A method in a file of its own."""

    name = "outside"
    alpha = 0.5
'''


def imported(folder, text, monkeypatch):
    (folder / "outside_module.py").write_text(text)
    spec = importlib.util.spec_from_file_location("outside_module", folder / "outside_module.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "outside_module", module)
    spec.loader.exec_module(module)
    return module.Outside


def test_code_outside_the_package_is_known_by_its_source(tmp_path, monkeypatch):
    def revision(text):
        monkeypatch.setitem(METHODS._entries, "outside", imported(tmp_path, text, monkeypatch))
        return revisions.revisions(make_settings(method="outside"))["method"]

    first = revision(OUTSIDE)
    assert isinstance(first, str)
    assert revision(OUTSIDE.replace("A method in", "One  in")) == first
    assert revision(OUTSIDE.replace("0.5", "0.25")) != first
    monkeypatch.setattr(ErAce, "revision", 2)
    assert revision(OUTSIDE) != first  # it inherits from code that has changed


def test_what_a_function_of_ones_own_was_given_counts():
    def revision(width):
        return revisions.revision_of(own_network("custom:slim", partial(ResNet18, width=width)))

    assert revision(8) == revision(8) != revision(16)


def test_each_domain_counts(monkeypatch):
    def revision(factor):
        domains("mine", lambda images: images, lambda images: factor * images)
        return revisions.revision_of(DOMAINS["mine"])

    monkeypatch.setattr(DOMAINS, "_entries", dict(DOMAINS))
    assert revision(1) == revision(1) != revision(2)
    assert revisions.revision_of(DOMAINS["rotations"]) == 1


def test_code_that_was_never_in_a_file_has_its_number():
    made = type("Made", (Method,), {"revision": 7, "__module__": "nowhere"})
    assert revisions.revision_of(made) == 7


def test_a_result_has_the_revision_of_the_code_that_trained_it(tmp_path, monkeypatch):
    """Not that of its file, which somebody edits while it trains."""
    monkeypatch.setitem(METHODS._entries, "outside", imported(tmp_path, OUTSIDE, monkeypatch))
    settings = make_settings(method="outside", dataset="toy", tasks=2, width=2, batch=4, replay_batch=4, buffer=8)
    trained_by = revisions.revisions(settings)

    def edit(event):
        if isinstance(event, Evaluated):
            (tmp_path / "outside_module.py").write_text(OUTSIDE.replace("0.5", "0.25"))

    jobs = make_jobs(settings, [0, 1], tmp_path)
    execute(jobs, Machine(workers=1, device="cpu"), callbacks=[edit])
    assert [read_result(job.folder)["revisions"] for job in jobs] == [trained_by, trained_by]
