"""The front door: `cler.train` with networks and methods of one's own, and what it gives back."""

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import cler
import own_parts
import toys
from cler.config.making import make_settings
from cler.config.registry import METHODS, TRACKERS
from cler.engine.events import Message
from cler.engine.train import train as train_runs
from cler.regularizers import REGULARIZERS
from cler.runs.build import build_run
from cler.tracking import Tracker

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def toy():
    toys.register()


def train(out, *arguments, **changes):
    usual = {"dataset": "toy", "tasks": 2, "buffer": 20, "device": "cpu", "workers": 1, "verbose": False, "out": out}
    return cler.train(*arguments, **usual | changes)


def network(n_classes):
    return cler.backbone(toys.SmallCnn(n_classes), tap="early", head="late", classifier="fc")


@pytest.mark.parametrize("regularizer", ["none", *REGULARIZERS])
def test_an_ordinary_network_with_batch_norm_trains_with_every_regularizer(regularizer, tmp_path):
    runs = train(tmp_path, "er-ace", regularizer, network=network, save_network=True)
    assert runs.settings["network"] == f"custom:{__name__}:network"
    assert runs.accuracy["class_il"].shape == (1, 2, 2)
    assert np.isnan(runs.accuracy["class_il"][0, 0, 1])
    trained = runs.network(0)
    norm = trained.module.early[1]
    assert int(norm.num_batches_tracked) > 0
    assert not torch.equal(norm.running_mean, torch.zeros(8))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    toys.register()
    return trained_here(tmp_path_factory.mktemp("undisturbed"))


def trained_here(folder):
    """Accuracies and weights of a run that only this process can train, for its network is a lambda."""
    runs = train(folder, "er-ace", "jigsaw", network=lambda n_classes: network(n_classes), save_network=True)
    weights = runs.network(0).state_dict()
    return runs.accuracy["class_il"].tobytes(), {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


@pytest.mark.parametrize("mode", toys.MODES)
def test_the_modes_of_the_caller_make_no_difference(mode, undisturbed, tmp_path):
    with toys.MODES[mode]():
        assert trained_here(tmp_path) == undisturbed


def test_a_kept_network_gives_the_logits_of_the_trained_run(tmp_path):
    runs = train(tmp_path, "er-ace", "jigsaw", width=4, seeds=[3], save_network=True)
    settings = make_settings(
        method="er-ace", regularizer="jigsaw", dataset="toy", tasks=2, buffer=20, width=4, precision="fp32"
    )
    run = build_run(settings, 3, toys.shades())
    train_runs([run])
    images = run.views.plain(toys.shades().test_images)
    run.method.network.eval()
    with torch.no_grad():
        assert torch.equal(runs.network(3)(images), run.method.logits(images))
    with pytest.raises(cler.UsageError, match="seed must be one of these runs' seeds, 3, not 4"):
        runs.network(4)
    with pytest.raises(cler.UsageError, match=r"unknown metric 'acuracy' .*; did you mean 'accuracy'\?$"):
        runs.metric("acuracy")
    with pytest.raises(cler.UsageError, match=r"unknown scenario 'class-il' \(known: class_il, task_il\)"):
        runs.metric("accuracy", "class-il")


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({"network": lambda n_classes: network(n_classes)}, "the network custom:.*"),
        ({"track": "of-a-notebook"}, "the tracker of-a-notebook"),
    ],
)
def test_results_stay_where_no_other_machine_could_make_them_again(tmp_path, monkeypatch, own, named):
    nothing = dict.fromkeys(("__init__", "log", "end"), lambda *_: None)
    tracker = type("Mine", (Tracker,), {"name": "of-a-notebook", "__module__": "__main__"} | nothing)
    monkeypatch.setitem(TRACKERS._entries, "of-a-notebook", tracker)
    train(tmp_path, "finetune", buffer=None, **own)
    monkeypatch.setattr("cler.runs.backends.slurm._find_slurm", lambda: None)
    with pytest.raises(cler.UsageError, match=f"{named}: no other machine can import this"):
        train(tmp_path, "finetune", buffer=None, on="slurm", redo=True, workers=None, **own)
    assert list(tmp_path.rglob("result.json"))


