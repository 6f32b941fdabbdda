"""Where and how runs are trained: the settings of the machine, checked when they are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cler.config.cluster import Slurm, read_on, read_slurm
from cler.config.schema import check_all, setting, settings_of
from cler.config.values import DEVICES, read_device, read_track
from cler.errors import UsageError

PLACES = ("auto", "device", "host")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and how runs are trained, which does not change their results."""

    on: str = setting(
        "local", "Where to train: local, this machine; slurm; ray, a cluster started here; or ray:HOST:PORT.",
        role="machine", read=read_on,
    )  # fmt: skip
    slurm: Slurm | None = setting(
        None, "Settings file with a table [slurm]: partition, time, account and so on.",
        role="machine", read=read_slurm, backends=("slurm",),
    )  # fmt: skip
    give_up_after: float = setting(
        600.0, "Seconds of silence after which a machine on slurm or ray is given up.",
        above=0, most=1e9, role="machine", backends=("slurm", "ray"),
    )  # fmt: skip
    device: str = setting(
        "auto", "Device to train on; auto is the GPU if there is one.", choices=DEVICES, read=read_device,
        role="machine",
    )  # fmt: skip
    workers: int | None = setting(
        None,
        "Worker processes on a CPU (default: as many as its cores allow); on slurm or ray, the fewest bundles to make.",
        least=1,
        most=10_000,
        role="machine",
    )
    at_once: int | None = setting(
        None, "Runs side by side on a GPU (default: as many as fit).", least=1, most=1000, role="machine"
    )
    images: str = setting(
        "auto", "Where to keep the images that a GPU trains on: in its own memory (device) or in main memory (host); "
        "auto is device if they fit.",
        choices=PLACES, role="machine",
    )  # fmt: skip
    data_dir: Path | None = setting(
        None, "Folder with the datasets (default: the variable CLER_DATA, else ~/.cache/cler/data).",
        role="machine",
    )  # fmt: skip
    out: Path = setting(Path("runs"), "Folder for the results.", role="machine")
    checkpoint_every: float = setting(
        60.0, "Seconds between checkpoints; 0 means only after each task.", least=0, most=1e9, role="machine"
    )
    graph: bool = setting(
        True,
        "Record GPU steps as a CUDA graph; unrecorded steps are for debugging and take ten times as long.",
        role="machine",
    )
    save_network: bool = setting(
        False, "Save the trained network of each run beside its result, as network.safetensors.", role="machine"
    )
    save_buffer_images: int = setting(
        0, "Number of buffer images to save beside each result, as buffer.png; reports show them.",
        least=0, most=1000, role="machine",
    )  # fmt: skip
    track: str | None = setting(
        None, "Where to record curves: tensorboard, wandb, or both, as tensorboard+wandb.",
        role="machine", read=read_track,
    )  # fmt: skip
    until_task: int | None = setting(
        None,
        "Stop after this many tasks and compare the runs as of then; without it the same command resumes.",
        least=1,
        most=100_000,
        role="machine",
    )

    def __post_init__(self) -> None:
        check_all(self)

    def check_given(self, names: Iterable[str]) -> None:
        """Refuse settings that somebody has given by name and that mean nothing where runs are trained."""
        for name in names:
            backends = settings_of(Machine)[name].backends
            if backends and self.on.partition(":")[0] not in backends:
                raise UsageError(f"has no effect on {self.on}, only on {' or '.join(backends)}: leave it out", name)
