"""`cler.train` and `Learner` name their parameters for editors; what they name is what the schema declares."""

import inspect
from typing import get_type_hints

import cler
from cler.config.learner import learner_settings
from cler.config.machine import Machine
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.learner.parameters import OTHERS


def parameters(function):
    return {
        name: each
        for name, each in inspect.signature(function).parameters.items()
        if name != "self" and each.kind is not inspect.Parameter.VAR_KEYWORD
    }


def test_a_learner_names_every_setting_that_is_its_own_with_its_default():
    named = {name: each.default for name, each in parameters(cler.Learner).items()}
    assert named == {name: each.default for name, each in learner_settings().items()} | OTHERS


def test_a_learner_has_a_runs_defaults_but_for_its_regularizer():
    shared = {name: each for name, each in settings_of(Settings).items() if each.learner}
    ours = {name: learner_settings()[name].default for name in shared}
    assert ours == {name: each.default for name, each in shared.items()} | {"regularizer": "jigsaw", "weight": None}


def test_train_names_every_setting_of_a_run_and_of_the_machine():
    named, hints = parameters(cler.train), get_type_hints(cler.train)
    settings, machine = settings_of(Settings), settings_of(Machine)
    others = {"seeds", "restart", "redo", "callbacks", "verbose"}
    assert named.keys() == settings.keys() | machine.keys() | others
    for name in settings.keys() - {"method", "regularizer", "dataset"}:
        assert named[name].default is None, name  # what is usual for the method and the dataset
    for name in ("method", "regularizer", "dataset"):
        assert named[name].default == settings[name].default
    for name, each in machine.items():
        default = named[name].default
        assert (str(default) if name == "out" else default) == (str(each.default) if name == "out" else each.default)
    for name, each in (settings | machine).items():
        if each.kind in (int, float, bool):
            assert each.kind in (hints[name], *getattr(hints[name], "__args__", ())), name
