import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cler.config.making import make_settings
from cler.config.reading import imports_in, parse_options, parse_seeds, parse_settings, read_config
from cler.errors import UsageError

# -- settings of one method --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("alpha=0.5", {"alpha": 0.5}),
        ("variant=released", {"variant": "released"}),
        ("alpha=0.5,1", {"alpha": [0.5, 1.0]}),
    ],
)
def test_settings_of_one_method(text, options):
    assert parse_options([text], {"method": "xder"}) == options


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["alpha"], "write NAME=VALUE"),
        (["alpha=much"], "alpha must be a number, not 'much'"),
        (["alfa=1"], "unknown setting of xder 'alfa'.*did you mean 'alpha'"),
        (["lr=1"], "a setting of every run; write --lr 1"),
        (["alpha=1", "alpha=2"], "given twice"),
    ],
)
def test_settings_that_a_method_does_not_have(texts, says):
    with pytest.raises(UsageError, match=says):
        parse_options(texts, {"method": "xder"})
    with pytest.raises(UsageError, match="er-ace has no settings of its own"):
        parse_options(["alpha=1"], {})


def test_options_of_the_command_line_are_values_or_a_grid():
    assert parse_settings({"lr": "0.1,0.2", "method": "er", "tasks": "5+5", "class_order": "none,7,seed"}) == {
        "lr": [0.1, 0.2], "method": "er", "tasks": "5+5", "class_order": [None, 7, "seed"],
    }  # fmt: skip


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
        ("replay_batch = 3\nreplay-batch = 4\n", "replay_batch is there twice, once as replay-batch: write it once"),
        ("lr = 0.1\nwidth = = 3\n", r"not valid TOML: .*line 2"),
        ("lr = ", r"not valid TOML: .*(line 1|end of document)"),
        ("lr = 0.1\nlr = 0.2\n", r"not valid TOML: .*line 2"),
        (b"\xff\xfe", "not a UTF-8 text file"),
        ("lrr = 0.1", r"unknown setting in .*'lrr'.*did you mean 'lr'"),
        ("replay_bach = 3", r"did you mean 'replay_batch'"),
        ("[run]\nlr = 0.1", r"settings\.toml: settings stand at the top level: leave the line \[run\] out$"),
        (
            "bufer = 3",
            r"^unknown setting in \S*settings\.toml 'bufer'; did you mean 'buffer'\?; `cler run --help` lists",
        ),
        ('lr = "0.1"', r"lr must be a number, not '0.1'"),
        ("lr = true", r"lr must be a number, not True"),
        ("tasks = 2.5", r"tasks must be a number of tasks.*not 2.5"),
        ("tasks = true", r"tasks must be a number of tasks.*not True"),
        ("method = 3", r"method must be a string, not 3"),
        ("method = ['err']", r"unknown method 'err'"),
        ("lr = []", r"lr must be a number, not \[\]"),
        ("seeds = []", r"seeds must be a number of seeds, or a list"),
        ("seeds = [true]", r"seeds must be a number of seeds, or a list"),
        ("set = ['alpha=0.1']", "write a method's own settings like the others, as in: alpha = 0.8"),
        ("workers = 0", r"workers must be at least 1 and at most 10000, not 0"),
        ("workers = [1, 2]", r"workers must be a whole number, not \[1, 2\]"),
        ("track = 'tensorbord'", r"unknown tracker 'tensorbord'.*did you mean 'tensorboard'"),
        ("class_order = 'natural'", r"class_order must be a whole number from 0 to 999999, or seed, not 'natural'"),
        ("lr = 2020-01-01", r"lr must be a number, not"),
        ("tuned = true", r"\[tuned\] is not what `cler tune` writes: leave it out"),
        ("[tuned]\nselect_on = 'luck'", r"\[tuned\] is not what `cler tune` writes: leave it out"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(config, text, says):
    path = config(text)
    with pytest.raises(UsageError, match=says) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["import = 3", "import = [true]", 'import = ""'])
