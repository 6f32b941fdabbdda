from pathlib import Path

import pytest
import torch

from cler.runs.demo import MOMENTUM, demo_jobs

GUIDE = Path(__file__).parents[2] / "docs" / "getting-started.md"


def test_four_rows_of_which_the_average_has_the_momentum_that_the_guide_tells_of(tmp_path):
    jobs = demo_jobs([0, 1], tmp_path, torch.device("cpu"))
    assert [job.settings.pair for job in jobs[::2]] == ["er-ace+jigsaw+ema", "er-ace+jigsaw", "er-ace", "finetune"]
    assert [job.seed for job in jobs] == [0, 1] * 4
    assert jobs[0].settings.options["ema_momentum"] == MOMENTUM
    assert f"momentum is {MOMENTUM} instead of" in " ".join(GUIDE.read_text("utf-8").split())


@pytest.mark.parametrize(("generation", "expected"), [((7, 5), "fp32"), ((8, 0), "bf16")])
def test_a_gpu_that_only_imitates_bfloat16_computes_in_single_precision(tmp_path, monkeypatch, generation, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    assert {job.settings.precision for job in demo_jobs([0], tmp_path, torch.device("cuda"))} == {expected}
