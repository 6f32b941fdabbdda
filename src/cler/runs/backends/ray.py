"""Ray: a task for each attempt, spread over the nodes of a cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from cler.config.machine import Machine
from cler.engine.events import Emit
from cler.errors import UsageError
from cler.runs.backends.attempts import train_attempt
from cler.runs.backends.base import AttemptState, Backend, register
from cler.runs.backends.driver import check_importable, drive
from cler.runs.jobs import Job
from cler.runs.machine import find_device

CONNECT_SECONDS = 20.0
"""How long a cluster has to answer."""
TOKEN = "RAY_AUTH_MODE"
"""Variable that has Ray show the user's token; without it a cluster that asks for one does not even say so."""


@register
class OnRay(Backend):
    """A cluster of its own on this machine, or the running one whose address is given.

    It is connected from its first training until it is closed.
    """

    name = "ray"
    takes_address = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.address = machine.on.partition(":")[2] or None
        self._cluster: RayCluster | None = None

    def device(self, name: str) -> torch.device:
        """'auto' is a GPU where the cluster has one; its own hardware decides, not that of the driver."""
        if self.address is None:
            return find_device(name)
        if name != "auto":
            return torch.device(name)
        cluster = self._cluster or RayCluster(self.address)
        try:
            return torch.device("cuda" if cluster.resources().get("GPU", 0) >= 1 else "cpu")
        finally:
            if cluster is not self._cluster:
                cluster.close()

    def check(self, jobs: Sequence[Job] = ()) -> None:
        """Refuse a machine without Ray, a cluster that does not answer, and jobs that another machine cannot do."""
        _find_ray()
        if self.address:
            with _reaching(self.address):
                _check_reachable(self.address)
        check_importable(jobs, self.machine)

    def train(self, jobs: Sequence[Job], machine: Machine, emit: Emit) -> None:
        """Train the jobs; when this is stopped, so are they, with checkpoints."""
        self._cluster = self._cluster or RayCluster(self.address, gpu=machine.device == "cuda")
        drive(jobs, self._cluster, machine, emit)

    def close(self) -> None:
        """Leave the cluster, which ends if it was started here."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class RayCluster:
    """Tasks of Ray's core; they end with the driver."""

    name = "ray"
    lasting = False
    poll = 1.0
    silence = ""
    reasons: Mapping[str, str] = {}

    def __init__(self, address: str | None, *, gpu: bool = False) -> None:
        self._ray, self.gpu = _find_ray(), gpu
        self._tasks: dict[str, Any] = {}
        self._ended: dict[str, Any] = {}
        self._connect(address)

    def _connect(self, address: str | None) -> None:
        """Start a cluster, whatever RAY_ADDRESS says, or go to the one that is named."""
        if self._ray.is_initialized():
            raise UsageError("ray: this process is connected to a Ray cluster already; call ray.shutdown() first", "on")
        with _reaching(address):
            if address:
                _check_reachable(address)
            self._ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=None if address else False,
            )

    def resources(self) -> dict[str, float]:
        """What the cluster has of each kind, such as CPU and GPU."""
        return dict(self._ray.cluster_resources())

    def submit(self, attempt: Path, cores: int, avoid: Collection[str]) -> None:
        """A task on the node with the least to do; nodes that do not answer are left out by Ray itself."""
        task = self._ray.remote(
            num_cpus=self._to_be_had(cores),
            num_gpus=1 if self.gpu else 0,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )(_train)
        self._tasks[attempt.name] = task.remote(str(attempt))

    def _to_be_had(self, cores: int) -> float:
        """So many, or as many as a node has at most: Ray would wait for more without end, and without a word."""
        needed = "GPU" if self.gpu else "CPU"
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return min(cores, max((each.get("CPU", 0) for each in nodes if needed in each), default=cores))

    def states(self) -> dict[str, AttemptState] | None:
        """The tasks that have not ended; whether one has a node already, it says itself."""
        if not self._tasks:
            return {}
        tasks = list(self._tasks.values())
        ended, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        self._ended |= {name: task for name, task in self._tasks.items() if task in ended}
        self._tasks = {name: task for name, task in self._tasks.items() if task not in ended}
        return dict.fromkeys(self._tasks, "there")

    def cancel(self, names: Collection[str]) -> None:
        """End the tasks of these attempts."""
        for name in names:
            if name in self._tasks:
                self._ray.cancel(self._tasks.pop(name), force=True)

    def last_words(self, attempt: Path) -> str:
        """What the error says that Ray has in the place of what a task gives back."""
        try:
            self._ray.get(self._ended[attempt.name])
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return lines[-1 if hasattr(error, "cause") else 0]  # an error in the task ends as a traceback does
        return ""

    def ending(self, names: Collection[str]) -> str:
        """They end by themselves."""
        return "they end with this command"

    def close(self) -> None:
        """Leave the cluster, which ends if it was ours."""
        self._ray.shutdown()


def _find_ray() -> Any:
    """The package ray."""
    try:
        import ray
    except ImportError:
        raise UsageError("ray needs Ray: pip install ray", "on") from None
    return ray


@contextmanager
def _reaching(address: str | None) -> Iterator[None]:
    """Turn whatever goes wrong inside into one line."""
    try:
        yield
    except Exception as error:  # of many kinds: no such host, another version, a token that is missing
        why = str(error).strip().splitlines() or [type(error).__name__]
        listens = address and not isinstance(error, TimeoutError) and not getattr(error, "errno", None)
        remedy = f"; if it asks for a token, set {TOKEN}=token" if listens and TOKEN not in os.environ else ""
        raise UsageError(f"ray:{address or ''} cannot be reached: {why[0]}{remedy}", "on") from None


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nobody listens there: Ray itself would try for a long time, and end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS):
        pass


def _train(folder: str) -> None:
    with suppress(SystemExit):  # it was asked to stop, and has said that it did
        train_attempt(Path(folder), signals=[])
