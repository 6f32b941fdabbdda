"""SLURM, through submitit: a job for each attempt, which queues again when it is preempted or out of time."""

from __future__ import annotations

import getpass
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from cler.config.cluster import Slurm
from cler.config.machine import Machine
from cler.engine.events import Emit
from cler.errors import UsageError, one_line
from cler.files import read_bytes, writing
from cler.runs.backends.attempts import train_attempt
from cler.runs.backends.base import AttemptState, Backend, register
from cler.runs.backends.driver import check_importable, drive
from cler.runs.jobs import Job

NAME = "cler-"
"""What the names of our jobs begin with; that of the attempt follows."""
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SUSPENDED",
                     "RESIZING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT"})  # fmt: skip
"""States of a job that is not over and of which nothing is to be heard."""
NO_REASON = ("", "None", "(null)")
"""What `squeue` has in the place of a reason."""
LOGS = "slurm"
"""In the folder of an attempt: what submitit keeps of its job."""
TIMEOUTS = 1_000_000
"""How often a job may run out of time and queue again."""
NOTICE: signal.Signals = getattr(signal, "SIGUSR2", signal.SIGTERM)  # Windows has no SLURM
"""What tells a job that its time is nearly up."""


@register
class OnSlurm(Backend):
    """The cluster whose `sbatch` is on the path."""

    name = "slurm"

    def __init__(self, machine: Machine) -> None:
        self.machine, self.asked = machine, machine.slurm or Slurm()

    def device(self, name: str) -> torch.device:
        """'auto' is a GPU if the table [slurm] asks for one; whether there is one here does not matter."""
        found = ("cuda" if self.asked.gpus else "cpu") if name == "auto" else name
        if found == "cuda" and not self.asked.gpus:
            raise UsageError("cuda needs gpus = 1 in the table [slurm]", "device")
        return torch.device(found)

    def check(self, jobs: Sequence[Job] = ()) -> None:
        """Refuse a machine that cannot send jobs, and jobs that another machine cannot do."""
        _find_slurm()
        check_importable(jobs, self.machine)

    def train(self, jobs: Sequence[Job], machine: Machine, emit: Emit) -> None:
        """Train the jobs; when this is stopped, what was submitted stays, and is found again."""
        drive(jobs, SlurmCluster(self.asked, machine.device == "cuda"), machine, emit)


class SlurmCluster:
    """Submits with submitit, and asks `squeue`, which needs no accounting, what became of it."""

    name = "slurm"
    lasting = True
    poll = 10.0  # others ask it, too
    silence = ""

    def __init__(self, asked: Slurm, gpu: bool) -> None:
        self._submitit, self.asked, self.gpu = _find_slurm(), asked, gpu
        self.reasons: Mapping[str, str] = {}

    def submit(self, attempt: Path, cores: int, avoid: Collection[str]) -> None:
        """A job that makes the attempt; where only nodes are left that were given up, it may have one of them."""
        try:
            self._submit(attempt, cores, avoid)
        except self._submitit.core.utils.FailedJobError as error:
            if not avoid:
                raise UsageError(f"sbatch refuses the job: {_reason(error)}") from None
            self.submit(attempt, cores, ())

    def _submit(self, attempt: Path, cores: int, avoid: Collection[str]) -> None:
        asked = self.asked
        executor = self._submitit.SlurmExecutor(folder=attempt / LOGS, max_num_timeout=TIMEOUTS)
        excluded = ",".join([*([asked.exclude] if asked.exclude else []), *avoid])
        values: dict[str, Any] = {
            "job_name": NAME + attempt.name,
            "time": asked.time,
            "partition": asked.partition,
            "account": asked.account,
            "qos": asked.qos,
            "gpus_per_node": asked.gpus if self.gpu else None,
            "cpus_per_task": asked.cpus or cores,
            "mem": asked.memory,
            "constraint": asked.constraint,
            "exclude": excluded or None,
            "setup": [asked.setup] if asked.setup else None,
            "signal_delay_s": asked.notice,
            "additional_parameters": {"requeue": True},
        }
        executor.update_parameters(**{name: value for name, value in values.items() if value is not None})
        with writing(attempt):
            executor.submit(Work(), str(attempt))

    def states(self) -> dict[str, AttemptState] | None:
        """Our jobs, also those that have ended lately, of which cancelled ones count."""
        command = ["squeue", f"--user={getpass.getuser()}", "--noheader", "--states=all", "--format=%j|%T|%r"]
        try:
            told = _answer(command)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip()
            self.silence = one_line(said.splitlines()[-1]) if said else "squeue failed"
            return None
        states: dict[str, AttemptState] = {}
        reasons: dict[str, str] = {}
        for line in told.splitlines():
            job, state, reason = (*line.strip().split("|", 2), "", "")[:3]
            if not job.startswith(NAME):
                continue
            name = job.removeprefix(NAME)
            if state == "RUNNING":
                states[name] = "running"
            elif state in WAITING:
                states[name] = "waiting"
                reasons |= {name: reason} if reason not in NO_REASON else {}
            elif state.startswith("CANCELLED"):
                states[name] = "cancelled"
        self.reasons = reasons
        return states

    def cancel(self, names: Collection[str]) -> None:
        """Cancel the jobs of these attempts."""
        for name in names:
            with suppress(OSError, subprocess.SubprocessError):
                _answer(["scancel", f"--user={getpass.getuser()}", f"--name={NAME}{name}"])

    def last_words(self, attempt: Path) -> str:
        """The last line of its log about an error, but for what srun says of every job that fails, or the last one."""
        lines = [""]
        for log in sorted((attempt / LOGS).glob("*.err")):
            with suppress(OSError, UsageError):
                lines += filter(None, read_bytes(log).decode(errors="replace").splitlines())
        return ([line for line in lines if "rror" in line and not line.startswith("srun:")] or lines)[-1]

    def ending(self, names: Collection[str]) -> str:
        """The command that ends them."""
        return f"to cancel: scancel --me --name={','.join(NAME + name for name in names)}"


def _find_slurm() -> Any:
    """The package submitit, where SLURM's commands are, too."""
    try:
        import submitit
    except ImportError:
        raise UsageError("slurm needs submitit: pip install submitit", "on") from None
    for command in ("sbatch", "srun", "squeue", "scancel"):
        if shutil.which(command) is None:
            raise UsageError(f"slurm needs {command}, which is not on the path: log in where jobs are sent", "on")
    return submitit


def _answer(command: list[str]) -> str:
    """What a command of SLURM prints; an error if it fails, or does not answer."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def _reason(error: Exception) -> str:
    """What sbatch had to say."""
    lines = str(error).strip().splitlines() or ["it does not say why"]
    return lines[-1].rpartition("error: ")[2]


class Work:
    """What a job does: make an attempt, and queue again if told that its time is up."""

    def __call__(self, folder: str) -> None:
        """Make the attempt; the signal that submitit would requeue at lets the current step end first."""
        requeue: Any = signal.getsignal(NOTICE)
        try:
            train_attempt(Path(folder), signals=[NOTICE, signal.SIGTERM])
        except SystemExit as end:
            if end.code != 128 + NOTICE or not isinstance(requeue, Callable):  # type: ignore[arg-type]
                raise  # SLURM itself queues a job again that it preempts
            requeue(NOTICE, None)

    def checkpoint(self, folder: str) -> Any:
        """What submitit queues again: the same, as all that was done is in the runs' own checkpoints."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, folder)
