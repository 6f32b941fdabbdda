from PIL import Image

from cler.report import study_figure
from cler.report.study_figure import draw_study
from cler.tune.selection import Selection
from cler.tune.space import Range
from cler.tune.study import Study, Trial

SPACE = (Range("lr", 1e-3, 0.3, log=True), Range("weight", 0.1, 3.0), Range("optimizer", choices=("sgd", "adam")))
GIVEN = {"method": "er-ace", "regularizer": "jigsaw", "dataset": "cifar100", "validate": 0.1}


def trial(lr, *scores):
    return Trial({"lr": lr, "weight": 10 * lr, "optimizer": "sgd"}, scores)


TRIALS = [trial(0.01, 40.0), trial(0.1, 50.0, 42.0, 30.0, 21.0), trial(0.2, 45.0, 41.0)]


def make_study(out, count):
    return Study(GIVEN, SPACE[:count], Selection.parse("whole-stream"), (0,), out)


def test_the_figure_grows_with_the_space_and_shows_the_trials(tmp_path):
    sizes, pixels = [], []
    for count, trials in ((1, TRIALS), (3, TRIALS), (3, TRIALS[1:])):
        draw_study(make_study(tmp_path, count), trials, tmp_path / "study.png")
        with Image.open(tmp_path / "study.png") as image:
            sizes.append(image.size)
            pixels.append(image.tobytes())
    assert sizes[0][0] == sizes[1][0]
    assert sizes[0][1] < sizes[1][1]
    assert pixels[1] != pixels[2]


def test_each_score_stands_at_its_trial_its_task_and_its_value(tmp_path, monkeypatch):
    panels = []
    monkeypatch.setattr(study_figure, "write_figure", lambda figure, *_: panels.extend(figure.axes))
    draw_study(make_study(tmp_path, 1), TRIALS, tmp_path / "study.png")
    by_trial, by_task, by_lr = panels

    def points(panel):
        return {
            each.get_label(): [list(map(float, place)) for place in each.get_offsets()] for each in panel.collections
        }

    assert points(by_trial) == {
        "after 2 tasks": [[1, 40], [2, 50], [3, 45]],
        "after 4 tasks": [[2, 42], [3, 41]],
        "after 8 tasks": [[2, 30]],
        "after 10 tasks": [[2, 21]],
        "best": [[2, 21]],
    }
    assert points(by_lr)["after 4 tasks"] == [[0.1, 42], [0.2, 41]]
    lines = [(list(line.get_xdata()), line.get_color()) for line in by_task.lines]
    gray, orange = study_figure.GRAY, study_figure.BEST
    assert lines == [([2], gray), ([2, 4], gray), ([2, 4, 8, 10], orange)]
