from pathlib import Path

import torch

from cler.runs.demo import MOMENTUM, demo_jobs

GUIDE = Path(__file__).parents[2] / "docs" / "getting-started.md"


def test_four_rows_of_which_the_average_has_the_momentum_that_the_guide_tells_of(tmp_path):
    jobs = demo_jobs([0, 1], tmp_path, torch.device("cpu"))
    assert [job.settings.pair for job in jobs[::2]] == ["er-ace+jigsaw+ema", "er-ace+jigsaw", "er-ace", "finetune"]
    assert [job.seed for job in jobs] == [0, 1] * 4
    assert jobs[0].settings.options["ema_momentum"] == MOMENTUM
    assert f"momentum is {MOMENTUM} instead of" in " ".join(GUIDE.read_text("utf-8").split())
