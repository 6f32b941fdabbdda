"""Kill, freeze and preempt nodes, workers and drivers of a real Ray cluster and a real SLURM, and compare the results.

python tools/cluster_test.py --kills 10 --log tools/cluster_test.log

On one machine: a Ray cluster of two nodes (pip install ray), and a SLURM of one node (apt install slurmctld slurmd
munge; needs root). Every command has to end with the accuracy matrices of a plain `cler run`, to the last bit. A
cluster that cannot be started here is left out, with a line that says why.
"""

from __future__ import annotations

import argparse
import contextlib
import grp
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.engine.events import Progress
from cler.files import is_alive
from cler.runs.backends.attempts import Attempt, Mailbox
from cler.runs.jobs import make_jobs

SEEDS = 2
RUN = ["run", "er-ace", "--width", "2", "--device", "cpu", "--seeds"]
GIVE_UP = 12.0
"""Seconds without events after which a machine is given up here."""
LONGEST = 600.0
"""Seconds after which a command that has not ended counts as hanging."""
MOST_STARTS = 8


class CannotStartError(Exception):
    """Why a cluster is left out."""


def wait_for(what: Callable[[], Any], seconds: float, why: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            raise CannotStartError(why)
        time.sleep(0.2)
    return found


def kill(process: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def freeze(processes: list[int], seconds: float) -> None:
    for each in processes:
        kill(each, signal.SIGSTOP)
    time.sleep(seconds)
    for each in processes:
        kill(each, signal.SIGCONT)


def descendants(process: int) -> list[int]:
    """All that a process has started, and what that has."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            rest = entry.read_text().rpartition(")")[2].split()
            children.setdefault(int(rest[1]), []).append(int(entry.parent.name))
    found, waiting = [], [process]
    while waiting:
        waiting += (more := children.get(waiting.pop(), []))
        found += more
    return found


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    for each in [process.pid, *descendants(process.pid)]:
        kill(each)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayNodes:
    """Two nodes of one core each; the second can be killed, and another one takes its place."""

    name = "Ray"
    disturbances = ("worker", "node", "driver")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ray = shutil.which("ray") or str(Path(sys.executable).with_name("ray"))
        try:
            import ray  # noqa: F401
        except ImportError:
            raise CannotStartError("the package ray is not installed") from None
        self.command = [
            sys.executable,
            "-c",
            "import sys; from ray.scripts.scripts import main; sys.exit(main())",
            "start",
        ]
        self.port = free_port()
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else it depends on whether this user has ever made a token
        common = ["--num-cpus=1", "--block", "--disable-usage-stats", "--object-store-memory=100000000"]
        self.common = [*self.command, *common]
        self.head = self._start(["--head", f"--port={self.port}", "--include-dashboard=false"])
        wait_for(lambda: self._listens() or self.head.poll() is not None, 90, "the head of Ray does not start")
        if self.head.poll() is not None:
            raise CannotStartError(f"`ray start` ends: {self._log().splitlines()[-1:]}")
        self._second()
        self.options = ["--on", f"ray:127.0.0.1:{self.port}"]

    def _log(self) -> str:
        return (self.folder / "ray.out").read_text(errors="replace")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "ray.out").open("ab") as out:
            return subprocess.Popen([*self.common, *arguments], stdout=out, stderr=out, start_new_session=True)

    def _second(self) -> None:
        self.node = self._start([f"--address=127.0.0.1:{self.port}"])
        time.sleep(8)
        if self.node.poll() is not None:
            raise CannotStartError(f"the second node of Ray ends: {self._log().splitlines()[-1:]}")

    def kill_node(self) -> str:
        kill_tree(self.node)
        self._second()
        return "the second node, replaced by another"

    def freeze_node(self, seconds: float) -> str:
        freeze([self.node.pid, *descendants(self.node.pid)], seconds)
        time.sleep(5)
        replaced = self.node.poll() is not None
        if replaced:
            self._second()
        return f"the second node for {seconds:g} s{', which ended then and was replaced' if replaced else ''}"

    def stop(self) -> None:
        for process in (self.node, self.head):
            kill_tree(process)


class SlurmNode:
    """slurmctld, slurmd and munged on this machine."""

    name = "SLURM"
    disturbances = ("worker", "node", "driver")

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        for command in ("munged", "slurmctld", "slurmd", "sbatch", "squeue"):
            if shutil.which(command) is None:
                raise CannotStartError(f"there is no {command} here (apt install slurmctld slurmd slurm-client munge)")
        if os.geteuid() != 0:
            raise CannotStartError("slurmd has to be started by root")
        try:
            munge = pwd.getpwnam("munge")
            grp.getgrgid(munge.pw_gid)
        except KeyError:
            raise CannotStartError("there is no user munge") from None
        host = platform_host()
        self._munge(munge)
        (folder / "slurm.conf").write_text(self._configuration(host))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        self._start("slurmctld")
        self._start("slurmd")
        idle = lambda: "idle" in self.answer("sinfo", "--noheader", "--format=%T")  # noqa: E731
        wait_for(idle, 60, "the node of SLURM does not become idle")
        (folder / "cluster.toml").write_text('[slurm]\npartition = "low"\ntime = 30\ngpus = 0\nnotice = 20\n')
        self.options = ["--on", "slurm", "--slurm", str(folder / "cluster.toml")]

    def _munge(self, munge: pwd.struct_passwd) -> None:
        place = self.folder / "munge"
        place.mkdir(mode=0o755)
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o400)
        for path in (place, place / "key"):
            os.chown(path, munge.pw_uid, munge.pw_gid)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        command = ["munged", "--foreground", *(f"--{option}={place / name}" for option, name in files.items())]
        with (self.folder / "munged.out").open("ab") as out:
            self.processes["munged"] = subprocess.Popen(
                command, stdout=out, stderr=out, user=munge.pw_uid, group=munge.pw_gid, extra_groups=[]
            )
        wait_for((place / "socket").exists, 30, "munged does not start")

    def _configuration(self, host: str) -> str:
        folder = self.folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        values = {
            "ClusterName": "test", "SlurmctldHost": host, "SlurmUser": "root", "SlurmdUser": "root",
            "SlurmctldPort": free_port(), "SlurmdPort": free_port(), "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge/socket,cred_expire=5", "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none", "MpiDefault": "none", "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core", "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": folder / "spool",
            "SlurmctldPidFile": folder / "slurmctld.pid", "SlurmdPidFile": folder / "slurmd.pid",
            "SlurmctldLogFile": folder / "slurmctld.log", "SlurmdLogFile": folder / "slurmd.log",
            "ReturnToService": 2, "JobRequeue": 1, "KillWait": 5, "SlurmdTimeout": 20, "InactiveLimit": 0,
            "SchedulerParameters": "sched_interval=2,bf_interval=2", "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE", "AccountingStorageType": "accounting_storage/none",
            "JobAcctGatherType": "jobacct_gather/none",
        }  # fmt: skip
        lines = [f"{name}={value}" for name, value in values.items()]
        lines += [f"NodeName={host} CPUs=2 State=UNKNOWN"]
        lines += [f"PartitionName=low Nodes={host} Default=YES State=UP PriorityTier=1"]
        lines += [f"PartitionName=high Nodes={host} State=UP PriorityTier=10"]
        return "\n".join(lines) + "\n"

    def _start(self, name: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            command = [name, "-D", "-f", str(self.folder / "slurm.conf")]
            self.processes[name] = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def answer(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    def _steps(self) -> list[int]:
        """The processes that slurmd has started for jobs, which outlive it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if entry.read_bytes().startswith(b"slurmstepd"):
                    found.append(int(entry.parent.name))
        return found

    def _of_the_node(self) -> list[int]:
        steps = self._steps()
        return [self.processes["slurmd"].pid, *steps, *(each for step in steps for each in descendants(step))]

    def freeze_node(self, seconds: float) -> str:
        freeze(self._of_the_node(), seconds)
        return f"slurmd and all that it had started for {seconds:g} s"

    def kill_node(self) -> str:
        for process in self._of_the_node():
            kill(process)
        self.processes["slurmd"].wait()
        time.sleep(5)
        self._start("slurmd")
        return "slurmd and all that it had started; slurmd started again"

    def preempt(self) -> str:
        options = ["--partition=high", "--exclusive", "--time=2", "--output=/dev/null", "--job-name=other"]
        self.answer("sbatch", *options, "--wrap", "sleep 5")
        return "a job of a partition with priority for the whole node"

    def notice(self) -> str:
        jobs = self.answer("squeue", "--noheader", "--states=RUNNING", "--format=%i|%j").split()
        ours = [line.partition("|")[0] for line in jobs if "cler-" in line]
        if ours:
            self.answer("scancel", "--signal=USR2", ours[0])
        return f"what SLURM sends before the time limit, to job {' '.join(ours[:1]) or '(none ran)'}"

    def stop(self) -> None:
        self.answer("scancel", "--user=root")
        for process in self._of_the_node():
            kill(process)
        for process in reversed(self.processes.values()):
            kill_tree(process)


def platform_host() -> str:
    return socket.gethostname().partition(".")[0]


def matrices(out: Path) -> dict[int, Any]:
    """The accuracy matrices of all finished runs, by seed."""
    results = [json.loads(path.read_text()) for path in out.glob("*/seed-*/result.json")]
    return {result["seed"]: result["accuracy"] for result in results if result["complete"]}


def workers(out: Path) -> list[int]:
    """The processes that train just now."""
    found = []
    for path in out.glob("*/seed-*/.owner"):
        with contextlib.suppress(OSError, ValueError):
            process = json.loads(path.read_text())["process"]
            started = any(path.parent.glob("checkpoint*"))
            if started and process != os.getpid() and is_alive(process):
                found.append(process)
    return sorted(set(found))


class Command:
    """A command that is started again as often as it is killed, as a person would."""

    def __init__(self, cluster: Any, out: Path, seeds: int = SEEDS) -> None:
        self.out, self.log = out, out.parent / f"{out.name}.out"
        self.arguments = [sys.executable, "-m", "cler", *RUN, str(seeds), *cluster.options, "--out", str(out)]
        self.arguments += ["--checkpoint-every", "1", "--give-up-after", str(GIVE_UP)]
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.arguments, stdout=log, stderr=log, start_new_session=True)

    def end(self) -> None:
        """Wait for its end; one that fails is started again."""
        deadline = time.monotonic() + LONGEST
        while True:
            try:
                code = self.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                kill(self.process.pid)
                raise AssertionError(f"a command hangs:\n{self.tail(30)}") from None
            if code == 0:
                return
            if self.starts >= MOST_STARTS:
                raise AssertionError(f"a command fails again and again:\n{self.tail(30)}")
            self.start()

    def tail(self, lines: int) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def disturb(what: str, cluster: Any, command: Command, draw: random.Random) -> str:
    """Do one thing to a command under way; says what."""
    found = workers(command.out)
    if what == "driver":
        kill(command.process.pid)
        command.process.wait()
        command.start()
        return "killed the driver, started it again"
    if what == "node":
        return f"killed {cluster.kill_node()}"
    if what == "freeze of a node":
        return f"froze {cluster.freeze_node(GIVE_UP + 20)}, past the limit of {GIVE_UP:g} s"
    if what == "preemption":
        return f"preempted by {cluster.preempt()}"
    if what == "notice":
        return f"sent {cluster.notice()}"
    if not found:
        return f"no process trained just then, so no {what}"
    victim = draw.choice(found)
    if what == "worker":
        kill(victim)
        return "killed a worker"
    freeze([victim], GIVE_UP + 8)
    return f"froze a worker for {GIVE_UP + 8:g} s, past the limit of {GIVE_UP:g} s"


def one_round(cluster: Any, doing: list[str], expected: dict[int, Any], folder: Path, draw: random.Random) -> str:
    """A command with disturbances at random moments after its first checkpoint; a line on how it ended."""
    out = folder / f"{cluster.name}-{'-'.join(doing).replace(' ', '-')}-{draw.randrange(10**6)}"
    command, began, told = Command(cluster, out), time.monotonic(), []
    try:
        for what in doing:
            with contextlib.suppress(CannotStartError):
                wait_for(lambda: workers(out) or command.process.poll() is not None, 240, "nothing trains")
            time.sleep(draw.uniform(0.0, 3.0))
            over = command.process.poll() is not None
            told.append(f"ended before the {what}" if over else disturb(what, cluster, command, draw))
        command.end()
    except AssertionError as error:
        return f"{cluster.name}: {'; '.join(told)}: DIFFERENT, {error}"
    finally:
        kill_tree(command.process)
    resumed = len(re.findall(r"resuming from task", command.log.read_text(errors="replace")))
    found = matrices(out)
    alike = found == expected
    line = f"{cluster.name}: {'; '.join(told)}; resumed {resumed} times, {time.monotonic() - began:.0f} s: "
    return line + ("same" if alike else f"DIFFERENT\n{command.tail(30)}")


def overhead(cluster: Any, folder: Path) -> str:
    """What a command with one run takes beyond the training of it, the second time, when all files are in memory."""
    seconds = []
    for number in range(2):
        out, began = folder / f"{cluster.name}-overhead-{number}", time.monotonic()
        Command(cluster, out, seeds=1).end()
        seconds.append(time.monotonic() - began - seconds_of_training(out))
    return (
        f"{cluster.name}: {min(seconds):.1f} s around one bundle of one run, of which starting Python and torch twice"
    )


def local_overhead(folder: Path) -> str:
    """The same for a plain command."""
    out, began = folder / "plain-overhead", time.monotonic()
    plain = [sys.executable, "-m", "cler", *RUN, "1", "--out", str(out)]
    subprocess.run(plain, check=True, capture_output=True)
    seconds = time.monotonic() - began - seconds_of_training(out)
    return f"plain `cler run`: {seconds:.1f} s around one run, of which starting Python and torch"


def seconds_of_training(out: Path) -> float:
    (path,) = out.glob("*/seed-*/result.json")
    return float(json.loads(path.read_text())["seconds"])


def event_overhead(folder: Path, count: int = 2000) -> str:
    """Seconds to write and to read an event of ten runs side by side."""

    settings = make_settings(method="finetune", width=2)
    jobs = make_jobs(settings, range(10), folder / "events")
    attempt = Attempt.make(folder / "drivers", jobs, Machine(device="cpu"), "none", 0)
    names = tuple(job.name for job in jobs)
    event = Progress(names, 1, 5, 10, 100, 0.3, 99.0, 20.0, {"stream": 1.5}, ({"stream": (15.0, 10)},) * 10)
    mailbox = Mailbox(attempt.folder, names)
    began = time.perf_counter()
    for _ in range(count):
        mailbox(event)
    written = time.perf_counter()
    heard = list(attempt.news())
    read = time.perf_counter()
    assert heard == [event] * count
    size = (attempt.folder / "events.jsonl").stat().st_size
    return (
        f"an event of ten runs side by side: {1e6 * (written - began) / count:.0f} µs to write, "
        f"{1e6 * (read - written) / count:.0f} µs to read, {size // count} bytes; there are at most four a second"
    )


@contextlib.contextmanager
def started(kind: type[Any], folder: Path, say: Callable[[str], None]) -> Iterator[Any]:
    """The cluster, or None with a line that says why it is left out."""
    place = folder / kind.__name__
    place.mkdir()
    try:
        cluster = kind(place)
    except CannotStartError as error:
        say(f"left out: {kind.name}, because {error}")
        yield None
        return
    try:
        yield cluster
    finally:
        cluster.stop()


def rounds(kind: type[Any], kills: int, draw: random.Random) -> list[list[str]]:
    """What is done to the commands of a cluster: random kills, two a command, freezes, and what SLURM has besides."""
    drawn = [draw.choice(kind.disturbances) for _ in range(kills)]
    pairs = [drawn[first : first + 2] for first in range(0, kills, 2)]
    return [*pairs, ["freeze"], ["freeze of a node"], *([["preemption"], ["notice"]] if kind is SlurmNode else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="random kills, shared out to both clusters")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--only", choices=("ray", "slurm"), help="only this cluster")
    parser.add_argument("--log", type=Path, help="file that the lines go to, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # for what was started to be ended
    draw, lines, different = random.Random(options.seed), list[str](), 0

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if options.log:
            options.log.write_text("\n".join(lines) + "\n")

    kinds = [kind for kind in (SlurmNode, RayNodes) if options.only in (None, kind.name.lower())]
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        plain = [sys.executable, "-m", "cler", *RUN, str(SEEDS), "--out", str(folder / "plain")]
        subprocess.run(plain, check=True, capture_output=True)
        expected = matrices(folder / "plain")
        assert len(expected) == SEEDS
        say(event_overhead(folder))
        say(local_overhead(folder))
        for kind in kinds:
            with started(kind, folder, say) as cluster:
                for doing in rounds(kind, options.kills // len(kinds), draw) if cluster else ():
                    line = one_round(cluster, doing, expected, folder, draw)
                    different += "DIFFERENT" in line
                    say(line)
                if cluster:
                    say(overhead(cluster, folder))
    say(f"{different} commands ended with other numbers than plain runs")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
