"""The hash of somebody's own code, in programs and notebooks, which are a file that says other things too."""

import importlib
import linecache
import re
from functools import partial

import pytest

from cler.runs.sources import hash_of
from cler.runs.syntax import fingerprint

NETWORK = '''
from functools import cache
from torch import nn

WIDTH = 8
sizes = {"late": (16, 32)}
seen, steps = [], 0


class Net(nn.Module):
    """A network."""

    kernel = (3, 5)

    class Inside:
        depth = 2

    def __init__(self, n_classes):
        super().__init__()
        self.late = nn.Linear(WIDTH, n_classes)

    def forward(self, images):
        return self.late(images.unrelated)


@cache
def helper(n_classes, late=WIDTH + 1):
    global steps
    steps += 1
    seen.append(steps)
    return [Net(n_classes), sizes]


def network(n_classes):
    def inner():
        return helper(n_classes)
    return inner()


def make(width):
    return lambda n_classes: nn.Linear(width, n_classes)


unrelated = 1
'''
cells = iter(range(1000))


def program(text):
    """What a program, or a cell of a notebook, defines: functions have a file, classes have none, as in IPython."""
    name = f"<cell {next(cells)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    space = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    return space


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("images.unrelated", "images.unrelated * 2"),
        ("nn.Linear(WIDTH", "nn.Bilinear(WIDTH"),
        ("WIDTH = 8", "WIDTH = 16"),
        ("(16, 32)", "(16, 64)"),
        ("WIDTH + 1", "WIDTH + 2"),
        ("(3, 5)", "(3, 7)"),
        ("depth = 2", "depth = 3"),
        ("[Net(n_classes), sizes]", "[sizes]"),
    ],
)
def test_what_a_function_of_a_program_names_counts(old, new):
    first = hash_of(program(NETWORK)["network"])
    assert hash_of(program(NETWORK)["network"]) == first
    assert hash_of(program(NETWORK.replace(old, new))["network"]) != first


@pytest.mark.parametrize(
    ("old", "new"), [("unrelated = 1", "unrelated = 2"), ("A network.", "One."), ("8\n", "8  # !\n")]
)
def test_what_it_does_not_name_and_comments_do_not_count(old, new):
    assert hash_of(program(NETWORK.replace(old, new))["network"]) == hash_of(program(NETWORK)["network"])


def test_what_it_notes_while_it_runs_does_not_count():
    space = program(NETWORK.replace("Net(n_classes)", "n_classes"))
    first = hash_of(space["network"])
    space["network"](3)
    assert (space["seen"], space["steps"]) == ([1], 1)
    assert hash_of(space["network"]) == first


def test_a_class_that_is_defined_again_counts_for_a_function_that_is_not():
    space = program(NETWORK)
    first = hash_of(space["network"])
    space["Net"] = program(NETWORK.replace("WIDTH, n", "WIDTH + 1, n"))["Net"]
    assert hash_of(space["network"]) != first


def test_what_a_function_was_given_counts():
    make = program(NETWORK)["make"]
    assert hash_of(make(8)) == hash_of(make(8))
    assert hash_of(make(8)) != hash_of(make(16))
    assert hash_of(partial(make, 8)) == hash_of(partial(make, 8))
    assert hash_of(partial(make, width=8)) != hash_of(partial(make, width=16))
    assert hash_of(partial(make, [8])) != hash_of(partial(make, [16]))
    assert hash_of(partial(test_what_a_function_was_given_counts, 1)) != hash_of(
        partial(test_what_a_function_was_given_counts, 2)
    )


def test_a_lambda_in_the_middle_of_a_call_is_read():
    calls = """
def identity(*, network, seeds=1): return network
found = identity(
    seeds=SEEDS,
    network=lambda n: (n,
        n + 1))
"""
    one, other, changed = (
        hash_of(program(calls.replace(*each).replace("SEEDS", "1"))["found"])
        for each in (("", ""), ("SEEDS", "2"), ("n + 1", "n + 2"))
    )
    assert one == other != changed


def test_an_object_that_has_any_attribute_counts_by_its_class():
    text = "class Any:\n    def __getattr__(self, name): return None\nchosen = Any()\ndef network(n): return chosen\n"
    assert hash_of(program(text)["network"]) != hash_of(program(text.replace("None", "0"))["network"])


def test_what_holds_itself_ends():
    space = program("def network(n): return held\nheld = {}\nheld[0] = held\n")
    assert hash_of(space["network"])


def never_in_a_file(source):
    """What a program makes that Python reads from its standard input."""
    names = {"__name__": "__main__"}
    exec(compile(source, "<stdin>", "exec"), names)
    return names["network"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("late", "early"),
        ("WIDTH = 8", "WIDTH = 9"),
        ("images.unrelated", "images"),
        ("[Net(n_classes), sizes]", "None"),
        ("WIDTH + 1", "WIDTH + 2"),
        ("(3, 5)", "(3, 7)"),
        ("depth = 2", "depth = 3"),
    ],
)
def test_code_that_was_never_in_a_file_counts_as_compiled(old, new):
    hashed = hash_of(never_in_a_file(NETWORK))
    assert hashed == hash_of(never_in_a_file(NETWORK))
    assert hashed
    assert hashed != hash_of(never_in_a_file(NETWORK.replace(old, new)))


def test_a_hash_is_short_even_of_a_single_function():
    assert re.fullmatch("[0-9a-f]{16}", hash_of(never_in_a_file("def network(n): return n\n")))


FILED = """
from contextlib import contextmanager

class Mine:
    def __init__(self):
        super().__init__()

    @contextmanager
    def inside(self):
        yield

def make(width):
    return lambda n_classes: (width, n_classes)
"""


def test_of_a_class_in_a_file_the_file_counts_and_what_functions_made_there_were_given(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    renamed = FILED.replace("Mine", "Renamed")
    for module, text in {"filed_first": FILED, "filed_again": renamed}.items():
        (tmp_path / f"{module}.py").write_text(text)
    first, again = (importlib.import_module(module) for module in ("filed_first", "filed_again"))
    assert hash_of(first.Mine) == hash_of(again.Renamed) == fingerprint(FILED)
    assert hash_of(first.make(8)) == hash_of(first.make(8)) != hash_of(first.make(16))


def test_what_has_no_code_of_its_own_has_none():
    assert hash_of(type("Made", (), {"__module__": "nowhere", "value": 3})) is None
    assert hash_of(len) == hash_of(str.join) is None
