import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cler.errors import UsageError
from cler.report.figures import COLORS, accuracy_after_each_task, mean_curve
from cler.runs.compare import compare
from cler.runs.results import Result, make_result

ER_ACE = {"method": "er-ace", "regularizer": "none", "dataset": "toy", "tasks": 3, "buffer": 50, "epochs": 1}


def run(settings, seed=0, level=50.0, rows=None):
    rows = rows or [[level + seed] * (task + 1) for task in range(3)]
    value = make_result(settings, seed, {"class_il": rows, "task_il": rows}, 1.0, 1, {})
    return Result.from_dict(Path(f"run{seed}"), value)


def pixels_of_color(path, color):
    target = np.array([int(color[index : index + 2], 16) for index in (1, 3, 5)])
    return np.argwhere((np.asarray(Image.open(path).convert("RGB")) == target).all(-1))


def test_a_png_with_a_line_for_each_group(tmp_path):
    cler = ER_ACE | {"regularizer": "jigsaw", "weight": 1.0}
    results = [run(ER_ACE, seed, 20.0) for seed in range(3)] + [run(cler, seed, 70.0) for seed in range(3)]
    path = tmp_path / "new" / "figure.png"
    accuracy_after_each_task(compare(results).groups, path)
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:])
    assert (width, height) == (1260, 585)
    lower, higher = (pixels_of_color(path, color) for color in COLORS[:2])
    assert len(lower) > 500
    assert len(higher) > 500
    panel = height * 3 // 4  # above the legend, where a higher accuracy is a smaller row
    assert np.median(higher[higher[:, 0] < panel, 0]) < np.median(lower[lower[:, 0] < panel, 0]) - 100


def test_a_single_run_a_single_task_and_joint_can_be_drawn(tmp_path):
    joint = ER_ACE | {"method": "joint", "buffer": 0}
    for name, results in {
        "single": [run(ER_ACE)],
        "task": [run(ER_ACE, rows=[[70.0]])],
        "joint": [run(ER_ACE), run(joint, rows=[[60.0, 61.0, 62.0]]), run(joint, seed=1, rows=[[60.0, 61.0, 64.0]])],
        "zero": [run(ER_ACE, level=0.0)],
    }.items():
        accuracy_after_each_task(compare(results).groups, tmp_path / f"{name}.png")
        assert len(pixels_of_color(tmp_path / f"{name}.png", COLORS[0])) > 20


def test_each_place_is_the_mean_of_the_runs_that_come_so_far(tmp_path):
    short = run(ER_ACE, 0, rows=[[40.0], [40.0, 40.0]])
    groups = compare([short, run(ER_ACE, 2), run(ER_ACE, 4)]).groups
    assert [mean for mean, _ in mean_curve(groups[0], "class_il")] == pytest.approx([146 / 3, 146 / 3, 53])
    accuracy_after_each_task(groups, tmp_path / "figure.png")


def test_the_same_groups_give_the_same_file(tmp_path):
    groups = compare([run(ER_ACE)]).groups
    for name in ("first.png", "second.png"):
        accuracy_after_each_task(groups, tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()


def test_pyplot_stays_untouched(tmp_path):
    sys.modules.pop("matplotlib.pyplot", None)
    accuracy_after_each_task(compare([run(ER_ACE)]).groups, tmp_path / "figure.png")
    assert "matplotlib.pyplot" not in sys.modules


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install matplotlib"):
        accuracy_after_each_task(compare([run(ER_ACE)]).groups, tmp_path / "figure.png")


def test_nothing_to_draw(tmp_path):
    with pytest.raises(UsageError, match="no complete run"):
        accuracy_after_each_task([], tmp_path / "figure.png")
