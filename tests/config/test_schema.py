from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from cler.config.schema import check_all, parsed_grid, setting, settings_of
from cler.errors import UsageError


@dataclass(frozen=True)
class Example:
    count: int = setting(3, "How many.", least=1, most=10)
    rate: float = setting(0.5, "How fast.", above=0)
    name: str = setting("a", "Which.", choices=("a", "b"), role="bits", absent="b")
    fast: bool = setting(False, "Whether.")
    seed: int | None = setting(None, "Maybe one.", least=0)
    folder: Path = setting(Path("here"), "Where.")
    plain: float = 2.0

    def __post_init__(self):
        check_all(self)


def test_a_line_tells_everything():
    found = settings_of(Example)
    assert list(found) == ["count", "rate", "name", "fast", "seed", "folder", "plain"]
    assert (found["count"].kind, found["seed"].kind, found["seed"].optional) == (int, int, True)
    assert (found["name"].role, found["name"].absent, found["count"].absent) == ("bits", "b", 3)
    assert (found["plain"].kind, found["plain"].default, found["plain"].help) == (float, 2.0, "")


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("count", np.int64(4), 4),
        ("count", torch.tensor(5), 5),
        ("rate", 2, 2.0),
        ("rate", np.float32(0.5), 0.5),
        ("folder", "there", Path("there")),
        ("seed", None, None),
    ],
)
def test_values_get_the_type_that_was_declared(name, given, value):
    made = getattr(Example(**{name: given}), name)
    assert (made, type(made)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("count", 0, "count must be at least 1 and at most 10, not 0"),
        ("count", 11, "count must be at least 1 and at most 10, not 11"),
        ("count", 2.5, "count must be a whole number, not 2.5"),
        ("count", True, "count must be a whole number, not True"),
        ("count", None, "count must be a whole number, not None"),
        ("rate", 0, "rate must be above 0, not 0.0"),
        ("rate", float("nan"), "rate must be a finite number, not nan"),
        ("rate", 10**400, "rate must be a finite number, not inf"),
        ("rate", "much", "rate must be a number, not 'much'"),
        ("fast", 1, "fast must be true or false, not 1"),
        ("name", 3, "name must be a string, not 3"),
        ("name", "c", "unknown name 'c'"),
        ("folder", 3, "folder must be a path, not 3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name, given, says):
    with pytest.raises(UsageError) as caught:
        Example(**{name: given})
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("count", "3", [3]),
        ("count", "3, 4,3", [3, 4]),
        ("rate", "1e-3,0.5", [0.001, 0.5]),
        ("fast", "true,false", [True, False]),
        ("seed", "none,7", [None, 7]),
        ("name", "b", ["b"]),
    ],
)
def test_a_comma_means_a_grid(name, text, values):
    assert parsed_grid(settings_of(Example)[name], text) == values


@pytest.mark.parametrize(("name", "text"), [("count", "three"), ("count", "3,"), ("fast", "yes"), ("rate", "1,x")])
def test_strings_that_mean_nothing(name, text):
    with pytest.raises(UsageError, match=f"^{name} must be"):
        parsed_grid(settings_of(Example)[name], text)
