import json
from pathlib import Path

import pytest

from cler.config.making import make_settings
from cler.errors import UsageError
from cler.frontier import arithmetic
from cler.frontier.arithmetic import Counts, flops_per_image, shape_of

TIMINGS = Path(__file__).parents[2] / "benchmarks" / "h200.json"


def shape(**changes):
    return shape_of(make_settings(dataset="cifar100", **changes).to_dict())


@pytest.mark.skipif(not TIMINGS.exists(), reason="measurements are not in the source distribution")
@pytest.mark.parametrize(("method", "regularizer"), [("er-ace", "jigsaw"), ("xder", "none")])
def test_what_follows_from_narrow_networks_is_what_was_counted_in_the_wide_one(method, regularizer):
    (counted,) = [
        timing["gigaflops"]
        for timing in json.loads(TIMINGS.read_text())["timings"]
        if (timing["method"], timing["regularizer"], timing["runs"]) == (method, regularizer, 10)
    ]
    assert flops_per_image(shape(method=method, regularizer=regularizer)) * 10 == pytest.approx(counted * 1e9, rel=1e-9)


def test_another_network_follows_from_narrow_ones_too():
    of_it = shape(method="mose", replay_batch=4, width=3)
    assert flops_per_image(of_it) * 10 == arithmetic._counted(of_it)


def test_a_buffer_that_fills_as_images_pass_is_counted_with_as_much_to_replay():
    once, twice = (
        arithmetic._counted(shape(method="xder", width=2, protocol="online-10+64", second_look=look))
        for look in (False, True)
    )
    assert once == twice


def test_a_shape_has_what_changes_the_arithmetic_and_nothing_else():
    plain = shape(method="xder")
    assert plain == shape(method="xder", lr=0.5, alpha=0.1, buffer=2000, optimizer="adam", normalize=False)
    for changes in ({"replay_batch": 64}, {"regularizer": "jigsaw"}, {"teacher": "mkd"}, {"repeats": 2}, {"width": 32}):
        assert shape(method="xder", **changes) != plain
    assert shape(method="ccl-dc", networks=1) != shape(method="ccl-dc", networks=2)


def test_what_was_counted_is_kept(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(arithmetic, "flops_per_image", lambda shape: 10.0 * shape["replay_batch"])
    settings = make_settings(dataset="cifar100", method="er", replay_batch=25).to_dict()
    assert Counts(tmp_path / "counts.json", said.append).relative(settings) == 2.5
    assert len(said) == 2
    assert said[0].startswith("counting arithmetic, 1 of 2: method er, regularizer none")
    assert said[1].startswith("counting arithmetic, 2 of 2: method er, regularizer none")
    monkeypatch.setattr(arithmetic, "flops_per_image", None)
    assert Counts(tmp_path / "counts.json").relative(settings) == 2.5


@pytest.mark.parametrize(
    "content", ['{"counts": [{}]}', '{"counts": 3}', '{"counts": [{"flops_per_image": "x"}]}', "{}"]
)
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "counts.json").write_text(content)
    with pytest.raises(UsageError, match="holds no arithmetic that was counted here"):
        Counts(tmp_path / "counts.json")