def test_what_is_to_be_imported_is_a_string_or_a_list_of_them(config, text):
    assert imports_in(config("lr = 0.1")) == []
    path = config(text)
    with pytest.raises(UsageError, match="import must be a file or module") as caught:
        imports_in(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["tasks", "buffer", "class_order", "lr"])
def test_numbers_that_no_float_can_hold_are_refused(config, name):
    with pytest.raises(UsageError, match=name):
        make_settings(**read_config(config(f"{name} = 1{'0' * 400}")))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.toml: No such file"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        read_config(tmp_path)


def test_the_command_lines_method_comes_before_the_files(tmp_path):
    file = tmp_path / "cope.toml"
    file.write_text('method = "cope"\nmomentum = 0.9\n')
    assert read_config(file)["momentum"] == 0.9
    with pytest.raises(UsageError, match="momentum"):
        read_config(file, {"method": "er-ace"})


@pytest.mark.parametrize("text", ["weight = " + "9" * 400, "weight = " + "9" * 5000, "a = " + "[" * 100_000])
def test_absurd_files_are_refused(tmp_path, text):
    file = tmp_path / "absurd.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        make_settings(regularizer="jigsaw", **read_config(file))


def test_seeds_in_a_file_may_be_a_list(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("seeds = [0, 3]")
    assert read_config(file) == {"seeds": "0,3"}
    file.write_text("seeds = [3]")
    assert parse_seeds(read_config(file)["seeds"]) == [3]


def test_a_list_in_a_file_is_a_grid(config):
    assert read_config(config("lr = [0.1, 0.2]\nmethod = 'er,er-ace'\ntasks = '5+5'")) == {
        "lr": [0.1, 0.2], "method": ["er", "er-ace"], "tasks": "5+5",
    }  # fmt: skip


def test_a_setting_in_a_file_that_is_true_or_false(config):
    assert read_config(config("compile = true")) == {"compile": True}
    with pytest.raises(UsageError, match="true or false"):
        read_config(config("compile = 1"))


# -- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [0, 1, 2]),
        (3, [0, 1, 2]),
        ([3, 7, 3], [3, 7]),
        (range(2, 4), [2, 3]),
        (np.int64(3), [0, 1, 2]),
        (np.array([3, 7]), [3, 7]),
        ("0..3", [0, 1, 2, 3]),
        ("7..7", [7]),
        ("0,2,5", [0, 2, 5]),
        ("3, 1..2", [3, 1, 2]),
        ("1,1,0..2", [1, 0, 2]),
    ],
)
def test_seeds(text, seeds):
    found = parse_seeds(text)
    assert found == seeds
    assert all(type(each) is int for each in found)  # as JSON takes


@pytest.mark.parametrize(
    "text", ["", "a", "1..", "..3", "1...3", "-1", "1-3", "1,,2", "1.5", "0", "0x3", "3..1", "1..2..3", "²"]
)
def test_bad_seeds(text):
    with pytest.raises(UsageError, match=r"^seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    "text",
    [2147483647, -1, 0, "0..99999999999999999999", "99999999999999999999999", "9" * 5000, "0..999999," * 300 + "7"],
)
def test_seeds_no_generator_takes_are_refused_at_once(text):
    with pytest.raises(UsageError, match=r"^seeds"):
        parse_seeds(text)


@given(st.lists(st.one_of(st.integers(0, 50), st.tuples(st.integers(0, 50), st.integers(0, 20))), min_size=1))
def test_seeds_are_every_number_named_once_in_order(parts):
    text = ",".join(str(part) if isinstance(part, int) else f"{part[0]}..{sum(part)}" for part in parts)
    named = []
    for part in parts:
        named += [part] if isinstance(part, int) else range(part[0], sum(part) + 1)
    assume(not text.isdecimal())
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
        assert not well_formed or "runs backwards" in message_for(text) or int(text) == 0
    else:
        assert well_formed
        assert seeds
        assert all(isinstance(seed, int) and seed >= 0 for seed in seeds)


def message_for(text):
    with pytest.raises(UsageError) as caught:
        parse_seeds(text)
    return str(caught.value)
