import itertools
import math

import numpy as np
import pytest

from cler import data
from cler.config.making import decided_by, grid, make_settings, unusual
from cler.config.registry import DATASETS
from cler.config.schema import settings_of
from cler.config.settings import Settings, own_settings
from cler.errors import UsageError
from cler.methods import METHODS
from cler.paper.settings import paper_file
from cler.regularizers import REGULARIZERS
from toys import Toy

# -- the paper's settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"method": "er-ace", "regularizer": "jigsaw", "dataset": "cifar100"},
            {"tasks": 10, "buffer": 500, "width": 64, "lr": 0.01, "weight": 1.5, "batch": 10, "replay_batch": 10},
        ),
        ({"method": "er-ace", "regularizer": "rotation", "dataset": "cifar100"}, {"lr": 0.01, "weight": 1.5}),
        ({"method": "er-ace", "dataset": "cifar100"}, {"lr": 0.01, "weight": 0.0, "buffer": 500, "tasks": 10}),
        ({"method": "finetune", "dataset": "cifar100"}, {"lr": 0.01, "buffer": 0, "epochs": 1, "optimizer": "sgd"}),
        ({"method": "finetune", "regularizer": "rotation", "dataset": "cifar100"}, {"weight": 1.0, "buffer": 0}),
        ({"method": "joint", "regularizer": "jigsaw", "dataset": "cifar100"}, {"weight": 1.5, "lr": 0.01, "buffer": 0}),
        ({"method": "er-ace", "dataset": "cifar10"}, {"tasks": 5, "width": 64, "lr": 0.01}),
        ({}, {"method": "er-ace", "regularizer": "none", "dataset": "cifar10-sample", "tasks": 5, "class_order": None}),
    ],
)
def test_what_is_not_given_is_as_in_the_paper(given, expected):
    settings = make_settings(**given).to_dict()
    assert {name: settings[name] for name in expected} == expected
    assert {name: settings[name] for name in given} == given


def test_what_is_given_wins():
    given = {"lr": 0.3, "weight": 0.7, "tasks": 20, "buffer": 2000, "width": 20, "batch": 5, "epochs": 3}
    settings = make_settings(method="er-ace", regularizer="jigsaw", dataset="cifar100", **given).to_dict()
    assert {name: settings[name] for name in given} == given


def test_none_means_not_given():
    assert make_settings(method="er-ace", lr=None, tasks=None) == make_settings(method="er-ace")


@pytest.mark.parametrize("method", METHODS)
def test_every_combination_has_settings(method):
    for dataset, regularizer in itertools.product(data.names(), ("none", *REGULARIZERS)):
        settings = make_settings(method=method, regularizer=regularizer, dataset=dataset)
        assert settings.pair == (method if regularizer == "none" else f"{method}+{regularizer}")
        assert (settings.buffer > 0) == METHODS[method].replays
        assert (settings.weight > 0) == (regularizer != "none")


def test_values_for_a_buffer_size_come_before_those_for_all():
    def cope(buffer):
        return make_settings(method="cope", regularizer="jigsaw", dataset="cifar100", buffer=buffer)

    assert (cope(500).weight, cope(2000).weight, cope(2000).lr) == (1.5, 1.0, 0.001)
    assert make_settings(method="dualnet", dataset="cifar100", buffer=2000).method_options.slow_lr == 0.03


def test_a_regularizer_has_a_weight_of_its_own_where_the_paper_says_nothing():
    weights = [make_settings(method="er", regularizer=name).weight for name in ("none", "jigsaw", "barlow-twins")]
    assert weights == [0.0, 1.0, 0.01]


def test_a_batch_is_large_enough_for_statistics():
    assert make_settings(method="finetune", batch=1).batch == 1
    for wrong in ({"method": "dualnet"}, {"method": "er", "regularizer": "barlow-twins"}):
        with pytest.raises(UsageError, match="batch must be at least 2"):
            make_settings(batch=1, **wrong)


