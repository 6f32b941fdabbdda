"""The `cler` command as a user types it: the installed one for what is about processes, else in this process."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cler import __version__
from cler.data import images
from hostile import put_results
from toys import EveryTenth, Toy, wait_until

CLER = Path(sys.executable).with_name("cler")


@pytest.fixture
def environment(tmp_path):
    """The environment of a process: no colors, wide lines, no datasets but those inside the package."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CLER_", "PYTEST_", "COV_"))}
    return inherited | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "CLER_DATA": str(tmp_path / "data")}


@pytest.fixture
def cler(cler_here, monkeypatch):
    """The command in this process, which knows the dataset `toy`; variables of the environment may be given."""
    monkeypatch.setitem(images.DATASETS._entries, "toy", Toy())

    def call(*arguments, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return cler_here(*arguments)

    return call


QUICK = ("--dataset", "toy", "--tasks", 2, "--width", 2, "--batch", 5, "--workers", 1)


def results(folder):
    return {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("result.json")}


def assert_refused(answer, says, out=None):
    """A user's mistake: one line, exit code 2, nothing written."""
    assert "Traceback" not in answer.err + answer.out
    assert answer.code == 2, answer
    assert len(answer.err.splitlines()) == 1, answer.err
    assert answer.err.startswith("cler: ")
    assert re.search(says, answer.err), answer.err
    assert answer.out == ""
    if out is not None:
        assert not out.exists()


# -- in new processes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[CLER], [sys.executable, "-m", "cler"]], ids=["cler", "python -m cler"])
def test_version(environment, command):
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cler {__version__}\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_cannot_be_written_is_told_in_one_line(environment):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([CLER, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (1, "cler: cannot write the output: No space left on device\n")


def test_a_reader_that_has_gone_is_no_trouble(environment):
    environment = environment | {"PYTHONUNBUFFERED": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([CLER, "--version"], env=environment, **pipes) as process:
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (1, "")


@pytest.mark.parametrize(
    ("streams", "code", "says"),
    [
        (">&-", 2, "cler: the standard output is closed: send it to /dev/null if nobody is to read it\n"),
        (">&- 2>&-", 2, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("1</dev/null", 1, "cler: cannot write the output: Bad file descriptor\n"),
    ],
)
def test_a_stream_that_is_closed(environment, streams, code, says):
    done = subprocess.run(
        ["bash", "-c", f"'{CLER}' --version {streams}"], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (code, says)
    assert (done.stdout == "") == (code != 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(("command", "code"), [("compare all 2>/dev/full", 0), ("nonsense 2</dev/null", 2)])
def test_what_nobody_can_be_told_changes_no_exit_code(environment, tmp_path, command, code):
    put_results(tmp_path / "all")  # with some that are no results, of which there is a line each
    line = f"'{CLER}' {command}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    assert (done.stdout == "") == (code != 0)


def test_a_file_does_not_take_the_place_of_a_stream_that_is_closed(environment):
    program = "import os, cler.cli; cler.cli._check_streams(); print(os.open('/dev/null', os.O_RDONLY))"
    command = f"'{sys.executable}' -c \"{program}\" <&- 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert int(done.stdout) > 2


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_strict_encodings_stop_nothing(cler, monkeypatch, tmp_path, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), *encoding.split(":"))
    monkeypatch.setattr(sys, "stderr", stream)
    assert cler("compare", tmp_path / os.fsdecode(b"caf\xe9")).code == 2
    written = stream.buffer.getvalue()
    assert written.startswith(b"cler: no such file or folder: ")
    assert written.count(b"\n") == 1


@pytest.mark.parametrize("command", [("methods",), ("methods", "--json")])
def test_signs_that_a_terminal_does_not_have_stop_nothing(cler, monkeypatch, command):
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cler(*command) == (0, "", "")
    written = terminal.buffer.getvalue().decode("ascii")
    assert "cope" in written
    if "--json" in command:
        assert "τ" in json.loads(written)["methods"]["cope"]["settings"]["temperature"]["help"]


def test_the_sample_inside_the_package_is_learned_from_without_any_download(cler, tmp_path, monkeypatch):
    monkeypatch.setitem(images.DATASETS._entries, "cifar10-sample", EveryTenth(images.DATASETS["cifar10-sample"]))
    options = "--tasks 2 --width 2 --batch 50 --lr 0.1 --workers 1 --out runs"
    done = cler("run", "finetune", *options.split())
    assert done.code == 0, done.err
    assert "Finetune" in done.out
    (result,) = results(tmp_path / "runs").values()
    assert result["complete"]
    assert result["settings"]["dataset"] == "cifar10-sample"


def is_gone(group):
    """Whether there is no process of a group any more."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(environment, path_with_toys, tmp_path, cler):
    """With two workers; tests/runs/test_resume.py has one that trains in the process that is stopped."""
    arguments = ["run", "er-ace", "--buffer", 20, *QUICK[:-1], 2, "--out", "runs"]
    command = [str(CLER), *map(str, arguments), "--seeds", "0..299"]  # more than can be finished before somebody looks
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment |= {"PYTHONPATH": path_with_toys}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True, **pipes) as process:
        try:
            wait_until(lambda: any(one["complete"] for one in results(tmp_path / "runs").values()), process)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate()
        finally:
            if process.poll() is None:
                process.kill()
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert err.splitlines()[-1].startswith("cler: stopped")
    finished = {name for name, one in results(tmp_path / "runs").items() if one["complete"]}
    assert 1 <= len(finished) < 300
    wait_until(lambda: is_gone(process.pid))  # no worker is left behind

    seeds = sorted(int(name.removeprefix("seed-")) for name in finished)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    wanted = f"{seeds[0]},{seeds[-1]},300"
    again = cler(*arguments[:-4], "--workers", 1, "--out", "runs", "--seeds", wanted)
    assert again.code == 0
    kept = len({seeds[0], seeds[-1]})
    assert f"{kept} of {kept + 1} runs are already in runs" in again.err
    assert results(tmp_path / "runs")["seed-300"]["complete"]
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items())


# -- what works --------------------------------------------------------------------------------------------------------


def test_methods(cler):
    answer = cler("methods")
    assert answer.code == 0
    for name in ("finetune", "joint", "er", "er-ace", "none", "rotation", "jigsaw"):
        assert re.search(rf"^\s*{name}\s+\w", answer.out, re.MULTILINE), name
    listed = json.loads(cler("methods", "--json").out)
    assert listed["augmentations"]["randaugment"]["summary"].startswith("RandAugment")
    assert listed["augmentations"]["light"]["summary"].startswith("a resized crop")
    assert {"finetune", "er-ace"} <= listed["methods"].keys()
    assert listed["methods"]["cope"]["settings"]["inner"]["default"] == 5
    assert re.search(r"cope\s+inner=5\s+Steps on each batch of the stream", answer.out)
    assert {"none", "rotation", "jigsaw"} <= listed["regularizers"].keys()


def test_data_list_and_check(cler):
    answer = cler("data", "list")
    assert answer.code == 0
    assert re.search(r"cifar10-sample\s+present", answer.out)
    assert re.search(r"cifar100\s+missing", answer.out)
    listed = json.loads(cler("data", "list", "--json").out)
    assert (listed["cifar10-sample"]["state"], listed["cifar100"]["state"]) == ("present", "missing")
    assert cler("data", "check", "cifar10-sample").code == 0
    missing = cler("data", "check", "cifar100")
    assert missing.code == 1
    assert "cler data get cifar100" in missing.out


def test_a_dataset_of_the_users_own_is_fetched(cler, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "owned", raising=False)
    (tmp_path / "owned.py").write_text(
        "import cler\nfrom cler.data.digits import Digits\nfrom cler.data.images import Status\n"
        "class Owned(Digits):\n    name = 'owned'\n"
        "    def get(self, folder, progress=None):\n        return Status('present', 'fetched', folder)\n"
        "cler.register(Owned())\n"
    )
    answer = cler("data", "get", "owned", "--import", tmp_path / "owned.py")
    assert (answer.code, answer.out) == (0, "owned: present - fetched\n"), answer.err
    answer = cler("data", "get", f"folder:{tmp_path / 'nowhere'}")
    assert (answer.code, "there is no folder" in answer.out) == (1, True)


@pytest.mark.parametrize(
    "command",
    ["run er", "tune er --space lr=0.1", "reproduce table1", "analyze figure1", "compare .", "report .", "frontier ."],
)
def test_parts_of_the_users_own_are_imported_by_every_command_that_trains_or_reads_runs(cler, command):
    answer = cler(*command.split(), "--import", "nowhere.py")
    assert (answer.code, answer.err) == (2, "cler: there is no file nowhere.py to import\n")


@pytest.mark.parametrize("command", [(), ("run",), ("tune",), ("bench",), ("data",), ("data", "get"), ("methods",)])
def test_help_has_a_sentence_for_every_option(cler, command):
    answer = cler(*command, "--help")
    assert answer.code == 0
    assert answer.err == ""
    assert "…" not in answer.out  # where a word is too long for its column
    assert "<=" not in answer.out  # bounds, which take room from the sentences
    options = re.findall(r"^[│|]?\s*\*?\s*(--[a-z-]+)(.*)$", answer.out, re.MULTILINE)
    assert options
    for name, rest in options:
        assert re.search(r"[A-Za-z][a-z]+ ?[a-z]*", rest.replace("INTEGER", "").replace("TEXT", "")), name


def test_only_commands_that_train_elsewhere_tell_what_workers_are_there(cler):
    assert "on slurm or ray" in " ".join(cler("run", "--help").out.replace("│", " ").split())
    for command in ("demo", "analyze"):
        assert "slurm" not in cler(command, "--help").out


@pytest.mark.parametrize("command", [(), ("data",), ("run",)])
def test_help_of_flags_has_no_values_and_a_short_form(cler, command):
    told = cler(*command, "--help")
    assert re.search(r"--help +-h +Show this message", told.out)
    assert cler(*command, "-h").out == told.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict"], "No such command 'predict'; see `cler --help`"),
        (["rn"], "No such command 'rn'. Did you mean 'run'?"),
        (["data", "fetch"], "No such command 'fetch'; see `cler data --help`"),
        (["run", "--learning-rate", 1], "No such option: --learning-rate; see `cler run --help`"),
        (
            ["run", "xder", "--eta", 1],
            "--eta is not a setting of all runs, but of the method xder: write --set eta=VALUE",
        ),
        (
            ["learn", ".", "--pcd-weight=1"],
            "--pcd-weight is not a setting of all runs, but of the method pcr: write --set pcd_weight=VALUE",
        ),
        (["reproduce"], "Missing argument 'TABLE'; see `cler reproduce --help`"),
    ],
)
def test_a_word_that_no_command_knows_leads_to_the_help(cler, arguments, says):
    assert cler(*arguments).err == f"cler: {says}\n"


def help_of(answer):
    """What the help says, without its frames."""
    return " ".join(re.sub("[│|]", " ", answer.out).split())


def test_help_says_whose_defaults_may_be_others(cler_here):
    for command in ("run", "tune"):
        told = help_of(cler_here(command, "--help"))
        for line in (
            "replay buffer. [default: 500, or the dataset's]",
            "Learning rate. [default: 0.01, or the dataset's, method's, regularizer's, protocol's or teacher's]",
            "or timm:NAME. [default: resnet18, or the method's]",
            "1 is online learning. [default: 1]",
            "(default: bf16 on a GPU that has it, fp32 elsewhere). One of fp32, tf32, bf16. --threads",
        ):
            assert line in told
    assert "accuracy on them is reported. [default: 0.1]" in told  # which `cler tune` needs


def test_help_without_frames_and_colors_has_no_marks_of_them(environment):
    asked = [sys.executable, "-m", "cler", "run", "--help"]
    told = subprocess.run(asked, env=environment | {"TYPER_USE_RICH": "0"}, capture_output=True, text=True, check=True)
    assert "replay buffer. [default: 500, or the dataset's]" in " ".join(told.stdout.split())


def test_help_of_reproduce_does_not_tell_of_defaults_that_it_does_not_have(cler_here):
    told = help_of(cler_here("reproduce", "--help"))
    assert (
        "--buffer INTEGER Only cells with buffers of these sizes, with commas (default: all of the table). --" in told
    )
    assert "cifar10-sample" not in told


def test_help_shows_brackets_as_they_are(cler):
    told = help_of(cler("run", "--help"))
    assert "with a table [slurm]: partition" in told


def test_a_run_its_repetition_and_a_comparison(cler, tmp_path):
    runs = tmp_path / "runs"
    first = cler("run", "finetune", *QUICK, "--seeds", "0,1", "--out", "runs")
    assert first.code == 0, first.err
    assert "Finetune" in first.out
    assert re.search(r"\[2/2\] finetune, seed 1: .*accuracy", first.err)
    stored = results(runs)
    assert stored.keys() == {"seed-0", "seed-1"}
    settings = stored["seed-0"]["settings"]
    assert (settings["method"], settings["regularizer"], settings["dataset"]) == ("finetune", "none", "toy")
    assert (settings["tasks"], settings["buffer"], settings["epochs"]) == (2, 0, 1)
    assert stored["seed-1"]["seed"] == 1

    moments = {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")}
    second = cler("run", "finetune", *QUICK, "--seeds", "0..1", "--out", "runs")
    assert second.code == 0
    assert "2 of 2 runs are already in runs" in second.err
    assert second.out == first.out
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*.json")} == moments

    third = cler("run", "finetune", "--regularizer", "rotation", *QUICK, "--seeds", "0..1", "--out", "runs", "--json")
    assert third.code == 0
    (group,) = json.loads(third.out)["groups"]
    assert group["label"] == "Finetune + CLER (rotation)"

    assert cler("compare", "runs", COLUMNS="30").out == cler("compare", "runs", COLUMNS="80").out
    table = cler("compare", "runs")
    assert table.code == 0
    assert "Finetune" in table.out
    assert "(rotation)" in table.out
    compared = json.loads(cler("compare", "runs", "--json").out)
    plain, regularized = compared["groups"]
    assert (plain["runs"], regularized["runs"], compared["complaints"]) == (2, 2, [])
    finals = [stored[name]["accuracy"]["class_il"][-1] for name in ("seed-0", "seed-1")]
    assert plain["class_il"]["accuracy"]["mean"] == pytest.approx(sum(map(sum, finals)) / 4, abs=1e-3)
    points = regularized["class_il"]["accuracy"]["mean"] - plain["class_il"]["accuracy"]["mean"]
    assert regularized["class_il"]["gain"]["points"] == pytest.approx(points)


def test_a_settings_file_and_the_command_line_over_it(cler, tmp_path):
    lines = ['method = "er"', 'dataset = "toy"', "tasks = 2", "width = 2", "batch = 5", "buffer = 30", "epochs = 2"]
    (tmp_path / "my.toml").write_text("\n".join([*lines, "lr = 0.5", "seed = 3"]))
    answer = cler("run", "--config", "my.toml", "--lr", 0.25, "--epochs", 1, "--out", "runs")
    assert answer.code == 0, answer.err
    (result,) = results(tmp_path / "runs").values()
    settings = result["settings"]
    assert (settings["method"], settings["buffer"], settings["lr"], settings["epochs"]) == ("er", 30, 0.25, 1)
    assert result["seed"] == 3
    assert cler("run", "er-ace", "--config", "my.toml", "--out", "runs", "--seed", 0).code == 0
    assert {one["settings"]["method"] for one in results(tmp_path / "runs").values()} == {"er", "er-ace"}


# -- mistakes ----------------------------------------------------------------------------------------------------------

HUGE = "9" * 30
MISTAKES = [
    (["er-acee"], r"unknown method 'er-acee' \(known: .*\); did you mean 'er-ace'\?"),
    (["--regularizer", "jigsow"], r"^cler: unknown regularizer 'jigsow'.*did you mean 'jigsaw'\?"),
    (["--dataset", "."], r"unknown dataset '\.': write folder:\.$"),
    (["--dataset", "mine.npz"], r"unknown dataset 'mine\.npz': write npz:mine\.npz$"),
    (["--dataset", "cifar1000"], r"unknown dataset 'cifar1000'.*did you mean 'cifar100'\?"),
    (["--bufer", 20], r"--bufer.*--buffer"),
    (["--device", "gpu"], r"unknown device 'gpu' \(known: auto, cpu, cuda\)"),
    (["--buffer", 5], r"--buffer 5 is smaller than the replay batch of 10"),
    (["--buffer", -3], r"--buffer must be at least 0.*not -3"),
    (["--dataset", "toy", "--tasks", 3], r"--tasks must be a number that divides the 4 classes \(1, 2, 4\)"),
    (["--tasks", 0], "--tasks must be a number of tasks, .* not .*0"),
    (["--dataset", "toy", "--tasks", 2, "--batch", 1000], r"--batch must be at most 40.*not 1000"),
    (["--replay-batch", -1], "--replay-batch must be at least 1 and at most"),
    (["--workers", 0], "--workers must be at least 1"),
    (["--at-once", -1], "--at-once must be at least 1"),
    (["--lr", "nan"], "--lr .*not nan"),
    (["--lr", "fast"], "--lr.*number"),
    (["--regularizer", "jigsaw", "--weight", -1], "--weight must be a number from 0"),
    (["--seeds", "1.."], r"--seeds '1\.\.' is not understood"),
    (["--seeds", "5..1"], "--seeds '5..1' runs backwards"),
    (["--seeds", HUGE], "--seeds"),
    (["--dataset", "toy", "--tasks", 2, "--class-order", HUGE], "--class-order"),
    (["--dataset", "cifar100"], r"CIFAR-100 is not in .*cler data get cifar100"),
    (["er-ace", "finetune"], "unexpected extra argument 'finetune': join several by commas"),
    (["er-ace", "jigsaw"], "unexpected extra argument 'jigsaw': write --regularizer jigsaw"),
    (["er-ace", "nonsense"], "unexpected extra argument 'nonsense': leave it out"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[" ".join(map(str, a))[:40] for a, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_line(cler, tmp_path, arguments, says):
    assert_refused(cler("run", *arguments, "--out", "runs"), says, tmp_path / "runs")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(cler, tmp_path):
    assert_refused(
        cler("run", "--device", "cuda", "--out", "runs"), "--device cuda: torch sees no GPU", tmp_path / "runs"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr = 0.1\nwidth == 3\n", r"my\.toml is not valid TOML: .*line 2"),
        ('lr = "fast"\n', r"my\.toml: lr must be a number, not 'fast'"),
        ('seeds = "x"\n', "--seeds 'x'"),
        (None, r"cannot read my\.toml: No such file"),
    ],
)
def test_a_mistake_in_a_settings_file(cler, tmp_path, text, says):
    if text is not None:
        (tmp_path / "my.toml").write_text(text)
    assert_refused(cler("run", "--config", "my.toml", "--out", "runs"), says, tmp_path / "runs")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "rnu"),
        (["--versoin"], "--versoin"),
        (["compare", "nowhere"], "no such file or folder: nowhere"),
        (["compare", ".", "nowhere"], "no such file or folder: nowhere"),
        (["compare"], "no such file or folder: runs"),
        (["run", "--lr"], "--lr.*requires an argument"),
        (["compare", "."], "no complete run in"),
        (["data", "get", "cifar1000"], "unknown dataset 'cifar1000'.*did you mean 'cifar100'"),
        (["data", "check", "cifar1000"], "unknown dataset 'cifar1000'"),
    ],
)
def test_mistakes_with_other_commands(cler, arguments, says):
    assert_refused(cler(*arguments), says)


def fake_cifar100(folder, size):
    (folder / "cifar-100-binary").mkdir(parents=True)
    for name, length in (("train.bin", size), ("test.bin", 30_740_000)):
        with (folder / "cifar-100-binary" / name).open("wb") as file:
            file.truncate(length)  # a hole: takes no space on the disk


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (
            100_000_000,
            r"train\.bin has 100000000 bytes instead of 153700000: delete it and run `cler data get cifar100`",
        ),
        (153_700_000, r"train\.bin was altered \(its checksum is wrong\): delete it"),
    ],
    ids=["truncated", "altered"],
)
def test_a_damaged_data_file_is_named(cler, tmp_path, size, says):
    fake_cifar100(tmp_path / "data", size)
    answer = cler("run", "--dataset", "cifar100", "--data-dir", "data", "--out", "runs")
    assert_refused(answer, says, tmp_path / "runs")
    checked = cler("data", "check", "cifar100", CLER_DATA="data")
    assert checked.code == 1
    assert re.search(says, checked.out)


def test_runs_with_other_settings_go_beside_each_other(cler, tmp_path):
    assert cler("run", "finetune", *QUICK, "--out", "runs").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    assert cler("run", "finetune", *QUICK, "--lr", 0.5, "--out", "runs").code == 0
    assert {path: path.read_bytes() for path in before} == before
    answer = cler("compare", "runs")
    assert answer.code == 0
    assert "lr 0.5" in answer.out


@pytest.mark.parametrize("out", ["file", "file/runs", "/proc/nothing"])
def test_a_folder_that_cannot_be_written_to(cler, tmp_path, out):
    (tmp_path / "file").write_text("mine")
    assert_refused(cler("run", "finetune", *QUICK, "--out", out), f"cannot write to {out}")
    assert (tmp_path / "file").read_text() == "mine"


def test_measurements_that_could_not_be_kept_are_not_made(cler):
    bench = ("bench", "--method", "er", "--regularizer", "none", "--width", 2, "--steps", 1)
    assert_refused(cler(*bench, "--out", "/proc/nothing/a.json"), "cannot write to /proc/nothing")


@pytest.mark.parametrize("option", ["--buffer", "--replay-batch"])
def test_a_memory_for_a_method_that_has_none(cler, option):
    assert_refused(cler("run", "finetune", *QUICK, option, 200), f"{option} 200 has no effect: finetune has no buffer")


def test_a_memory_without_room_for_every_class(cler, tmp_path):
    refused = cler("run", "xder", *QUICK, "--buffer", 3, "--replay-batch", 3, "--out", tmp_path / "none")
    assert_refused(refused, "--buffer 3 is too small for one image of each of 4 classes", tmp_path / "none")


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_a_failure_that_is_kept(cler, tmp_path):
    answer = cler("run", "finetune", *QUICK, "--lr", "1e30", "--out", "runs")
    assert answer.code == 1, answer
    assert "Traceback" not in answer.err
    assert re.search(
        r"finetune lr 1e\+30, seed 0 stopped: the loss was not finite at task 1, step \d+; try a lower lr or weight "
        r"\(lr 1e\+30\)\n",
        answer.err,
    )
    (result,) = results(tmp_path / "runs").values()
    assert result["complete"] is False
    assert "not finite at task 1, step" in result["failure"]


def test_a_failed_run_does_not_hide_the_others(cler, tmp_path):
    assert cler("run", "finetune", *QUICK, "--out", "runs").code == 0
    assert cler("run", "er", *QUICK, "--buffer", 20, "--lr", "1e30", "--out", "runs").code == 1
    table = cler("compare", "runs")
    assert table.code == 0
    assert "Finetune" in table.out
    assert re.search(r"left out: .*er_toy.*failed: the loss was not finite", table.err)
