import dataclasses
import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cler import data
from cler.errors import UsageError
from cler.experiments import settings as settings_module
from cler.experiments.settings import (
    Settings,
    make_settings,
    option_docs,
    option_kinds,
    paper_settings,
    parse_options,
    parse_seeds,
    read_config,
)
from cler.methods import METHODS
from cler.regularizers import REGULARIZERS

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


def test_what_plays_no_part_is_zero():
    assert make_settings(method="finetune", buffer=300).buffer == 0
    assert make_settings(method="finetune", buffer=300) == make_settings(method="finetune")


@pytest.mark.parametrize("dataset", data.names())
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("regularizer", ["none", *REGULARIZERS])
def test_every_combination_has_settings(dataset, method, regularizer):
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
        with pytest.raises(UsageError, match="--batch must be at least 2"):
            make_settings(batch=1, **wrong)


@pytest.mark.parametrize(
    ("text", "options"), [("alpha=0.5", {"alpha": 0.5}), ("variant=released", {"variant": "released"})]
)
def test_settings_of_one_method(text, options):
    assert parse_options("xder", [text]) == options
    assert (
        make_settings(method="xder", **options).to_dict() | options == make_settings(method="xder", **options).to_dict()
    )


def test_kinds_do_not_depend_on_how_a_method_s_file_begins(monkeypatch):
    made = {}
    exec(  # an annotation is a text only under `from __future__ import annotations`
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Options:\n    smoothing: float = 0.1",
        made,
    )
    monkeypatch.setattr(METHODS["er"], "Options", made["Options"])
    assert option_kinds("er") == {"smoothing": "float"}
    assert parse_options("er", ["smoothing=0.2"]) == {"smoothing": 0.2}


def test_a_setting_that_is_true_or_false(monkeypatch):
    monkeypatch.setattr(settings_module, "option_kinds", lambda method: {"fast": "bool"})
    assert parse_options("xder", ["fast=false"]) == {"fast": False}
    with pytest.raises(UsageError, match="--set fast needs true or false, not 'no'"):
        parse_options("xder", ["fast=no"])


@pytest.mark.parametrize("text", ["alpha", "alpha=much", "alfa=1"])
def test_settings_that_a_method_does_not_have(text):
    with pytest.raises(UsageError):
        parse_options("xder", [text])


def test_the_table_names_only_what_exists():
    table = {name: about for name, about in paper_settings().items() if name != "printed"}  # results, not settings
    names = {field.name for field in dataclasses.fields(Settings)}
    assert table.keys() <= {"default", *data.names()}
    for about in table.values():
        pairs = about.get("methods", {})
        assert about.keys() - {"methods"} <= names
        for pair, values in pairs.items():
            method, _, regularizer = pair.partition("@")[0].partition("+")
            assert method in METHODS
            assert regularizer in ("", *REGULARIZERS)
            assert values.keys() <= names | option_kinds(method).keys()


# -- mistakes ----------------------------------------------------------------------------------------------------------

NUMBERS = ("tasks", "epochs", "batch", "replay_batch", "width", "threads", "lr")


@pytest.mark.parametrize("value", [0, -1, -100])
@pytest.mark.parametrize("name", NUMBERS)
def test_sizes_are_larger_than_zero(name, value):
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=rf"^{flag} .*larger than zero, not {value}"):
        make_settings(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["lr", "weight"])
def test_numbers_are_finite(name, value):
    with pytest.raises(UsageError, match=f"--{name} "):
        make_settings(method="er-ace", regularizer="jigsaw", **{name: value})


def test_a_weight_is_not_negative():
    with pytest.raises(UsageError, match="--weight must be a number from 0"):
        make_settings(regularizer="jigsaw", weight=-0.5)


@pytest.mark.parametrize("buffer", [-5, 0, 9])
def test_a_memory_holds_a_replay_batch(buffer):
    with pytest.raises(UsageError, match=rf"--buffer {buffer} is smaller than --replay-batch 10"):
        make_settings(method="er-ace", buffer=buffer)
    assert make_settings(method="er-ace", buffer=10).buffer == 10
    assert make_settings(method="er-ace", buffer=9, replay_batch=9).buffer == 9


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "er-acee"}, "unknown method 'er-acee'.*did you mean 'er-ace'"),
        ({"method": "zzz"}, r"unknown method 'zzz' \(known: .*finetune"),
        ({"regularizer": "jigsow"}, "unknown regulariser 'jigsow'.*known: none.*did you mean 'jigsaw'"),
        ({"dataset": "cifar1000"}, "unknown data set 'cifar1000'.*did you mean 'cifar100'"),
        ({"optimizer": "adam"}, "unknown optimiser 'adam'.*did you mean 'adamw'"),
        ({"precision": "fp23"}, "unknown precision 'fp23'.*did you mean 'fp32'"),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(given, says):
    with pytest.raises(UsageError, match=says) as caught:
        make_settings(**given)
    assert "\n" not in str(caught.value)


def test_no_near_name_no_suggestion():
    with pytest.raises(UsageError) as caught:
        make_settings(method="zzz")
    assert "did you mean" not in str(caught.value)


# -- settings files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "settings.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_file_gives_any_option(config):
    text = (
        'method = "er"\nregularizer = "jigsaw"\nlr = 1\nreplay-batch = 5\nclass_order = 3\nseeds = "0..4"\nweight = 0.5'
    )
    options = read_config(config(text))
    assert options == {
        "method": "er",
        "regularizer": "jigsaw",
        "lr": 1.0,
        "replay_batch": 5,
        "class_order": 3,
        "seeds": "0..4",
        "weight": 0.5,
    }
    assert isinstance(options["lr"], float)
    assert make_settings(**{name: value for name, value in options.items() if name != "seeds"}).replay_batch == 5


