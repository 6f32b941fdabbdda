"""`--on`: the same commands, elsewhere."""

import sys
from types import SimpleNamespace

import pytest
import torch

import cler
import toys
from cler.config.cluster import Slurm
from cler.errors import UsageError
from cler.runs.backends import BACKENDS, Backend
from photos import write_folder

TOY = ("--dataset", "toy", "--width", "2", "--tasks", "2", "--buffer", "10")


class Noting(Backend):
    """A backend that trains nothing, and keeps what it was asked."""

    def __init__(self, machine):
        self.asked.append(machine)

    def device(self, name):
        return torch.device("cuda")

    def train(self, jobs, machine, emit):
        self.trained.append((jobs, machine))


@pytest.fixture
def noting(monkeypatch):
    kind = type("Kind", (Noting,), {"asked": [], "trained": [], "takes_address": True})
    for name in ("slurm", "ray"):
        monkeypatch.setitem(BACKENDS._entries, name, kind)
    return kind


@pytest.fixture(autouse=True)
def without_slurm(monkeypatch, tmp_path):
    toys.register()
    monkeypatch.setenv("PATH", str(tmp_path))


def test_run_takes_its_jobs_to_the_backend_with_the_settings_of_the_file(cler_here, tmp_path, noting):
    (tmp_path / "lab.toml").write_text('epochs = 2\n[slurm]\npartition = "gpu"\n')
    answer = cler_here("run", "er-ace", *TOY, "--seeds", 3, "--on", "slurm", "--config", "lab.toml")
    assert answer.code == 0, answer.err
    ((jobs, machine),) = noting.trained
    assert noting.asked[-1].slurm == Slurm(partition="gpu")
    assert [(job.seed, job.settings.epochs, job.settings.precision) for job in jobs] == [
        (n, 2, "bf16") for n in range(3)
    ]
    assert (machine.device, str(machine.out), machine.give_up_after) == ("cuda", "runs", 600.0)
    (tmp_path / "other.toml").write_text('[slurm]\npartition = "cpu"\n')
    cler_here("run", "er-ace", *TOY, "--on", "slurm", "--config", "lab.toml", "--slurm", "other.toml")
    assert noting.asked[-1].slurm == Slurm(partition="cpu")


def test_a_settings_file_may_say_where_to_train_and_one_for_a_cluster_serves_here_too(cler_here, tmp_path, noting):
    (tmp_path / "lab.toml").write_text('on = "slurm"\n[slurm]\npartition = "gpu"\n')
    (tmp_path / "other.toml").write_text('[slurm]\npartition = "cpu"\n')
    assert cler_here("run", "er-ace", *TOY, "--config", "lab.toml", "--slurm", "other.toml").code == 0
    assert noting.asked[-1].slurm == Slurm(partition="cpu")
    answer = cler_here("run", "er-ace", *TOY, "--config", "lab.toml", "--on", "local", "--until-task", 1)
    assert answer.code == 0, answer.err
    assert len(noting.trained) == 1


@pytest.mark.parametrize("command", [("reproduce", "table1", "--dry-run"), ("tune", "er", "--space", "lr=0.1|0.2")])
def test_every_command_refuses_what_it_is_given_in_vain(cler_here, command):
    answer = cler_here(*command, "--give-up-after", 60)
    assert answer.code == 2
    said = "cler: --give-up-after has no effect on local, only on slurm or ray: leave it out"
    assert answer.err.splitlines()[-1] == said


def test_a_dataset_need_not_be_where_the_driver_is(cler_here, noting):
    answer = cler_here("run", "er-ace", "--dataset", "cifar100", "--on", "ray:head:6379", "--give-up-after", 5)
    assert answer.code == 0
    assert "not here, and needed where runs are trained: " in answer.err
    ((jobs, machine),) = noting.trained
    assert (len(jobs), machine.give_up_after) == (1, 5.0)
    assert cler_here("run", "er-ace", "--dataset", "cifar100", "--on", "local").code == 2


