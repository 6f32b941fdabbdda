"""On a GPU: do recorded steps compute what plain ones do, runs together what each does alone, and does nothing wait?

python tools/gpu_check.py [CASE …]

In single precision and in bfloat16, in every phase of the first three tasks. A case is a pair as er-ace+jigsaw, one
with a teacher as er-ace+jigsaw+ema, either with settings as pcr+none,variant=hpcr, an optimizer, or 'dropout', a
network of one's own that has it; without any, all.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

import cler
from cler.config.compatibility import fits
from cler.config.making import make_settings
from cler.config.registry import OPTIMIZERS, TEACHERS
from cler.config.schema import settings_of
from cler.config.settings import Settings, own_settings
from cler.data.images import ImageData
from cler.engine import Run
from cler.engine.run import matmul_precision
from cler.engine.steps import GraphStepper
from cler.methods import METHODS
from cler.regularizers import REGULARIZERS
from cler.runs.bench import random_images
from cler.runs.build import build_run

STEPS = 20
"""In each phase: more than the seven after which a buffer has the 64 images that a step may replay."""
WITH_SETTINGS = (
    "er-ace+jigsaw,augment=light",
    "er-ace+jigsaw,augment=full",
    "er-ace+jigsaw,augment=randaugment",
    "er-ace+jigsaw,repeats=3",
    "er+none+mkd,protocol=online-10+64",
    "pcr+none,variant=hpcr",
    "ccl-dc+none,base=er",
    "ccl-dc+none,base=derpp",
    "ccl-dc+none,networks=1",
)
"""Cases of which a setting other than the default is recorded too."""


def take_steps(runs: list[Run], *, record: bool) -> None:
    stepper = GraphStepper(runs, print)
    stepper.can_record = record
    for task in range(last_task(runs[0]) + 1):
        for run in runs:
            if task > 0:
                run.end_task(task - 1)
            run.begin_task(task)
        for phase in runs[0].phases[task]:
            for run in runs:
                run.begin_phase(phase)
            stepper.prepare()
            for _ in range(STEPS):
                stepper.step()
            assert record == (stepper.graph is not None)
    torch.cuda.synchronize()


def last_task(run: Run) -> int:
    return min(3, len(run.schedule)) - 1


def weights(run: Run) -> torch.Tensor:
    networks = [run.method.network, run.method.answerer]
    state = (value for network in networks for value in network.state_dict().values())
    return torch.cat([value.flatten().float() for value in state if value.is_floating_point()])


def difference(first: Run, second: Run) -> float:
    return float((weights(first) - weights(second)).norm() / weights(second).norm())


def main() -> None:
    device = torch.device("cuda")
    data = random_images(device, STEPS)
    torch.backends.cudnn.deterministic = True
    for precision in ("fp32", "bf16"):
        for name in sys.argv[1:] or cases():
            check(name, precision, data)
    print("all good")


def cases() -> list[str]:
    pairs = [f"{method}+{name}" for method in METHODS for name in ("none", *REGULARIZERS)]
    taught = [
        f"{method}+jigsaw+{teacher}"
        for teacher in TEACHERS
        for method in ("er", "er-ace", "derpp", "gsa", "xder", "cope")
        if fits(method, teacher)
    ]
    return [*pairs, *taught, *WITH_SETTINGS, *OPTIMIZERS, "dropout"]


def settings_of_case(name: str, precision: str) -> Settings:
    parts, *given = (name if "+" in name else "er-ace+jigsaw").split(",")
    method, regularizer, *teacher = parts.split("+")
    others: dict[str, Any] = {"optimizer": name} if name in OPTIMIZERS else {}
    others |= {"teacher": teacher[0]} if teacher else {}
    everybody = settings_of(Settings)
    own = own_settings(others | {"method": method, "regularizer": regularizer})
    for each in given:
        setting, _, text = each.partition("=")
        others[setting] = (everybody.get(setting) or own[setting]).parsed(text)
    if name in OPTIMIZERS and OPTIMIZERS[name].takes_momentum:
        others["sgd_momentum"] = 0.9
    return make_settings(
        method=method, regularizer=regularizer, dataset="cifar100", width=16, lr=0.001, precision=precision, **others
    )


def with_dropout(classes: int) -> nn.Module:
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.2)),
        nn.Sequential(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        nn.Sequential(nn.Flatten(), nn.Dropout(0.3)),
        nn.Linear(32, classes),
    )
    return cler.backbone(module, tap="0", head="1", classifier="3")


def check(name: str, precision: str, data: ImageData) -> None:
    settings = settings_of_case(name, precision)
    network = with_dropout if name == "dropout" else None

    def build(seed: int) -> Run:
        return build_run(settings, seed, data, network=network)

    with matmul_precision(precision):
        plain, recorded, first, second = build(0), build(0), build(0), build(1)
        take_steps([plain], record=False)
        take_steps([recorded], record=True)
        take_steps([first, second], record=True)
    moved = difference(build(0), plain)
    apart, together = difference(recorded, plain), difference(first, plain)
    other = difference(second, plain)
    print(
        f"{name:20s} {precision}  moved {moved:.1e}  recorded - plain {apart:.1e}  "
        f"together - alone {together:.1e}  other seed {other:.1e}",
        flush=True,
    )
    assert apart < 0.02 * moved, "a recorded step differs from a plain one"
    assert together < 0.02 * moved, "a run beside another differs from the run alone"
    assert other > 0.5 * moved, "the seed makes no difference"

    for phase in plain.phases[last_task(plain)]:
        plain.begin_phase(phase)
        torch.cuda.set_sync_debug_mode("error")  # an operation that waits for the GPU now raises
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                plain.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main()
