import pytest

from cler.config.labels import run_line
from cler.config.making import make_settings


def told(**given):
    """The settings that the line before training names, with their values."""
    _, _, settings = run_line(make_settings(**given), [0]).partition(", seed 0: ")
    return dict(each.split(" ", 1) for each in settings.split(", "))


def test_the_line_before_training_names_what_the_run_makes_use_of():
    line = run_line(make_settings(method="er-ace", width=4), [0, 1])
    assert line == (
        "ER-ACE on cifar10-sample, seeds 0, 1: stream class-incremental, tasks 5, buffer 200, epochs 1, lr 0.03, "
        "batch 10, replay_batch 10, repeats 1, optimizer sgd, network resnet18, width 4, augment crop-flip, "
        "normalize True, classifier network, precision fp32, threads 1"
    )


def test_the_lines_of_a_grid_say_only_what_is_different_from_the_first():
    first = make_settings(method="er-ace", lr=0.1)
    added = run_line(make_settings(method="er-ace", regularizer="jigsaw", lr=0.1, weight=0.5), [0], first)
    assert added == "ER-ACE + CLER (jigsaw) on cifar10-sample, seed 0: like the first, with weight 0.5"
    other = run_line(make_settings(method="er-ace"), [0, 1], first)  # whatever of it is a default
    assert other == "ER-ACE on cifar10-sample, seeds 0, 1: like the first, with lr 0.03"
    assert run_line(first, [2], first).endswith("seed 2: like the first")
    held_out = make_settings(method="er-ace", lr=0.1, validate=0.1)
    assert run_line(first, [0], held_out).endswith(": like the first, with validate 0.0")  # off here, and not there
    ordered = make_settings(method="er-ace", lr=0.1, class_order=3)
    assert run_line(first, [0], ordered).endswith(": like the first, with class_order –")
    assert run_line(make_settings(method="finetune", lr=0.1), [0], first).endswith(": like the first")  # has no buffer


@pytest.mark.parametrize(
    ("given", "named", "not_named"),
    [
        ({"method": "finetune"}, {}, {"buffer", "replay_batch", "repeats", "classifier", "weight"}),
        ({"regularizer": "jigsaw", "weight": 0}, {"weight": "0.0"}, set()),
        ({"network": "timm:resnet18", "freeze": True}, {"freeze": "True"}, {"width", "pretrained"}),
        ({"dataset": "folder:photos", "size": 64, "skip_broken": True}, {"size": "64", "skip_broken": "True"}, {"fit"}),
        ({"dataset": "folder:photos"}, {}, {"size", "skip_broken"}),
        ({"normalize": False, "validate": 0.1}, {"normalize": "False", "validate": "0.1"}, {"evaluate_every"}),
        ({"method": "lwf-mc", "decay": 0.1}, {"decay": "0.1", "alpha": "1.0"}, {"buffer"}),
        ({"method": "lwf-mc"}, {"alpha": "1.0"}, {"decay"}),
    ],
)
def test_the_line_leaves_out_what_means_nothing_to_the_run_or_is_off(given, named, not_named):
    settings = told(**given)
    assert named.items() <= settings.items()
    assert not_named.isdisjoint(settings)