def test_the_variable_for_the_datasets_is_that_of_each_node_unless_somebody_gives_a_folder(cler_here, tmp_path, noting):
    (tmp_path / "lab.toml").write_text('data_dir = "of-the-file"\n')  # cler_here sets the variable
    for given in ((), ("--config", "lab.toml"), ("--config", "lab.toml", "--data-dir", "given")):
        assert cler_here("run", "er-ace", *TOY, "--on", "slurm", *given).code == 0
    assert [machine.data_dir and machine.data_dir.name for _, machine in noting.trained] == [
        None,
        "of-the-file",
        "given",
    ]


def test_train_takes_its_jobs_to_the_backend(tmp_path, monkeypatch, noting):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="no run has finished here"):
        cler.train(
            "er-ace",
            dataset="toy",
            tasks=2,
            width=2,
            on="slurm",
            slurm={"account": "lab"},
            seeds=2,
            verbose=False,
            out="here",
        )
    assert noting.asked[-1].slurm == Slurm(account="lab")
    ((jobs, machine),) = noting.trained
    assert (len(jobs), str(machine.out)) == (2, "here")


def test_train_refuses_what_it_is_given_in_vain_as_the_commands_do(tmp_path):
    for given in ({"slurm": {"account": "lab"}}, {"give_up_after": 60.0}, {"slurm": {}, "on": "ray:head:6379"}):
        with pytest.raises(UsageError, match=f"^{next(iter(given))} has no effect on (local|ray:head:6379), only on "):
            cler.train("er-ace", **given, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_reproduce_takes_all_its_jobs_at_once_the_costliest_first(cler_here, noting, monkeypatch):
    monkeypatch.setattr("cler.data.get", lambda *_: None)
    monkeypatch.setattr("cler.paper.cost.seconds_per_run", pytest.fail)
    arguments = ("reproduce", "table1", "--only", "er-ace", "--dataset", "cifar100", "--buffer", "500", "--seeds", "2")
    costs = lambda missing, *_: ({work.cell: 1.0 + (work.cell.regularizer != "none") for work in missing}, "")  # noqa: E731
    monkeypatch.setattr("cler.paper.cost.known_seconds", costs)
    answer = cler_here(*arguments, "--on", "slurm")
    assert answer.code == 0, answer.err
    ((jobs, _),) = noting.trained
    assert [job.settings.regularizer != "none" for job in jobs] == [True, True, False, False]
    answer = cler_here(*arguments, "--on", "slurm", "--dry-run", "--time")
    assert (answer.code, answer.err) == (
        2,
        "cler: --time times steps on this machine, not on slurm: leave one of them out\n",
    )


def test_reproduce_leaves_out_nothing_that_only_the_driver_lacks(cler_here, noting, monkeypatch):
    def offline(name, *_):
        raise UsageError(f"{name} cannot be fetched")

    monkeypatch.setattr("cler.data.get", offline)
    arguments = ("reproduce", "table1", "--only", "er-ace+none", "--dataset", "cifar100", "--buffer", "500")
    answer = cler_here(*arguments, "--seeds", "2", "--on", "slurm")
    assert answer.code == 0, answer.err
    assert "not here, and needed where runs are trained: cifar100 cannot be fetched" in answer.err.splitlines()
    ((jobs, _),) = noting.trained
    assert len(jobs) == 2


def test_tune_takes_its_trials_to_the_backend(cler_here, noting):
    answer = cler_here(
        "tune", "er-ace", *TOY, "--select-on", "whole-stream", "--space", "lr=0.01..0.1", "--trials", 2, "--on", "ray"
    )
    assert answer.code != 0  # nothing was trained
    assert len(noting.trained[0][0]) == 2


def test_the_images_that_decide_need_not_be_where_the_driver_is(cler_here, noting):
    answer = cler_here("tune", "er-ace", "--dataset", "cifar100", "--space", "lr=0.01..0.1", "--on", "ray:head:6379")
    assert "not here, and needed where runs are trained: " in answer.err
    assert len(noting.trained[0][0]) == 10
    assert cler_here("tune", "er-ace", "--dataset", "cifar100", "--space", "lr=0.01..0.1").code == 2


def test_trials_on_a_folder_know_its_images_for_a_node_with_others_to_be_refused(cler_here, tmp_path, noting):
    write_folder(tmp_path / "photos", size=(24, 24))
    dataset = ("--dataset", "folder:photos", "--tasks", 2, "--select-on", "whole-stream")
    answer = cler_here("tune", "er-ace", *dataset, "--space", "lr=0.01..0.1", "--trials", 2, "--on", "slurm")
    assert noting.trained, answer.err
    fingerprint = cler.data.load("folder:photos", tmp_path / "data").fingerprint()
    assert [job.data for job in noting.trained[0][0]] == [fingerprint] * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--on", "slrum"),
            "unknown backend 'slrum' (known: local, slurm, ray, ray:HOST:PORT); did you mean 'slurm'?",
        ),
        (("--on", "ray:auto"), "--on must be ray:HOST:PORT, or ray alone for a cluster of its own, not 'ray:auto'"),
        (("--on", "slurm", "--slurm", "no.toml"), "cannot read no.toml: No such file or directory"),
        (("--on", "slurm"), "--on slurm needs sbatch, which is not on the path: log in where jobs are sent"),
        (("--slurm", "lab.toml"), "--slurm has no effect on local, only on slurm: leave it out"),
        (
            ("--on", "ray:head:6379", "--slurm", "lab.toml"),
            "--slurm has no effect on ray:head:6379, only on slurm: leave it out",
        ),
        (("--on", "local", "--give-up-after", "0"), "--give-up-after must be above 0 and at most 1000000000, not 0.0"),
    ],
)
def test_mistakes_are_told_in_one_line(cler_here, tmp_path, arguments, says):
    (tmp_path / "lab.toml").write_text('[slurm]\npartition = "gpu"\n')
    answer = cler_here("run", "er-ace", *TOY, *arguments)
    assert answer.code == 2
    assert answer.err.splitlines()[-1] == f"cler: {says}"


