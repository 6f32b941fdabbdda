from PIL import Image

from cler.report.study_figure import draw_study, tasks_of
from cler.tune.selection import Selection
from cler.tune.space import Range
from cler.tune.study import Study, Trial

SPACE = (Range("lr", 1e-3, 0.3, log=True), Range("weight", 0.1, 3.0), Range("optimizer", choices=("sgd", "adam")))
GIVEN = {"method": "er-ace", "regularizer": "jigsaw", "dataset": "cifar100", "validate": 0.1}
RUNGS = [2, 3, 4, 10]


def trial(lr, scores, dropped):
    return Trial({"lr": lr, "weight": 10 * lr, "optimizer": "sgd"}, scores, dropped)


TRIALS = [trial(0.01, (40.0,), True), trial(0.1, (50.0, 42.0, 30.0), False), trial(0.2, (45.0, 41.0), True)]


def test_each_score_stands_at_the_task_after_which_it_was_taken():
    assert [tasks_of(each, RUNGS) for each in TRIALS] == [[2], [2, 3, 10], [2, 3]]
    assert tasks_of(trial(0.1, (50.0,), False), [1]) == [1]


def test_the_figure_grows_with_the_space_and_shows_the_trials(tmp_path):
    sizes, pixels = [], []
    for count, trials in ((1, TRIALS), (3, TRIALS), (3, TRIALS[1:])):
        study = Study(GIVEN, SPACE[:count], Selection.parse("whole-stream"), (0,), tmp_path)
        draw_study(study, trials, tmp_path / "study.png")
        with Image.open(tmp_path / "study.png") as image:
            sizes.append(image.size)
            pixels.append(image.tobytes())
    assert sizes[0][0] == sizes[1][0]
    assert sizes[0][1] < sizes[1][1]
    assert pixels[1] != pixels[2]
