import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cler.config import written
from cler.config.settings import make_settings
from cler.config.written import parse_options, parse_seeds, read_config
from cler.errors import UsageError

# -- settings of one method --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"), [("alpha=0.5", {"alpha": 0.5}), ("variant=released", {"variant": "released"})]
)
def test_settings_of_one_method(text, options):
    assert parse_options("xder", [text]) == options
    assert (
        make_settings(method="xder", **options).to_dict() | options == make_settings(method="xder", **options).to_dict()
    )


def test_a_setting_that_is_true_or_false(monkeypatch):
    monkeypatch.setattr(written, "option_kinds", lambda method: {"fast": "bool"})
    assert parse_options("xder", ["fast=false"]) == {"fast": False}
    with pytest.raises(UsageError, match="--set fast needs true or false, not 'no'"):
        parse_options("xder", ["fast=no"])


@pytest.mark.parametrize("text", ["alpha", "alpha=much", "alfa=1"])
def test_settings_that_a_method_does_not_have(text):
    with pytest.raises(UsageError):
        parse_options("xder", [text])


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


def test_seeds_in_a_file_may_be_a_list(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("seeds = [0, 3]")
    assert read_config(file) == {"seeds": "0,3"}


def test_a_setting_in_a_file_that_is_true_or_false(config):
    assert read_config(config("compile = true")) == {"compile": True}
    with pytest.raises(UsageError, match="true or false"):
        read_config(config("compile = 1"))


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
