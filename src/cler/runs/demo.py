"""The demo: what forgetting is, what replay does about it, and what CLER and an average add, on a few images."""

from __future__ import annotations

from pathlib import Path

import torch

from cler.config.making import make_settings
from cler.runs.jobs import Job, make_jobs
from cler.runs.machine import default_precision

MOMENTUM = 0.95
"""Momentum of the average, chosen on held-out images of the first three tasks as docs/getting-started.md says."""
COMPARED = (
    {"method": "er-ace", "regularizer": "jigsaw", "teacher": "ema", "ema_momentum": MOMENTUM},
    {"method": "er-ace", "regularizer": "jigsaw"},
    {"method": "er-ace"},
    {"method": "finetune"},
)
"""What is compared, the longest runs first so that the processes end together."""


def demo_jobs(seeds: list[int], out: Path, device: torch.device) -> list[Job]:
    """The runs of the demo; its settings were chosen by benchmarks/demo_study.py over ten seeds."""
    fast_on_cpu = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    precision = "bf16" if fast_on_cpu else default_precision(device)
    jobs = []
    for each in COMPARED:
        jobs += make_jobs(make_settings(**each, dataset="cifar10-sample", precision=precision), seeds, out)
    return jobs