@pytest.mark.parametrize(
    "command",
    [
        ("run", "er-ace", *TOY, "--redo"),
        ("reproduce", "table1", "--only", "er-ace", "--redo"),
        ("tune", "er-ace", *TOY, "--space", "lr=0.1|0.2", "--select-on", "whole-stream"),
    ],
    ids=lambda command: command[0],
)
def test_a_cluster_that_cannot_be_used_is_told_before_anything_is_written_or_downloaded(
    cler_here, tmp_path, monkeypatch, command
):
    monkeypatch.setattr("cler.data.get", lambda *_: pytest.fail("downloaded"))
    answer = cler_here(*command, "--on", "slurm", "--out", "there")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("cler: --on slurm needs sbatch, which is not on the path")
    assert not (tmp_path / "there").exists()


def test_a_cluster_is_not_needed_to_see_what_there_is(cler_here, tmp_path, monkeypatch):
    monkeypatch.setattr("cler.data.check", lambda *_: SimpleNamespace(state="present"))
    answer = cler_here("reproduce", "table1", "--only", "er-ace", "--on", "slurm", "--dry-run")
    assert answer.code == 0, answer.err
    quick = ("run", "finetune", "--dataset", "toy", "--width", 1, "--tasks", 2, "--device", "cpu", "--workers", 1)
    assert cler_here(*quick).code == 0
    again = cler_here(*quick, "--on", "slurm")
    assert again.code == 0, again.err
    assert "1 of 1 runs are already in runs" in again.err
    assert cler_here(*quick, "--on", "slurm", "--redo").code == 2
    assert list(tmp_path.rglob("result.json"))  # which nobody here could have made again


def test_a_package_that_is_missing_is_told_with_what_to_install(cler_here, monkeypatch):
    for on, package in (("ray", "ray"), ("slurm", "submitit")):
        monkeypatch.setitem(sys.modules, package, None)
        answer = cler_here("run", "er-ace", *TOY, "--device", "cpu", "--on", on)
        assert answer.code == 2
        assert answer.err.splitlines()[-1].endswith(f": pip install {package}")
