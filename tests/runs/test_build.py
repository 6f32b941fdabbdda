import json
from functools import cache

import pytest
import torch

from cler.config.making import make_settings
from cler.engine import tensorfile, train
from cler.errors import UsageError
from cler.promises import toy
from cler.promises.state import differences
from cler.runs.build import advice, build_run, check_fit
from cler.runs.networks import NAME, save_network
from toys import noise, shades


@pytest.mark.parametrize("normalize", [True, False])
def test_pixels_are_normalized_by_the_datasets_statistics_or_go_from_0_to_1(tmp_path, normalize):
    settings = make_settings(
        method="er", dataset="cifar10-sample", tasks=2, width=1, augment="none", normalize=normalize
    )
    data = shades()
    run = build_run(settings, 0, data)
    pixels = data.train_images[:3]
    share = pixels.double() / 255
    expected = (share - 0.5) / 0.3 if normalize else share
    for seen in (run.views.plain(pixels), run.views.augmented(pixels), run.method.views.plain(pixels)):
        assert torch.allclose(seen.double(), expected, atol=1e-6)
    save_network(tmp_path, run, settings)
    about = json.loads(tensorfile.read(tmp_path / NAME)[1]["about"])
    assert (about["mean"], about["std"]) == (([0.5] * 3, [0.3] * 3) if normalize else ([0.0] * 3, [1.0] * 3))


def test_the_class_order_of_every_seed_is_held_against_the_data():
    data = noise(4, 10)
    small = torch.cat([torch.arange(len(data.train_labels))[data.train_labels != 3], torch.tensor([3])])
    data = data.__class__(
        "toy", data.train_images[small], data.train_labels[small], data.test_images, data.test_labels, data.classes,
        data.mean, data.std,
    )  # fmt: skip
    settings = make_settings(method="er", tasks="3+1", batch=10, class_order="seed")
    last = [int(order_of(seed)[-1]) for seed in range(50)]
    good, bad = last.index(0), last.index(3)  # what comes alone, in the last task
    check_fit(settings, data, [good])
    with pytest.raises(UsageError, match="batch must be at most 1, the images of the smallest task"):
        check_fit(settings, data, [good, bad])


def order_of(seed):
    return torch.randperm(4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"buffer": 30}, []),
        ({"buffer": 40}, ["buffer 40 holds all 40 images of the stream: nothing has to be forgotten"]),
        ({"method": "finetune"}, []),
        ({"buffer": 30, "epochs": 2}, []),
        (
            {"buffer": 30, "batch": 3},
            [
                "4 of 40 training images are left out, because they do not fill a batch of 3 at the end of their task: "
                "a smaller batch leaves out fewer"
            ],
        ),
        ({"buffer": 30, "batch": 3, "epochs": 2}, []),  # others in each pass
        ({"buffer": 30, "batch": 3, "stream": "shuffled"}, []),  # one of all
        ({"method": "joint", "batch": 3}, []),
        (
            {"buffer": 30, "teacher": "ema"},
            ["ema_momentum 0.99 averages over about 100 steps, and a task has 10: try 0"],
        ),
        ({"buffer": 30, "teacher": "ema", "ema_momentum": 0.75}, []),
        ({"buffer": 30, "teacher": "ema", "ema_momentum": 1.0, "epochs": 50}, []),
        (
            {"buffer": 30, "freeze": True},
            ["freeze keeps layers of resnet18 at their random weights: did you leave out pretrained?"],
        ),
    ],
)
def test_what_hardly_makes_sense_is_pointed_out(changes, told):
    data = noise(per_class=10, n_classes=4)
    settings = make_settings(**{"method": "er", "dataset": "cifar10-sample", "tasks": 2, "batch": 2} | changes)
    assert list(advice(settings, data)) == told


USUAL = {"method": "er-ace"}
BLURRY = {"method": "er", "stream": "blurry"}
LONG_TAILED = {"method": "er", "stream": "long-tailed", "imbalance": 2.0}
OURS = {"method": "er-ace", "network": None, "width": 2}
CHANGES = [  # from settings beside which others have an effect, what is changed of them
    *(
        (USUAL, changes)
        for changes in (
            {"method": "er"}, {"regularizer": "jigsaw"}, {"teacher": "ema"}, {"teacher": "mkd"}, {"stream": "shuffled"},
            LONG_TAILED, {"tasks": 4}, {"buffer": 10}, {"epochs": 2}, {"lr": 0.01}, {"batch": 12}, {"replay_batch": 4},
            {"repeats": 2}, {"optimizer": "adam"}, {"optimizer": "adamw"}, {"sgd_momentum": 0.5}, {"weight_decay": 0.1},
            {"augment": "none"}, {"augment": "crop"}, {"normalize": False}, {"class_order": 1}, {"class_order": "seed"},
            {"classifier": "ncm"}, {"validate": 0.25}, {"precision": "bf16"},
        )
    ),
    (USUAL | {"regularizer": "rotation"}, {"weight": 0.5}),
    (USUAL | {"regularizer": "barlow-twins"}, {"weight": 0.5}),
    (USUAL | {"optimizer": "adam"}, {"weight_decay": 0.1}),
    (USUAL | {"optimizer": "adamw"}, {"weight_decay": 0.1}),
    *((OURS, changes) for changes in ({"width": 4}, {"freeze": True})),
    *((USUAL | {"teacher": "ema"}, changes) for changes in ({"ema_momentum": 0.5}, {"ema_first_momentum": 0.5})),
    *(
        (USUAL | {"teacher": "mkd"}, changes)
        for changes in ({"mkd_rate": 0.1}, {"mkd_weight": 1.0}, {"mkd_temperature": 1.0})
    ),
    *((BLURRY, changes) for changes in ({"disjoint": 0}, {"blur": 50}, {"homes": "random"})),
    *((LONG_TAILED, changes) for changes in ({"imbalance": 3.0}, {"tail": "shuffled"})),
]  # fmt: skip


@cache
def outcome(changes):
    """What a short run comes to, and what it answers."""
    run = toy.make_short_run(**dict(changes), data=toy.colors(train_images=32), seed=3)
    train([run])
    with torch.no_grad(), run.method.answering():
        answers = run.method.logits(run.views.plain(run.stream.data.test_images))
    rows = [torch.tensor(row) for row in run.accuracy["class_il"]]
    return run.state().tensors | {"answers": answers, "accuracy": torch.cat(rows)}


@pytest.mark.parametrize(("beside", "changes"), CHANGES, ids=lambda each: ",".join(map(str, each.values())))
def test_every_setting_has_an_effect(beside, changes):
    plain, changed = (outcome(tuple(each.items())) for each in (beside, beside | changes))
    assert differences(plain, changed)
