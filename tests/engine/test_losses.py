import pytest
import torch

from cler.engine.losses import LossSums, means, merged


def test_sums_are_those_since_the_last_call_over_the_steps_that_had_the_term():
    sums = LossSums(torch.device("cpu"))
    stream, replay = torch.tensor(1.5, requires_grad=True), torch.tensor([0.25])
    assert sums.since_last(wait=False) == {}
    assert float(sums.add({"stream": stream})) == 1.5
    assert float(sums.add({"stream": stream, "replay": replay})) == 1.75
    sums.add({"stream": 2 * stream, "replay": 3 * replay})
    found = sums.since_last(wait=False)
    assert found == {"stream": (6.0, 3), "replay": (1.0, 2)}
    assert means(found) == {"stream": 2.0, "replay": 0.5}
    assert sums.since_last(wait=True) == {}
    sums.add({"stream": stream})
    assert sums.since_last(wait=True) == {"stream": (1.5, 1)}


def test_merged_sums_are_of_all_their_steps_and_neither_is_changed():
    first, second = {"stream": (3.0, 2), "replay": (1.0, 1)}, {"stream": (5.0, 6), "margin": (0.5, 4)}
    assert merged(first, second) == {"stream": (8.0, 8), "replay": (1.0, 1), "margin": (0.5, 4)}
    assert (first["stream"], second["stream"]) == ((3.0, 2), (5.0, 6))
    assert means(merged(first, second))["stream"] == pytest.approx(1.0)
