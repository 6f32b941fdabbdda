import os
import signal
import sys

import pytest
import torch

from cler.config.cluster import Slurm
from cler.config.machine import Machine
from cler.engine.events import Message, Started, ignore
from cler.errors import UsageError
from cler.files import read_json
from cler.runs import trainers
from cler.runs.backends import attempts, driver, find_backend, slurm
from cler.runs.backends.attempts import ATTEMPTS, Attempt, Mailbox, train_attempt
from cler.runs.backends.slurm import OnSlurm, SlurmCluster, Work
from cler.runs.execute import execute

SBATCH = """#!{python}
import os, pathlib, re, subprocess, sys
here = pathlib.Path(__file__).parent
script = pathlib.Path(sys.argv[-1]).read_text()
if "--exclude=" in script:
    sys.exit("sbatch: error: Requested node configuration is not available")
number = len(list(here.glob("*.script"))) + 1
(here / f"{{number}}.script").write_text(script)
name = re.search("--job-name=(.*)", script)[1]
env = os.environ | {{"SLURM_JOB_ID": str(number), "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
                     "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node"}}
with (here / "output").open("ab") as out:
    job = subprocess.Popen(["bash", sys.argv[-1]], env=env, stdout=out, stderr=out, start_new_session=True)
(here / f"{{number}}.job").write_text(f"{{name}} {{job.pid}}")
print(f"Submitted batch job {{number}}")
"""
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do case $1 in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""
SQUEUE = """#!/bin/bash
for job in "$(dirname "$0")"/*.job; do
    read -r name pid < "$job"
    [ -d /proc/$pid ] && ! grep -q 'State:.Z' /proc/$pid/status && echo "$name|RUNNING"
done
true
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A SLURM of a few lines on the path: a job is a process."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {"sbatch": SBATCH.format(python=sys.executable), "srun": SRUN, "squeue": SQUEUE, "scancel": "#!/bin/sh\n"}
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.usefixtures("known_to_new_processes")
def test_a_job_of_slurm_trains_and_is_heard(tmp_path, monkeypatch, commands, machine, toy_jobs):
    monkeypatch.setattr(slurm.SlurmCluster, "poll", 1.0)
    monkeypatch.setattr(driver._Driver, "_again", pytest.fail)
    (plain,), (job,), heard = toy_jobs(out=tmp_path / "plain"), toy_jobs(), []
    trainers.train_bundles([[plain]], machine, ignore)
    asked = {"partition": "short", "account": "lab", "time": "1-02:30", "gpus": 0, "memory": "8G", "notice": 30}
    backend = find_backend(Machine(on="slurm", slurm=asked | {"setup": "export SET_UP=1"}))
    assert backend.device("auto") == torch.device(machine.device)
    backend.train([job], machine, heard.append)
    results = [read_json(each.folder / "result.json")["accuracy"] for each in (job, plain)]
    assert results[0] == results[1]
    assert any(isinstance(event, Message) and " has 1 run: er buffer 8, seed 0" in event.text for event in heard)
    script = (commands / "1.script").read_text().splitlines()
    for line in (
        "partition=short",
        "account=lab",
        "time=1590",
        "mem=8G",
        "signal=USR2@30",
        "requeue",
        "cpus-per-task=1",
    ):
        assert f"#SBATCH --{line}" in script
    assert "export SET_UP=1" in script
    assert not any("gpus" in line for line in script)
    assert not (tmp_path / ATTEMPTS).exists()


def test_a_node_that_was_given_up_is_taken_where_there_is_no_other(tmp_path, commands, machine, toy_jobs):
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", toy_jobs(), machine, "slurm", 0)
    attempt.discard()  # the job finds nothing to do
    SlurmCluster(Slurm(gpus=0), gpu=False).submit(attempt.folder, 1, ["node"])
    assert len(list(commands.glob("*.job"))) == 1


def test_what_sbatch_refuses_is_told_in_one_line(tmp_path, commands, machine, toy_jobs):
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", toy_jobs(), machine, "slurm", 0)
    with pytest.raises(UsageError, match="sbatch refuses the job: Requested node configuration is not available"):
        SlurmCluster(Slurm(gpus=0, exclude="node"), gpu=False).submit(attempt.folder, 1, [])


def test_so_is_an_sbatch_that_fails_without_a_word(tmp_path, commands, machine, toy_jobs):
    (commands / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", toy_jobs(), machine, "slurm", 0)
    with pytest.raises(UsageError, match="sbatch refuses the job: it does not say why"):
        SlurmCluster(Slurm(gpus=0), gpu=False).submit(attempt.folder, 1, [])


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, commands, machine, toy_jobs):
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", toy_jobs(), machine, "slurm", 0)
    (attempt.folder / "slurm").touch()
    with pytest.raises(UsageError, match=f"cannot write to {attempt.folder}: File exists"):
        SlurmCluster(Slurm(gpus=0), gpu=False).submit(attempt.folder, 1, [])


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("cler-a|RUNNING", "running"),
        ("cler-a|PENDING", "waiting"),
        ("cler-a|COMPLETING", "waiting"),
        ("cler-a|CANCELLED by 0", "cancelled"),
        ("cler-a|COMPLETED", None),
        ("cler-a|NODE_FAIL", None),
        ("other|RUNNING", None),
    ],
)
def test_the_states_of_jobs(commands, line, state):
    (commands / "squeue").write_text(f"#!/bin/sh\necho '{line}'\n")
    assert SlurmCluster(Slurm(), gpu=True).states() == ({"a": state} if state else {})


def test_why_a_job_waits_is_told_once_while_it_does(tmp_path, monkeypatch, commands, machine, toy_jobs):
    """By a `squeue` that shows the columns it is asked for: of an attempt that waits at first, and of other jobs."""
    monkeypatch.setattr(slurm.SlurmCluster, "poll", 0.0)
    monkeypatch.setattr(driver, "LOOK", 0.0)
    (commands / "sbatch").write_text(
        f"#!/bin/sh\nsed -n 's/.*--job-name=//p' \"$1\" >> '{commands}/names'\necho Submitted batch job 1\n"
    )
    (commands / "squeue").write_text(
        f"""#!/bin/sh
