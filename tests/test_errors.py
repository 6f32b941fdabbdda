import pickle

import pytest

from cler.errors import UsageError, unknown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two  spaces, λ and 名", "two  spaces, λ and 名"),
        ("a\nb\r\nc\u2028d", "a b  c d"),
        ("\x1b[2J\x07", "\ufffd[2J\ufffd"),
        ("half a character: \ud800", "half a character: \ufffd"),
    ],
)
def test_a_mistake_is_one_line_that_can_be_printed(text, line):
    assert str(UsageError(text)) == line
    assert line in str(unknown("name", text, []))


def test_a_mistake_in_a_worker_arrives_as_it_was():
    assert str(pickle.loads(pickle.dumps(UsageError("a\nb")))) == "a b"
