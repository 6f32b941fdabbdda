"""The tables of names: what may be registered under which name, however it gets there."""

import warnings
from importlib.metadata import EntryPoint

import pytest

import cler
from cler.config.registry import PLUGINS, REGULARIZERS, TEACHERS, Registry, load_plugins
from cler.regularizers import Entry, Regularizer


def entry(name):
    return Entry(name, name, "", build=Regularizer, weight=1.0)


def teacher(name):
    return type("Mine", (cler.Teacher,), {"name": name})


def by_training(**parts):
    return cler.train(**parts, tasks=2, width=2, device="cpu", verbose=False)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("give", "table", "name"),
    [
        (lambda: cler.register(teacher("none")), TEACHERS, "none"),
        (lambda: cler.check(teacher("none")), TEACHERS, "none"),
        (lambda: by_training(teacher=teacher("none")), TEACHERS, "none"),
        (lambda: cler.register(entry("none")), REGULARIZERS, "none"),
        (lambda: cler.check(entry("mine+yours")), REGULARIZERS, "mine+yours"),
        (lambda: by_training(regularizer=type("none", (cler.Regularizer,), {})), REGULARIZERS, "none"),
    ],
)
def test_a_name_that_settings_use_for_something_else_is_refused_wherever_it_is_given(give, table, name):
    with pytest.raises(cler.UsageError, match=rf"a {table.kind} cannot be named '{name.replace('+', '[+]')}': "):
        give()
    assert name not in table


def test_two_of_one_name_are_refused_and_one_that_is_defined_again_takes_its_place():
    table = Registry("thing", "cler.config")
    first, again = (type("First", (), {"name": "mine"}) for _ in range(2))
    assert table.add(first) is first
    assert table.add(again) is again
    assert table["mine"] is again
    with pytest.raises(cler.UsageError, match="two things are named 'mine'"):
        table.add(type("Second", (), {"name": "mine"}))
    with pytest.raises(cler.UsageError, match="the thing Nameless has no name"):
        table.add(type("Nameless", (), {}))


def test_a_plug_in_is_imported_though_its_entry_point_names_what_it_registers(tmp_path, monkeypatch):
    """Registering a regularizer reads the table, for which plug-ins are imported."""
    (tmp_path / "plugged.py").write_text("import cler\n@cler.register\nclass Plugged(cler.Regularizer):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(REGULARIZERS, "_entries", dict(REGULARIZERS))
    point = EntryPoint("mine", "plugged:Plugged", PLUGINS)
    monkeypatch.setattr("cler.config.registry.entry_points", lambda group: [point])
    load_plugins.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "plugged" in REGULARIZERS
