"""The demo: what forgetting is, what replay does about it, and what CLER adds, on the images of the package."""

from __future__ import annotations

from pathlib import Path

import torch

from cler.config.making import make_settings
from cler.runs.jobs import Job, make_jobs

PAIRS = (("er-ace", "jigsaw"), ("er-ace", "none"), ("finetune", "none"))
"""What is compared, the longest runs first so that the processes end together."""


def demo_jobs(seeds: list[int], out: Path, device: torch.device) -> list[Job]:
    """The runs of the demo; its settings were chosen by benchmarks/demo_study.py over ten seeds."""
    precision = "bf16" if fast_bfloat16(device) else "fp32"
    jobs = []
    for method, regularizer in PAIRS:
        settings = make_settings(method=method, regularizer=regularizer, dataset="cifar10-sample", precision=precision)
        jobs += make_jobs(settings, seeds, out)
    return jobs


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16, and does not only imitate it."""
    return device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