def test_kinds_do_not_depend_on_how_a_method_s_file_begins(monkeypatch):
    made = {}
    exec(  # an annotation is a string only under `from __future__ import annotations`
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Options:\n    smoothing: float = 0.1",
        made,
    )
    monkeypatch.setattr(METHODS["er"], "Options", made["Options"])
    assert own_settings({"method": "er"})["smoothing"].kind is float
    assert make_settings(method="er", smoothing=1).method_options.smoothing == 1.0


def test_the_paper_names_only_what_exists():
    names = settings_of(Settings).keys()
    for dataset in data.names():
        about = paper_file().get(dataset, {})
        assert about.keys() - {"methods"} <= names
        for pair, values in about.get("methods", {}).items():
            method, _, regularizer = pair.partition("@")[0].partition("+")
            assert method in METHODS
            assert regularizer in ("", *REGULARIZERS)
            assert values.keys() <= names | own_settings({"method": method}).keys()


# -- several at once ---------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_once():
    made = grid({"method": "er-ace", "regularizer": ["none", "jigsaw"], "lr": [0.1, 0.2], "buffer": 50})
    assert [(one.regularizer, one.lr, one.buffer) for one in made] == [
        ("none", 0.1, 50), ("none", 0.2, 50), ("jigsaw", 0.1, 50), ("jigsaw", 0.2, 50),
    ]  # fmt: skip


def test_a_grid_leaves_out_what_means_nothing_to_a_combination():
    given = {"method": ["finetune", "er-ace"], "regularizer": ["none", "jigsaw"], "weight": [0.5, 1.0], "buffer": 50}
    made = grid(given)
    assert [(one.pair, one.weight, one.buffer) for one in made] == [
        ("finetune", 0, 0), ("finetune+jigsaw", 0.5, 0), ("finetune+jigsaw", 1.0, 0),
        ("er-ace", 0, 50), ("er-ace+jigsaw", 0.5, 50), ("er-ace+jigsaw", 1.0, 50),
    ]  # fmt: skip


def test_several_regularizers_have_a_weight_each():
    both = make_settings(regularizer="jigsaw+barlow-twins")
    assert (both.regularizers, both.weights) == (["jigsaw", "barlow-twins"], [1.0, 0.01])
    assert make_settings(regularizer="jigsaw+barlow-twins", weight="0.5+0.2").weights == [0.5, 0.2]
    assert make_settings(regularizer="jigsaw+barlow-twins", weight=0.5).weights == [0.5, 0.5]
    assert make_settings(regularizer="jigsaw+barlow-twins", weight="0.123456789+1").weights == [0.123456789, 1.0]
    for wrong in ({"weight": "1+2+3"}, {"regularizer": "jigsaw+jigsaw"}):
        with pytest.raises(UsageError):
            make_settings(**{"regularizer": "jigsaw+barlow-twins"} | wrong)
    with pytest.raises(UsageError, match=r"cannot join none with others, as in 'jigsaw.none': leave it out"):
        make_settings(regularizer="jigsaw+none")


@pytest.mark.parametrize(("given", "tasks"), [(3, 3), ("5+5+10", "5+5+10"), ([5, 5], "5+5"), ("4", 4), ((2,), 2)])
def test_tasks_are_a_number_or_the_classes_of_each(given, tasks):
    assert make_settings(tasks=given).tasks == tasks


@pytest.mark.parametrize(
    "wrong", ["", "5+", "+5", "a+b", "0+5", [], 2.5, True, "5,5x", math.inf, math.nan, [5.5, 4.5], np.float32(5.7)]
)
def test_tasks_that_make_no_sense(wrong):
    with pytest.raises(UsageError, match="tasks must be a number of tasks, or the classes of each as 5"):
        make_settings(tasks=wrong)


def test_what_is_unusual_is_what_somebody_changed():
    assert unusual(make_settings(method="xder", regularizer="jigsaw", dataset="cifar100", buffer=2000)) == {}
    assert unusual(make_settings(method="dualnet", dataset="cifar100")) == {}
    changed = {"lr": 0.3, "alpha": 0.1, "tasks": "50+50"}
    assert unusual(make_settings(method="xder", dataset="cifar100", **changed)) == changed


# -- mistakes ----------------------------------------------------------------------------------------------------------

