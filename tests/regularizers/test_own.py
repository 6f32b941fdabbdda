"""A regularizer of a user's own, with settings, given as a class."""

from dataclasses import dataclass

import pytest

import cler
from cler.config.registry import REGULARIZERS
from cler.promises.toy import colors
from cler.regularizers.base import register


@dataclass(frozen=True)
class Options:
    target: float = cler.setting(0.0, "Mean square that features should have.", least=0)


class Sized(cler.Regularizer):
    """Holds the size of the features to a target."""

    name = "sized"
    Options = Options

    def __init__(self, network, *, weight, target, **_):
        super().__init__()
        self.weight, self.target = weight, target

    def loss(self, network, raw, augmented, labels, parts=None):
        with cler.nets.norm.frozen_statistics(network):
            return self.weight * (network.features(augmented).square().mean() - self.target).square()


@pytest.fixture(autouse=True, params=[cler.register, register])
def _registered(monkeypatch, request):
    monkeypatch.setattr(REGULARIZERS, "_entries", dict(REGULARIZERS))
    assert request.param(Sized) is Sized


def test_its_settings_reach_it_and_belong_to_it(tmp_path):
    usual = {"dataset": colors(), "tasks": 2, "width": 2, "batch": 24, "out": tmp_path, "verbose": False}
    alone = cler.train("finetune", **usual)
    runs = [cler.train("finetune", "sized", target=target, **usual) for target in (0.0, 4.0)]
    assert [each.settings["target"] for each in runs] == [0.0, 4.0]
    assert "target" not in alone.settings
    rows = list(cler.compare(alone, *runs))
    assert [row.twin is not None for row in rows] == [False, True, True]
    assert [row.label for row in rows][1:] == ["Finetune + sized"] * 2
    with pytest.raises(cler.UsageError, match="unknown setting 'target'"):
        cler.train("finetune", target=1.0, **usual)


def test_it_can_be_given_as_it_is():
    assert REGULARIZERS["sized"].build is Sized
    report = cler.check(Sized)
    assert report.passed, report