case "$*" in *"--format=%j|%T|%r") ;; *) exit 1;; esac
echo 'other|PENDING|Dependency'
test -e '{commands}/names' || exit 0
read -r name < '{commands}/names'
echo x >> '{commands}/asked'
case $(wc -l < '{commands}/asked') in
1) echo "$name|PENDING|None";;
2|3) echo "$name|PENDING|QOSMaxJobsPerUserLimit";;
4) echo "$name|PENDING|ReqNodeNotAvail, UnavailableNodes:node7";;
5) echo "$name|RUNNING|None";;
*) echo "$name|CANCELLED|None";;
esac
"""
    )
    heard = []
    backend = find_backend(Machine(on="slurm", slurm={"gpus": 0}))
    with pytest.raises(UsageError, match="its job was canceled"):
        execute(toy_jobs(), machine, callbacks=[heard.append], backend=backend)
    assert [event.text for event in heard] == [
        "submitted to slurm: 1 job",
        "waiting for slurm: QOSMaxJobsPerUserLimit",
        "waiting for slurm: ReqNodeNotAvail, UnavailableNodes:node7",
    ]


def test_a_person_is_told_how_to_cancel_the_jobs_that_stay(commands):
    told = SlurmCluster(Slurm(), gpu=True).ending(["a", "b"])
    assert told == "to cancel: scancel --me --name=cler-a,cler-b"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (None, ""),
        ("", ""),
        ("a warning\n\n", "a warning"),
        (
            "Traceback\nImportError: no cler\n\nsrun: error: node: task 0: Exited with code 1\n",
            "ImportError: no cler",
        ),
        ("a warning\nsrun: error: node: task 0: Killed\n", "srun: error: node: task 0: Killed"),
    ],
)
def test_the_log_of_a_job_says_why_it_ended(tmp_path, commands, log, words):
    (tmp_path / "slurm").mkdir()
    if log is not None:
        (tmp_path / "slurm" / "1_0_log.err").write_text(log)
    assert SlurmCluster(Slurm(), gpu=True).last_words(tmp_path) == words


def test_a_controller_that_does_not_answer_tells_nothing_of_jobs(commands):
    (commands / "squeue").write_text("#!/bin/sh\necho 'squeue: error: no controller' >&2\nexit 1\n")
    cluster = SlurmCluster(Slurm(), gpu=True)
    assert cluster.states() is None
    assert cluster.silence == "squeue: error: no controller"


# -- a job that is told to go ------------------------------------------------------------------------------------------


def test_a_signal_lets_the_step_end_and_leaves_a_checkpoint(tmp_path, monkeypatch, machine, toy_jobs):
    (job,) = toy_jobs()
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "slurm", 0)
    queued_again = []
    monkeypatch.setenv("SLURMD_NODENAME", "node7")

    class Told(Mailbox):
        def __call__(self, word):
            super().__call__(word)
            if isinstance(word, Started) and not queued_again:
                os.kill(os.getpid(), slurm.NOTICE)

    monkeypatch.setattr(attempts, "Mailbox", Told)
    before = signal.signal(slurm.NOTICE, lambda *_: queued_again.append(True))
    try:
        Work()(str(attempt.folder))
        assert queued_again == [True]
        assert list(attempt.news())[-1] == attempt.ended
        assert (attempt.host, attempt.ended.how) == ("node7", "stopped")
        assert (job.folder / "checkpoint.safetensors").exists()
        Work()(str(attempt.folder))  # as SLURM starts it again
    finally:
        signal.signal(slurm.NOTICE, before)
    assert f"{job.label}: resuming from task 1, step 2" in [getattr(word, "text", "") for word in attempt.news()]
    assert attempt.ended.how == "done"
    assert read_json(job.folder / "result.json")["complete"]


def test_a_job_that_slurm_itself_ends_does_not_queue_again(tmp_path, monkeypatch):
    def terminated(folder, signals):
        assert signals == [slurm.NOTICE, signal.SIGTERM]
        raise SystemExit(143)

    monkeypatch.setattr(slurm, "train_attempt", terminated)
    before = signal.signal(slurm.NOTICE, lambda *_: pytest.fail("queued again"))
    try:
        with pytest.raises(SystemExit):
            Work()(str(tmp_path))
    finally:
        signal.signal(slurm.NOTICE, before)


def test_what_is_queued_again_is_the_same(tmp_path):
    again = Work().checkpoint("folder")
    assert (type(again.function), again.args) == (Work, ("folder",))


def test_an_attempt_that_was_given_up_while_it_waited_is_not_made(tmp_path):
    train_attempt(tmp_path / "gone")
    assert not list(tmp_path.iterdir())


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_devices_are_those_of_the_nodes():
    assert OnSlurm(Machine(on="slurm")).device("auto") == torch.device("cuda")
    assert OnSlurm(Machine(on="slurm", slurm={"gpus": 0})).device("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match="cuda needs gpus = 1"):
        OnSlurm(Machine(on="slurm", slurm={"gpus": 0})).device("cuda")


def test_without_submitit_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"slurm needs submitit: pip install submitit"):
        SlurmCluster(Slurm(), gpu=True)


def test_without_slurm_it_is_said_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="slurm needs sbatch, which is not on the path"):
        SlurmCluster(Slurm(), gpu=True)
