"""Every method on every stream: it is trained and resumed to the bit, or refused by one line."""

import dataclasses

import pytest

from cler.config.compatibility import lacks
from cler.errors import UsageError
from cler.methods import METHODS
from cler.promises import steps, training
from cler.promises.toy import colors, make_short_run
from cler.streams import STREAMS

pytestmark = pytest.mark.usefixtures("shallow")
OWN = {"long-tailed": {"imbalance": 2.0}}
"""Of a toy, which has few images."""
REFUSED = {
    ("blurry", "shuffled"): ("dualnet", "gsa", "lwf-mc", "mose", "r-dfcil", "xder"),
    ("domain-incremental",): ("gsa", "lwf-mc", "mose", "r-dfcil", "xder"),
}
OTHERS = [name for name in STREAMS if name != "class-incremental"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stream", OTHERS)
def test_a_stream_with_a_method(stream, method):
    changes = {"stream": stream, **OWN.get(stream, {})}
    refused = any(stream in streams and method in methods for streams, methods in REFUSED.items())
    assert bool(lacks(stream, method)) == refused
    if refused:
        with pytest.raises(UsageError, match=f"{stream} .*, which {method} needs; methods that do not: ") as error:
            make_short_run(method, **changes)
        assert "\n" not in str(error.value)
        return
    batch = 8 if stream == "long-tailed" else 16
    training.resumes(method, stops=[(0, 1), (1, 1)] if method != "joint" else [(0, 2)], batch=batch, **changes)


@pytest.mark.parametrize("stream", ["blurry", "shuffled", "domain-incremental"])
def test_evaluation_within_such_a_stream(stream):
    training.resumes("er-ace", stops=[(1, 1)], stream=stream, evaluate_every=2)
    training.together_equals_alone("er-ace", stream=stream)


def test_a_recorded_step_serves_a_stream_without_boundaries():
    steps.keeps_the_rule("er-ace", stream="blurry", evaluate_every=1)
    run = training.trained("er-ace", stream="blurry", evaluate_every=2)
    assert run.method.task == 1
    assert len(run.curves["met_class_il"]) == len(run.curves["task"])
    assert run.curves["met_class_il"][-1] == pytest.approx(sum(run.accuracy["class_il"][-1]) / 2)


def test_nothing_is_noted_while_no_class_that_came_can_be_tested():
    """Blurry draws with seed 2 that the first images are of class 0."""
    images = colors()
    tested = images.test_labels > 0
    images = dataclasses.replace(images, test_images=images.test_images[tested], test_labels=images.test_labels[tested])
    run = training.trained("er", data=images, batch=1, stream="blurry", class_order=2, evaluate_every=1)
    steps = sum(run.schedule)
    assert 0 < steps - len(run.curves["met_class_il"]) < steps / 2
    assert len(run.curves["task"]) == len(run.curves["met_class_il"])
    assert all(0 <= each <= 100 for each in run.curves["met_class_il"])