def test_a_network_that_was_not_kept(tmp_path):
    runs = train(tmp_path, "finetune", width=2, buffer=None)
    with pytest.raises(cler.UsageError, match="train with save_network=True, and redo=True"):
        runs.network(0)


def test_finished_runs_that_lack_the_network_that_is_asked_for_are_told(tmp_path, capsys):
    usual = {"width": 2, "buffer": None, "seeds": 2, "save_network": True, "verbose": True}
    train(tmp_path, "finetune", **usual | {"save_network": False})
    train(tmp_path, "finetune", **usual)
    assert "2 of them have no network.safetensors: --redo (in Python redo=True)" in capsys.readouterr().err
    train(tmp_path, "finetune", **usual, redo=True)
    train(tmp_path, "finetune", **usual)
    assert "network.safetensors" not in capsys.readouterr().err


@pytest.mark.parametrize("callbacks", [print, [print, 3]])
def test_callbacks_that_cannot_be_called_are_refused_before_training(callbacks, tmp_path):
    with pytest.raises(cler.UsageError, match=r"^callbacks must be a list of functions that take an event"):
        train(tmp_path, "finetune", callbacks=callbacks, buffer=None)
    assert not list(tmp_path.iterdir())


def test_an_array_in_the_place_of_a_dataset_is_answered_in_one_short_line(tmp_path):
    with pytest.raises(cler.UsageError, match=r"not a Tensor; cler\.data\.arrays") as refused:
        cler.train("finetune", dataset=torch.zeros(9, 3, 8, 8), out=tmp_path, verbose=False)
    assert len(str(refused.value)) < 200


