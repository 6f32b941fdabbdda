import pickle

import pytest
import torch

from cler import cli
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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.AcceleratorError, "CUDA error: out of memory"),
        (RuntimeError, "can't allocate memory"),
    ],
)
def test_a_machine_without_room_for_one_run_is_one_line_with_what_to_do(monkeypatch, capsys, error, words):
    def full(**_):
        raise error(f"{words}\nFor debugging consider passing ...")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    line = capsys.readouterr().err
    assert line.startswith(f"cler: {words}; take a smaller --width, --batch or --buffer")
    assert line.count("\n") == 1