NUMBERS = ("epochs", "batch", "replay_batch", "width", "threads", "lr")


@pytest.mark.parametrize("name", NUMBERS)
def test_sizes_are_larger_than_zero(name):
    with pytest.raises(UsageError, match=rf"^{name} must be (above 0|at least 1) and at most .*, not 0") as caught:
        make_settings(**{name: 0})
    assert caught.value.parameter == name


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_a_weight_is_a_number_from_zero(value):
    with pytest.raises(UsageError, match=r"^weight must be a number from 0"):
        make_settings(regularizer="jigsaw", weight=value)


@pytest.mark.parametrize("buffer", [0, 9])
def test_a_buffer_holds_a_replay_batch(buffer):
    with pytest.raises(UsageError, match=rf"^buffer {buffer} is smaller than the replay batch of 10"):
        make_settings(method="er-ace", buffer=buffer)
    assert make_settings(method="er-ace", buffer=10).buffer == 10
    assert make_settings(method="er-ace", buffer=9, replay_batch=9).buffer == 9


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "er-acee"}, "unknown method 'er-acee'.*did you mean 'er-ace'"),
        ({"method": "zzz"}, r"unknown method 'zzz' \(known: .*finetune"),
        ({"regularizer": "jigsow"}, "unknown regularizer 'jigsow'.*known: none.*did you mean 'jigsaw'"),
        ({"dataset": "cifar1000"}, "unknown dataset 'cifar1000'.*did you mean 'cifar100'"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm'.*did you mean 'adam'"),
        ({"network": "resnet81"}, "unknown network 'resnet81'.*did you mean 'resnet18'"),
        ({"augment": "flop"}, "unknown augmentation 'flop'"),
        ({"stream": "blury"}, "unknown stream 'blury'.*did you mean 'blurry'"),
        ({"teacher": "emma"}, "unknown teacher 'emma'.*known: none.*did you mean 'ema'"),
        ({"precision": "fp23"}, "unknown precision 'fp23'.*did you mean 'fp32'"),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(given, says):
    with pytest.raises(UsageError, match=says) as caught:
        make_settings(**given)
    assert "\n" not in str(caught.value)
    may_be_own = given.keys().isdisjoint({"dataset", "precision"})
    own = "; if it is your own, name its file with --import (in Python, import it first)"
    assert str(caught.value).endswith(own) == may_be_own


def test_cler_is_said_to_be_two_regularizers():
    for name in ("cler", "CLER", "jigsaw+cler"):
        with pytest.raises(UsageError, match=r"^regularizer (cler|CLER): CLER is jigsaw or rotation$"):
            make_settings(method="er", regularizer=name)


def test_part_of_a_name_is_enough_to_be_told_the_whole():
    with pytest.raises(UsageError, match=r"did you mean 'online-10\+64'\?$"):
        make_settings(protocol="10+64")


def test_no_near_name_no_suggestion():
    with pytest.raises(UsageError) as caught:
        make_settings(method="zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"method": "er-ace", "weight": 1.5}, "weight"),
        ({"method": "finetune", "buffer": 50}, "buffer"),
        ({"method": "finetune", "replay_batch": 5}, "replay_batch"),
    ],
)
def test_a_setting_without_effect_is_refused(given, parameter):
    with pytest.raises(UsageError, match=r"has no effect.*leave it out") as caught:
        make_settings(**given)
    assert caught.value.parameter == parameter


def test_every_setting_says_what_it_is():
    declared = [Settings, *(method.Options for method in METHODS.values())]
    for each in (each for one in declared for each in settings_of(one).values()):
        assert each.help.endswith("."), each.name
        assert "\n" not in each.help


def test_what_decides_is_found_in_what_is_usual(monkeypatch):
    decided = decided_by()
    assert decided["buffer"] == ["dataset"]
    assert decided["replay_batch"] == ["protocol"]
    assert "threads" not in decided
    monkeypatch.setitem(DATASETS._entries, "of-threads", type("Threads", (Toy,), {"defaults": {"threads": 2}})())
    assert decided_by()["threads"] == ["dataset"]