def test_a_module_is_trained_in_this_process_from_its_weights_for_each_seed(tmp_path):
    module, heard = network(4), []
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    changes = {"network": module, "seeds": 2, "workers": 2, "save_network": True, "lr": 1e-30, "buffer": None}
    runs = train(tmp_path, "finetune", callbacks=[heard.append], **changes)
    told = [event.text for event in heard if isinstance(event, Message)]
    assert any("no other process can import this, so this one trains all runs in turn" in line for line in told), told
    for seed in (0, 1):
        weight = runs.network(seed).module.early[0].weight
        assert torch.allclose(weight, before["module.early.0.weight"], atol=1e-20)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_classes_of_ones_own_are_given_as_they_are_and_known_to_workers(tmp_path):
    images = np.random.default_rng(0).integers(256, size=(60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=images, y=np.arange(60) % 4)
    dataset = {"dataset": f"npz:{tmp_path / 'mine.npz'}", "data_dir": tmp_path}
    changes = dataset | {
        "weight": 0.5,
        "teacher": own_parts.Itself,
        "stream": own_parts.Backward,
        "width": 2,
        "seeds": 2,
        "workers": 2,
    }
    runs = train(tmp_path, "er", own_parts.Entropy, **changes)
    assert [runs.settings[name] for name in ("regularizer", "teacher", "stream")] == ["entropy", "itself", "backward"]
    assert own_parts.Itself.summary == own_parts.Backward.summary == ""  # for `cler methods`
    assert runs.label == "ER + entropy + itself"
    again = train(tmp_path, "er", "entropy", **changes | {"teacher": "itself", "stream": "backward"})
    assert again.results == runs.results
    for part in ("regularizer", "teacher", "stream"):
        with pytest.raises(cler.UsageError, match=rf"^{part} must be the name of a {part} or a subclass of cler\."):
            cler.train(**{part: toys.SmallCnn})


class Forgetful(cler.Method):
    """Finetuning that does not ask for the losses of regularizers."""

    name = "forgetful"

    def observe(self, batch):
        terms = {"cross-entropy": torch.nn.functional.cross_entropy(self.network(batch.images), batch.labels)}
        self.descend(terms)
        return terms


class Nameless(Forgetful):
    """Finetuning that gives its loss alone."""

    name = "nameless"

    def observe(self, batch):
        loss = torch.nn.functional.cross_entropy(self.network(batch.images), batch.labels)
        self.descend(loss)
        return {"cross-entropy": loss}


def test_a_method_that_leaves_out_its_regularizer_is_not_credited_with_it(tmp_path):
    usual = {"width": 2, "buffer": None}
    assert len(train(tmp_path, Forgetful, **usual)) == 1
    with pytest.raises(cler.UsageError, match=r"^observe of forgetful leaves out the loss of jigsaw: add the losses"):
        train(tmp_path, Forgetful, "jigsaw", **usual)
    with pytest.raises(cler.UsageError, match=r"^the terms of a loss have names, as .*: a Tensor has none$"):
        train(tmp_path, Nameless, **usual)


SCRIPT = """
import torch
from torch import nn
import cler, toys

torch.set_num_threads(1)
toys.register()
print("the program runs")
notebook = {"__name__": "__main__", "nn": nn, "toys": toys}
exec("class Net(toys.SmallCnn):\\n    pass\\n", notebook)
make = lambda n: cler.backbone(notebook["Net"](n), tap="early", head="late", classifier="fc")


class Mine(cler.Method):
    name = "mine"
    about = cler.methods.base.About(title="Mine", summary="finetuning, in a script")

    def observe(self, batch):
        terms = {"cross-entropy": nn.functional.cross_entropy(self.network(batch.images), batch.labels)}
        self.descend(terms)
        return terms


runs = cler.train(Mine, network=make, dataset="toy", tasks=2, seeds=2, workers=2, device="cpu")
print(len(runs), runs.accuracy["class_il"].shape)
"""


def run_script(folder, text):
    (folder / "script.py").write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(TESTS), str(Path(cler.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "300", "TERM": "dumb"}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_script_without_a_guard_with_a_lambda_and_a_class_of_a_notebook(tmp_path):
    done = run_script(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the program runs\n2 (2, 2, 2)\n"  # once: no worker ran it again
    line = "the method mine, the network custom:__main__:<lambda>: no other process can import this, so this one trains"
    assert line in " ".join(done.stderr.split())


METHOD = """
import torch.nn.functional as F
import cler
from cler.methods.base import About


class Edited(cler.Method):
    name = "edited"
    about = About(title="Edited", summary="finetuning by a file that changes")

    def observe(self, batch):
        terms = {"cross-entropy": FACTOR * F.cross_entropy(self.network(batch.images), batch.labels)}
        self.descend(terms)
        return terms
"""


def test_an_edited_method_is_not_answered_with_old_results(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))

    def call(factor, **changes):
        (tmp_path / "edited_method.py").write_text(METHOD.replace("FACTOR", factor))
        module = importlib.import_module("edited_method")
        train(tmp_path / "runs", importlib.reload(module).Edited, width=2, buffer=None, **{"verbose": True} | changes)
        (path,) = (tmp_path / "runs").rglob("result.json")
        return " ".join(capsys.readouterr().err.split()), json.loads(path.read_text())

    told, first = call("1")
    assert "was made by" not in told
    told, again = call("(  # a comment\n1)")
    assert "1 of 1 runs are already in" in told
    assert "was made by" not in told
    assert again == first
    told, kept = call("2")
    assert "was made by edited revision" in told
    assert "repeats it" in told
    assert kept == first
    with pytest.warns(UserWarning, match="was made by edited revision .* repeats it") as warned:
        call("2", verbose=False)
    assert warned[0].filename == __file__
    _, redone = call("2", redo=True)
    assert redone["revisions"]["method"] != first["revisions"]["method"]
    told, _ = call("2")
    assert "was made by" not in told


def test_results_without_a_run_that_can_be_read_say_why(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(cler.UsageError, match=r"^there is no complete run in .*; skipped: .*result\.json is not JSON"):
        cler.results(tmp_path)


def test_runs_are_compared_with_any_others(tmp_path):
    er, er_ace = (train(tmp_path, name, seeds=2, width=2) for name in ("er", "er-ace"))
    before, after = (each.metric("accuracy").mean() for each in (er, er_ace))
    (_, row) = cler.compare(er_ace, against=er)
    assert row.label == "ER-ACE"
    assert row.gain["class_il"].points == pytest.approx(after - before)
    assert "minus that of ER-ACE," in " ".join(repr(cler.compare(er, er_ace, against="er-ace")).split())
    with pytest.raises(
        cler.UsageError, match="against must be one of those that are compared, er, er-ace, not 'joint'"
    ):
        cler.compare(er, er_ace, against="joint")


def test_a_misspelled_setting_is_told_its_name_and_only_runs_are_compared():
    with pytest.raises(cler.UsageError, match=r"unknown setting 'bufer': er-ace has none .*; did you mean 'buffer'\?$"):
        cler.train("er-ace", bufer=3)
    with pytest.raises(cler.UsageError, match=r"unknown setting 'alfa': derpp only has alpha, beta .* 'alpha'\?$"):
        cler.train("derpp", alfa=3)
    with pytest.raises(cler.UsageError, match=r"'eta': er-ace has none .*; the method xder has one of that name$"):
        cler.train("er-ace", eta=0.5)
    for name, meant in (("seed", "seeds"), ("num_workers", "workers"), ("output", "out")):
        with pytest.raises(cler.UsageError, match=rf"unknown setting '{name}': .*; did you mean '{meant}'\?$"):
            cler.train("er-ace", **{name: 1})
    with pytest.raises(cler.UsageError, match="unknown network 'resnet50'"):
        cler.train("er-ace", network="resnet50", width=2)
    with pytest.raises(cler.UsageError, match=r"^width 2 has no effect on a network of your own: leave it out$"):
        cler.train("er-ace", network=cler.ResNet18, width=2)
    for name in ("out", "data_dir"):
        with pytest.raises(cler.UsageError, match=f"^{name} must be a path, not 3$"):
            cler.train("er-ace", **{name: 3})
    for given in ("runs", []):
        with pytest.raises(
            cler.UsageError, match=r"give the runs to compare, .*cler.compare\(\*runs\) for a list; cler.results"
        ):
            cler.compare(given)


class Bare(cler.Regularizer):
    """It has no way to be made."""


class Narrow(cler.Regularizer):
    """It does not take its weight."""

    def __init__(self, network):
        super().__init__()


class Lossless(cler.Regularizer):
    """It has no loss."""

    def __init__(self, network, *, weight, **_):
        super().__init__()


class Idle(cler.Teacher):
    """It does not follow the network."""

    name = "idle"


class Untaught(own_parts.Itself):
    """It does not take its options."""

    name = "untaught"

    def __init__(self, network):
        pass


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"regularizer": Bare}, r"__init__ of Bare has to take \(network, \*, weight, .*: it has none of its own"),
        ({"regularizer": Narrow}, r"__init__ of Narrow has to take \(network, \*, weight, .* argument 'weight'"),
        ({"regularizer": Lossless}, "Lossless has to define loss"),
        ({"teacher": Idle}, "Idle has to define after_step"),
        ({"teacher": Untaught}, r"__init__ of Untaught has to take \(network, options\): too many positional"),
        ({"regularizer": ["jigsaw", "rotation"]}, "regularizer must name several as 'jigsaw\\+rotation', not as "),
    ],
)
def test_a_part_that_lacks_something_is_told_what(tmp_path, parts, says):
    with pytest.raises(cler.UsageError, match=f"^{says}"):
        train(tmp_path, "finetune", buffer=None, width=1, **parts)


def test_a_scenario_that_is_not_known_is_told_the_known_ones(tmp_path):
    accuracy = train(tmp_path, "finetune", buffer=None, width=1).accuracy
    assert set(accuracy) == {"class_il", "task_il"}
    with pytest.raises(KeyError, match=r"unknown scenario 'class-il' \(known: class_il, task_il\); did you mean"):
        accuracy["class-il"]


def test_a_stream_is_offered_like_the_other_parts():
    assert issubclass(own_parts.Backward, cler.Stream)


def test_the_help_of_a_method_says_what_its_class_may_say_and_what_it_finds():
    for name in ("replays", "task_free", "teachable", "smallest_batch", "Options"):
        assert f"`{name}" in cler.Method.__doc__
    for name in ("buffer", "network", "views", "options", "setup"):
        assert f"`self.{name}`" in cler.Method.__doc__
