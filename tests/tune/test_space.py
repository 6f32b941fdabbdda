import pytest

from cler.errors import UsageError
from cler.tune.space import Range, parse_space

CHOSEN = {"method": "er-ace", "regularizer": "jigsaw"}


def test_ranges_and_choices():
    text = "lr=1e-3..0.3:log, weight=0.1..3,replay-batch=8..64:log,optimizer=sgd|adam,normalize=true|false"
    assert parse_space(text, CHOSEN) == (
        Range("lr", 1e-3, 0.3, log=True),
        Range("weight", 0.1, 3.0),
        Range("replay_batch", 8, 64, log=True, whole=True),
        Range("optimizer", choices=("sgd", "adam")),
        Range("normalize", choices=(True, False)),
    )


def test_a_methods_own_settings_are_tuned_like_the_others():
    assert parse_space("alpha=0.1..1", {"method": "derpp"}) == (Range("alpha", 0.1, 1.0),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not understood: write lr="),
        ("lr", "'lr' is not understood"),
        ("lr=", "'lr=' is not understood"),
        ("lr=0.1..0.01", "0.1..0.01 must rise"),
        ("weight=0..1:log", "0..1 must rise, from above 0"),
        ("lr=0..1", "lr must be above 0"),
        ("lr=a..b", "lr must be a number, not 'a'"),
        ("lr=0.1..1:linear", "'linear' is not a scale"),
        ("lr=0.1..1,lr=1..2", "lr is given twice"),
        ("regularizer=jigsaw|rotation", "regularizer cannot be tuned; these can: "),
        ("tasks=2|5", "tasks cannot be tuned; these can: buffer, lr, "),
        ("evaluate_every=0|5", "evaluate_every cannot be tuned"),
        ("skip_broken=true|false", "skip_broken cannot be tuned"),
        ("larnrate=0..1", "unknown setting to tune 'larnrate' (known: buffer, lr, weight, "),
        ("alpha=0..1", "unknown setting to tune 'alpha'"),
        ("optimizer=a..b", "unknown optimizer 'a'"),
        ("optimizer=sgd..adam", "optimizer takes no range"),
        ("optimizer=sgd|adam:log", "unknown optimizer 'adam:log'"),
        ("weight_decay=none..0.1", "weight_decay takes no range"),
    ],
)
def test_mistakes_are_told_in_one_line(text, says):
    with pytest.raises(UsageError) as caught:
        parse_space(text, CHOSEN)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_given_is_not_tuned():
    with pytest.raises(UsageError, match="lr is given twice"):
        parse_space("lr=0.1..1", CHOSEN | {"lr": 0.1})


def test_drawn_values_have_four_digits_and_stay_inside():
    assert Range("lr", 0.001, 0.3).rounded(0.01234567) == 0.01235
    assert Range("lr", 0.123456, 0.3).rounded(0.123457) == 0.1235
    assert Range("lr", 0.123449, 0.3).rounded(0.12344901) == 0.123449
    assert Range("batch", 1, 100_000, whole=True).rounded(12345) == 12345
    assert Range("optimizer", choices=("sgd",)).rounded("sgd") == "sgd"