def test_an_empty_file_gives_nothing(config):
    assert read_config(config("# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr = 0.1\nwidth = = 3\n", r"not valid TOML: .*line 2"),
        ("lr = ", r"not valid TOML: .*(line 1|end of document)"),
        ("lr = 0.1\nlr = 0.2\n", r"not valid TOML: .*line 2"),
        (b"\xff\xfe", "not valid TOML"),
        ("lrr = 0.1", r"unknown option in .*'lrr'.*did you mean 'lr'"),
        ("replay_bach = 3", r"did you mean 'replay_batch'"),
        ("[run]\nlr = 0.1", r"unknown option in .*'run'"),
        ('lr = "0.1"', r"'lr' is '0.1', but has to be a number"),
        ("lr = true", r"'lr' is True, but has to be a number"),
        ("tasks = 2.5", r"'tasks' is 2.5, but has to be a whole number"),
        ("tasks = true", r"'tasks' is True, but has to be a whole number"),
        ("method = 3", r"'method' is 3, but has to be a text in quotes"),
        ("method = ['er']", r"'method' is \['er'\], but has to be a text in quotes"),
        ("seeds = []", r"'seeds' is \[\]"),
        ("seeds = [true]", r"'seeds' is \[True\]"),
        ("set = ['alpha=0.1']", "a method's own settings stand beside the others, as in: alpha = 0.8"),
        ("device = 'cpu'", "'device' is not a setting of a run: give --device with the command"),
        ("class_order = 'natural'", r"'class_order' is 'natural', but has to be a whole number"),
        ("lr = 2020-01-01", r"'lr' is .*, but has to be a number"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(config, text, says):
    path = config(text)
    with pytest.raises(UsageError, match=says) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tasks", "buffer", "class_order", "lr"])
def test_numbers_that_no_float_can_hold_are_refused(config, name):
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
        make_settings(**read_config(config(f"{name} = 1{'0' * 400}")))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.toml: No such file"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        read_config(tmp_path)


# -- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", [0]),
        ("0..3", [0, 1, 2, 3]),
        ("7..7", [7]),
        ("0,2,5", [0, 2, 5]),
        ("3, 1..2", [3, 1, 2]),
        ("1,1,0..2", [1, 0, 2]),
    ],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "a", "1..", "..3", "1...3", "-1", "1-3", "1,,2", "1.5", "0x3", "3..1", "1..2..3", "²"]
)
def test_bad_seeds(text):
    with pytest.raises(UsageError, match="--seeds") as caught:
        parse_seeds(text)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "text", ["0..99999999999999999999", "99999999999999999999999", "9" * 5000, "0..999999," * 300 + "7"]
)
def test_seeds_no_generator_takes_are_refused_at_once(text):
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


@given(st.lists(st.one_of(st.integers(0, 50), st.tuples(st.integers(0, 50), st.integers(0, 20))), min_size=1))
def test_seeds_are_every_number_named_once_in_order(parts):
    text = ",".join(str(part) if isinstance(part, int) else f"{part[0]}..{sum(part)}" for part in parts)
    named = []
    for part in parts:
        named += [part] if isinstance(part, int) else range(part[0], sum(part) + 1)
    assert parse_seeds(text) == list(dict.fromkeys(named))


@given(st.text(alphabet="0123456789.,- a", max_size=12))
def test_any_text_is_seeds_or_a_mistake_in_one_line(text):
    assume(all(len(number) < 5 for number in re.split(r"\D", text)))
    well_formed = re.fullmatch(r" *\d+(\.\.\d+)? *(, *\d+(\.\.\d+)? *)*", text)
    try:
        seeds = parse_seeds(text)
    except UsageError:
        seeds = None
    if seeds is None:
        assert not well_formed or "runs backwards" in message_for(text)
    else:
        assert well_formed
        assert seeds
        assert all(isinstance(seed, int) and seed >= 0 for seed in seeds)


def message_for(text):
    with pytest.raises(UsageError) as caught:
        parse_seeds(text)
    return str(caught.value)


def test_the_command_lines_method_comes_before_the_files(tmp_path):
    file = tmp_path / "cope.toml"
    file.write_text('method = "cope"\nmomentum = 0.9\n')
    assert read_config(file)["momentum"] == 0.9
    with pytest.raises(UsageError, match="momentum"):
        read_config(file, "er-ace")


@pytest.mark.parametrize("text", ["weight = " + "9" * 400, "weight = " + "9" * 5000, "a = " + "[" * 100_000])
def test_absurd_files_are_refused(tmp_path, text):
    file = tmp_path / "absurd.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        make_settings(regularizer="jigsaw", **read_config(file))


def test_an_option_without_effect_is_refused():
    with pytest.raises(UsageError, match="--regularizer"):
        make_settings(method="er-ace", weight=1.5)
    with pytest.raises(UsageError, match="--buffer"):
        make_settings(method="finetune", buffer=-5)


def test_compilation_is_a_setting_that_old_results_need_not_have(tmp_path):
    assert "compile" not in make_settings().to_dict()
    assert make_settings(compile=True).to_dict()["compile"] is True
    file = tmp_path / "settings.toml"
    file.write_text("compile = true")
    assert read_config(file) == {"compile": True}
    file.write_text("compile = 1")
    with pytest.raises(UsageError, match="true or false"):
        read_config(file)


def test_seeds_in_a_file_may_be_a_list(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("seeds = [0, 3]")
    assert read_config(file) == {"seeds": "0,3"}


def test_every_setting_of_a_method_says_what_it_is():
    for method in METHODS:
        for name, text in option_docs(method).items():
            assert text, f"{method}: {name}"
            assert "\n" not in text
