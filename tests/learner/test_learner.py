import copy
import doctest
import gc
import json
import os
import pickle
import signal
import struct
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import sklearn.base
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import cler
from cler.errors import UsageError
from cler.learner import Learner, NotFittedError, fileformat, inputs
from cler.learner.classifier import Classifier
from cler.learner.core import Core
from cler.learner.worker import Worker
from cler.memory import Reservoir
from cler.methods import METHODS
from cler.nets import NETWORKS, Network
from cler.promises.toy import small_network
from cler.regularizers import REGULARIZERS
from cler.regularizers.base import Entry, Regularizer
from cler.teachers import TEACHERS
from toys import MODES, default_dtype, make_shallow

SIZE = 8
TASK_FREE = [name for name, method in METHODS.items() if method.task_free]


def colors(count, n_classes=3, seed=0, size=SIZE):
    """Images (N, 3, size, size) of brightly colored noise, with the number of the color as label."""
    generator = np.random.default_rng(seed)
    palette = np.random.default_rng(99).integers(0, 200, (n_classes, 3, 1, 1))
    labels = generator.permutation(np.arange(count) % n_classes)
    return (palette[labels] + generator.integers(0, 40, (count, 3, size, size))).astype(np.uint8), labels


def small(method="er-ace", regularizer="jigsaw", **changes):
    options = {"image_size": SIZE, "width": 4, "buffer": 20, "device": "cpu"}
    return Learner(method, regularizer, **options | changes)


def chosen(optimizer):
    """The optimizer of this name, or SGD with momentum and weight decay."""
    return {"sgd_momentum": 0.9, "weight_decay": 1e-3} if optimizer == "momentum" else {"optimizer": optimizer}


def quick(method):
    """Options with which it takes less time, or fewer images."""
    return {"cope": {"inner": 1}, "derpp": {"beta": 1.0}}.get(method, {})


IMAGES, LABELS = colors(60)


@pytest.fixture(scope="module", autouse=True)
def quick_networks():
    with pytest.MonkeyPatch.context() as patch:
        make_shallow(patch)
        yield


@pytest.fixture(scope="module")
def fitted():
    """One that has learned; tests that go on with it take a copy."""
    return small().partial_fit(IMAGES[:44], LABELS[:44])


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "learner.safetensors")
    return tmp_path / "learner.safetensors"


def same(one, other, images=IMAGES):
    return np.array_equal(one.predict_proba(images), other.predict_proba(images))


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TASK_FREE)
def test_learns_colors(method):
    usual = {"image_size": SIZE, "buffer": 20, "device": "cpu", **quick(method)}
    count = 400 if method == "ccl-dc" else 1000  # its step takes ten times as long
    learner = Learner(method, "jigsaw", network=small_network, lr=0.05, **usual).partial_fit(*colors(count))
    assert learner.score(*colors(60, seed=1)) > 0.8  # chance: 0.33


def test_learns_scikit_learns_digits_in_one_pass():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].reshape(-1, 8, 8) / 16, labels[order]
    learner = Learner(regularizer="rotation", image_size=16, channels=1, width=8, lr=0.05, augment="none", device="cpu")
    learner.partial_fit(images[:1500], labels[:1500])
    assert learner.score(images[1500:], labels[1500:]) > 0.85  # mirrored and cropped digits would not do


def test_remembers_a_class_that_comes_no_more():
    images, labels = colors(450)
    first = labels == 0
    scores = {}
    for method in ("er-ace", "finetune"):
        learner = small(method, "none", lr=0.03)
        learner.partial_fit(images[first], labels[first]).partial_fit(images[~first], labels[~first])
        scores[method] = learner.score(images[first], labels[first])
    assert scores["er-ace"] > 0.7
    assert scores["finetune"] < 0.3


@pytest.mark.parametrize(
    ("method", "regularizer"), [("er-ace", "jigsaw"), ("cope", "none"), ("finetune", "barlow-twins")]
)
def test_how_the_stream_is_cut_makes_no_difference(method, regularizer):
    at_once = small(method, regularizer, **quick(method)).partial_fit(IMAGES, LABELS)
    for size in (1, 23):
        cut = small(method, regularizer, **quick(method))
        for start in range(0, len(LABELS), size):
            cut.partial_fit(IMAGES[start : start + size], LABELS[start : start + size])
        assert same(at_once, cut)
        assert cut.n_seen_ == 60


def test_what_waits_is_a_copy():
    """Callers may fill the same array again and again."""
    reused = torch.from_numpy(IMAGES[:5].copy())
    learner = small().partial_fit(reused, LABELS[:5])
    reused.copy_(torch.from_numpy(IMAGES[5:10]))
    learner.partial_fit(reused, LABELS[5:10])
    assert same(learner, small().partial_fit(IMAGES[:10], LABELS[:10]))
    learner.partial_fit(IMAGES[:55], LABELS[:55])
    assert learner._core.waiting[0].untyped_storage().nbytes() == IMAGES[:5].nbytes  # and not all that came with them


def test_no_images_change_nothing(fitted):
    seen, before = fitted.n_seen_, fitted.predict_proba(IMAGES)
    fitted.partial_fit(IMAGES[:0], [])
    fitted.partial_fit([], [])
    assert fitted.n_seen_ == seen
    assert np.array_equal(fitted.predict_proba(IMAGES), before)
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba(IMAGES[:0]).shape == (0, 3)


def test_fit_begins_from_nothing(fitted):
    learner = small().partial_fit(IMAGES, LABELS)
    assert same(learner.fit(IMAGES[:44], LABELS[:44]), fitted)
    assert learner.n_seen_ == 44


def test_replay_begins_when_the_buffer_holds_a_replay_batch():
    learner = small(replay_batch=15)
    tasks = []
    for start in range(0, 40, 10):
        learner.partial_fit(IMAGES[start : start + 10], LABELS[start : start + 10])
        tasks.append(learner._core.method.task)
    assert tasks == [0, 0, 1, 1]


def test_a_loss_that_is_not_finite_is_said():
    learner = small(lr=1e20)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"not finite after 20 images, .* it was never saved; .* lower lr"):
            learner.partial_fit(IMAGES, LABELS)
    assert learner.n_seen_ == 20


def test_what_has_diverged_is_not_used_or_kept(tmp_path):
    learner = small().partial_fit(IMAGES, LABELS)
    with torch.no_grad():
        learner._core.method.network.classifier.weight.fill_(3e38)  # finite, but not what comes of it
    path = tmp_path / "learner.safetensors"
    for use in (lambda: learner.predict(IMAGES), lambda: learner.save(path), lambda: learner.export(path)):
        with pytest.raises(UsageError, match=r"probabilities are not finite after 60 images, .* lower lr"):
            use()
    with torch.no_grad():
        learner._core.method.network.classifier.bias[0] = torch.nan
    with pytest.raises(UsageError, match=r"weights are not finite after 60 images"):
        learner.save(path)
    assert not path.exists()


def fail(*_):
    raise RuntimeError("out of memory")


def content(learner):
    """All that a learner is, to the bit."""
    tensors, about = learner._worker(learner._core.copied_content)
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, about


class EndedError(Exception):
    """What a handler of somebody's own raises."""


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_call_ends_between_two_steps(number, times, handled, monkeypatch, tmp_path):
    def end(*_):
        raise EndedError

    handled(number, end)
    learner, add = small().partial_fit(IMAGES[:14], LABELS[:14]), Reservoir.add

    def in_the_third_step(self, *batch):
        for _ in range(times if int(self.offered) == 20 else 0):
            os.kill(os.getpid(), number)
            time.sleep(0.01)  # until the next one, so that they do not count as one
        add(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Reservoir, "add", in_the_third_step)  # weights are those after it, but not the buffer
        with pytest.raises(EndedError):
            learner.partial_fit(IMAGES[14:], LABELS[14:])
    assert learner.n_seen_ == 30
    assert content(learner) == content(small().partial_fit(IMAGES[:30], LABELS[:30]))
    learner.save(tmp_path / "learner.safetensors")
    alone = content(small().partial_fit(IMAGES, LABELS))
    for each in (learner, Learner.load(tmp_path / "learner.safetensors")):
        assert content(each.partial_fit(IMAGES[30:], LABELS[30:])) == alone


@pytest.fixture
def handled(monkeypatch):
    """Have signals handled in another way."""
    before = {}

    def handle(number, handler):
        before[number] = signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


def test_interrupted_at_any_moment_and_continued_it_learns_the_same(handled):
    def end(*_):
        raise EndedError

    handled(signal.SIGVTALRM, end)  # by the time that it computes
    images, labels = colors(200)
    alone = content(small("er-ace", "none").partial_fit(images, labels))
    learner, interrupted, seconds = small("er-ace", "none"), 0, 1e-4
    while (seen := learner.n_seen_) < 200:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            learner.partial_fit(images[seen:], labels[seen:])
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except EndedError:
            interrupted, seconds = interrupted + 1, 1.2 * seconds
    assert interrupted
    assert content(learner) == alone


def test_a_signal_handler_may_save_what_is_being_learned(handled, monkeypatch, tmp_path):
    learner, add = small().partial_fit(IMAGES[:10], LABELS[:10]), Reservoir.add
    handled(signal.SIGTERM, lambda *_: learner.save(tmp_path / "learner.safetensors"))

    def in_the_third_step(self, *batch):
        if int(self.offered) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        add(self, *batch)

    monkeypatch.setattr(Reservoir, "add", in_the_third_step)
    learner.partial_fit(IMAGES[10:], LABELS[10:])
    saved = Learner.load(tmp_path / "learner.safetensors")
    assert 30 <= saved.n_seen_ < 60
    assert content(saved.partial_fit(IMAGES[saved.n_seen_ :], LABELS[saved.n_seen_ :])) == content(learner)


def test_a_signal_handler_may_save_while_the_learner_is_being_saved(fitted, handled, monkeypatch, tmp_path):
    path, sync, saved = tmp_path / "learner.safetensors", os.fsync, []

    def handler(*_):
        saved.append(True)
        fitted.save(path)

    def interrupted(descriptor):
        if not saved:
            os.kill(os.getpid(), signal.SIGTERM)
        sync(descriptor)

    handled(signal.SIGTERM, handler)
    monkeypatch.setattr(os, "fsync", interrupted)
    fitted.save(path)
    assert saved == [True]
    assert same(Learner.load(path), fitted)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


CHANGES = {
    "partial_fit": lambda learner: learner.partial_fit(IMAGES[:10], LABELS[:10]),
    "fit": lambda learner: learner.fit(IMAGES[:10], LABELS[:10]),
    "set_params": lambda learner: learner.set_params(lr=0.1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_signal_handler_may_not_change_what_is_being_learned(change, handled, monkeypatch):
    learner, add, told = small().partial_fit(IMAGES[:10], LABELS[:10]), Reservoir.add, []

    def handler(*_):
        with pytest.raises(UsageError, match="in the middle of a call that was interrupted by this one") as caught:
            CHANGES[change](learner)
        told.append(str(caught.value))

    handled(signal.SIGTERM, handler)

    def in_the_third_step(self, *batch):
        if int(self.offered) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        add(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Reservoir, "add", in_the_third_step)
        learner.partial_fit(IMAGES[10:], LABELS[10:])
    assert len(told) == 1
    assert content(learner) == content(small().partial_fit(IMAGES, LABELS))


def test_a_step_cannot_use_its_own_learner(monkeypatch):
    learner, add = small(), Reservoir.add
    uses = (*CHANGES.values(), lambda learner: learner.predict(IMAGES), lambda learner: learner.n_seen_)

    def use(self, *batch):
        for each in uses:
            with pytest.raises(UsageError, match="cannot be used inside a step of its own"):
                each(learner)
        add(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Reservoir, "add", use)
        learner.partial_fit(IMAGES[:20], LABELS[:20])
    assert content(learner) == content(small().partial_fit(IMAGES[:20], LABELS[:20]))


def test_an_interrupted_prediction_does_not_go_on(fitted, handled, monkeypatch):
    classified, forward = [], Classifier.forward

    def interrupt(self, pixels):
        classified.append(len(pixels))
        os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, pixels)

    def end(*_):
        raise EndedError

    handled(signal.SIGTERM, end)
    monkeypatch.setattr("cler.learner.core.images_at_once", lambda *_, **__: 1)
    before = content(fitted)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "forward", interrupt)
        with pytest.raises(EndedError):
            fitted.predict(np.concatenate([IMAGES] * 20))
    assert len(classified) < 1200
    assert fitted._core.method.network.training
    assert content(fitted) == before


def test_a_first_step_that_fails_leaves_no_trace(monkeypatch, tmp_path):
    learner = small().partial_fit(IMAGES[:4], LABELS[:4])
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["er-ace"], "observe", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            learner.partial_fit(IMAGES[4:], [99] * 56)
    assert learner.n_seen_ == 4
    assert not hasattr(learner, "classes_")
    learner.save(tmp_path / "learner.safetensors")
    assert Learner.load(tmp_path / "learner.safetensors").n_seen_ == 4
    learner.partial_fit(IMAGES[4:], LABELS[4:])
    assert content(learner) == content(small().partial_fit(IMAGES, LABELS))


def test_a_step_that_fails_on_a_new_class_leaves_no_room_for_it(monkeypatch, tmp_path):
    learner = small().partial_fit(*colors(20, 16))
    before = content(learner)
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["er-ace"], "observe", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            learner.partial_fit(IMAGES[:10], [99] * 10)
    assert content(learner) == before
    learner.save(tmp_path / "learner.safetensors")
    for each in (Learner.load(tmp_path / "learner.safetensors"), pickle.loads(pickle.dumps(learner))):
        assert same(each, learner)


@pytest.mark.parametrize("saved", [False, True])
def test_after_an_error_inside_a_step_it_says_from_where_one_can_go_on(saved, monkeypatch, tmp_path):
    learner, path = small().partial_fit(IMAGES[:14], LABELS[:14]), tmp_path / "learner.safetensors"
    if saved:
        learner.save(path)
    remedy = f"load its last save, {path} (14 images)" if saved else "it was never saved"
    message = f"this learner cannot go on: a step failed after 24 images, RuntimeError: out of memory; {remedy}"
    learner.partial_fit(IMAGES[14:24], LABELS[14:24])
    with monkeypatch.context() as patch:
        patch.setattr(Reservoir, "add", fail)  # after the weights have changed
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            learner.partial_fit(IMAGES[24:], LABELS[24:])
    assert caught.value.__notes__ == [message]
    assert caught.traceback[-1].name == "fail"  # where it happened
    uses = (
        lambda: learner.partial_fit(IMAGES[:1], LABELS[:1]),
        lambda: learner.predict(IMAGES),
        lambda: learner.save(path),
        lambda: learner.export(tmp_path / "classifier.pt2"),
        lambda: copy.copy(learner),
    )
    for use in uses:
        with pytest.raises(UsageError) as refused:
            use()
        assert str(refused.value) == message
    assert learner.n_seen_ == 24
    alone = content(small().partial_fit(IMAGES, LABELS))
    if saved:
        assert content(Learner.load(path).partial_fit(IMAGES[14:], LABELS[14:])) == alone
    assert content(learner.fit(IMAGES, LABELS)) == alone


def test_a_learner_of_a_gpu_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "learner.safetensors"
    learner = small().partial_fit(IMAGES, LABELS)
    tensors, about = learner._core.content()
    there = about | {"parameters": about["parameters"] | {"device": "cuda"}, "device": "cuda"}
    path.write_bytes(fileformat.encode(tensors, there))
    with pytest.raises(UsageError, match=r"made for a GPU, and torch sees none here; with device='cpu' it can"):
        Learner.load(path)
    unpickled = Learner.__new__(Learner)
    unpickled.__setstate__((tensors, there))
    for each in (Learner.load(path, device="cpu"), unpickled):
        assert np.array_equal(each.predict_proba(IMAGES), learner.predict_proba(IMAGES))


# -- classes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "optimizer"), [("er-ace", "adam"), ("cope", "adamw"), ("cope", "momentum")])
def test_growing_keeps_what_it_knows(method, optimizer):
    n_classes, changes = 16, chosen(optimizer)
    learner = small(method, **quick(method), **changes).partial_fit(*colors(80, n_classes))
    before, room = learner.predict_proba(IMAGES), learner._core.method.n_classes
    remembered = learner._core.method.buffer.labels.clone()
    assert room == n_classes
    assert learner._core.make_room(n_classes + 1).n_classes == 2 * room
    assert np.array_equal(learner.predict_proba(IMAGES), before)
    assert torch.equal(learner._core.method.buffer.labels, remembered)
    learner.partial_fit(*colors(80, 70))
    assert len(learner.classes_) == 70
    assert learner.predict_proba(IMAGES).shape == (60, 70)


def test_probabilities_are_of_the_classes_seen():
    learner = small(classes=["a", "b", "c", "d", "e"])
    learner.partial_fit(IMAGES[:20], [["c", "a"][i % 2] for i in range(20)])
    assert learner.classes_.tolist() == ["a", "c"]
    probabilities = learner.predict_proba(IMAGES)
    assert probabilities.shape == (60, 2)
    assert np.allclose(probabilities.sum(1), 1)
    assert set(learner.predict(IMAGES)) <= {"c", "a"}


def test_classes_are_sorted_whatever_comes_first():
    """As the scorers of scikit-learn take for granted."""
    images, labels = colors(300, 2)
    start = labels.argmax()
    images, labels = images[start:], labels[start:]
    learner = small(lr=0.03).partial_fit(images, labels)
    assert list(learner._core.numbers) == [1, 0]
    assert learner.classes_.tolist() == [0, 1]
    assert learner.score(images, labels) > 0.8
    assert np.mean((learner.predict_proba(images)[:, 1] > 0.5) == labels) == learner.score(images, labels)


def test_a_class_counts_when_it_is_learned_not_when_it_waits():
    learner = small().partial_fit(IMAGES[:10], ["a"] * 10).partial_fit(IMAGES[10:15], ["b"] * 5)
    assert learner.classes_.tolist() == ["a"]
    assert learner.n_seen_ == 15
    assert learner.partial_fit(IMAGES[15:20], ["b"] * 5).classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "labels",
    [[3, 7] * 10, np.array([3, 7] * 10, dtype=np.uint8), torch.tensor([3, 7] * 10), [np.int64(3), np.int64(7)] * 10],
)
def test_labels_may_be_any_whole_numbers(labels):
    learner = small().partial_fit(IMAGES[:20], labels)
    assert learner.classes_.tolist() == [3, 7]
    assert learner.predict(IMAGES).dtype.kind == "i"


@pytest.mark.parametrize("kinds", [np.array([5, 2**63 + 11, 2**63 + 12], np.uint64), [-1, 2**63], ["a", "a\0"]])
def test_labels_that_numpy_would_round_stay_what_they_are(kinds):
    labels = [kinds[i % len(kinds)] for i in range(20)]
    learner = small().fit(IMAGES[:20], labels)
    assert learner.classes_.tolist() == sorted(np.array(kinds).tolist() if isinstance(kinds, np.ndarray) else kinds)
    assert {type(label) for label in learner.predict(IMAGES[:20]).tolist()} <= {int, str}


def test_a_fit_that_is_refused_forgets_nothing():
    learner = small().fit(IMAGES[:20], [0, 1] * 10)
    with pytest.raises(UsageError, match="a label for each image"):
        learner.fit(IMAGES[:20], [0, 1])
    assert learner.n_seen_ == 20
    assert learner.predict(IMAGES[:5]).tolist()


def test_others_may_predict_while_one_fits():
    learner, wrong, stop = small().fit(IMAGES[:20], [0, 1] * 10), [], threading.Event()

    def predict():
        while not stop.is_set():
            try:
                learner.predict(IMAGES[:4])
            except NotFittedError:
                pass
            except Exception as error:
                wrong.append(error)

    others = [threading.Thread(target=predict) for _ in range(2)]
    for thread in others:
        thread.start()
    for _ in range(10):
        learner.fit(IMAGES[:20], [0, 1] * 10)
    stop.set()
    for thread in others:
        thread.join()
    assert not wrong


def test_a_call_that_began_before_a_fit_answers_from_before_it(monkeypatch):
    learner = small().fit(IMAGES[:20], [0, 1] * 10)
    before = learner.predict_proba(IMAGES[:4])
    monkeypatch.setattr("cler.learner.learner.to_pixels", fitting_meanwhile(learner, inputs.to_pixels))
    assert np.array_equal(learner.predict_proba(IMAGES[:4]), before)
    assert learner.classes_.tolist() == ["a", "b", "c"]


def fitting_meanwhile(learner, read):
    """Reads images; the first time another thread fits the learner, to the end, before they are given back."""
    threads = [threading.Thread(target=learner.fit, args=(IMAGES[:30], ["a", "b", "c"] * 10))]

    def reading(images, **size):
        if threads:
            thread = threads.pop()
            thread.start()
            thread.join()
        return read(images, **size)

    return reading


def test_parameters_do_not_change_while_another_thread_learns(monkeypatch):
    learner, inside, go_on, learn = small(), threading.Event(), threading.Event(), Core.learn

    def waiting(self, *batch):
        inside.set()
        go_on.wait()
        learn(self, *batch)

    monkeypatch.setattr(Core, "learn", waiting)
    thread = threading.Thread(target=learner.partial_fit, args=(IMAGES[:10], LABELS[:10]))
    thread.start()
    inside.wait()
    threading.Timer(0.2, go_on.set).start()
    with pytest.raises(UsageError, match="make a new one"):  # it waits for the call, and nothing learned is lost
        learner.set_params(lr=0.5)
    thread.join()
    assert (learner.lr, learner.n_seen_) == (0.01, 10)


def test_labels_of_two_kinds_are_refused():
    learner = small()
    with pytest.raises(UsageError, match=r"all strings or all whole numbers, but there are 'a' and 1$"):
        learner.partial_fit(IMAGES[:4], ["a", 1, "1", "a"])
    learner.partial_fit(IMAGES[:3], LABELS[:3])
    with pytest.raises(UsageError, match=r"but there are \d and '1'$"):  # those that wait count
        learner.partial_fit(IMAGES[:1], ["1"])
    learner.partial_fit(IMAGES[3:20], LABELS[3:20])
    with pytest.raises(UsageError, match=r"but there are \d and '1'$"):
        learner.partial_fit(IMAGES[:1], ["1"])
    assert learner.n_seen_ == 20
    with pytest.raises(UsageError, match=r"but there are 1 and '1'$"):
        small(classes=[1, "1"])


def test_an_image_is_judged_by_itself(fitted):
    """In evaluation: neither the other images of the batch nor how often it is asked make a difference."""
    at_once = fitted.predict_proba(IMAGES)
    assert np.allclose(np.concatenate([fitted.predict_proba(each[None]) for each in IMAGES]), at_once, atol=1e-5)
    assert np.array_equal(fitted.predict_proba(IMAGES), at_once)


def test_many_images_are_classified_a_few_at_a_time(fitted, monkeypatch):
    sizes, forward = [], Classifier.forward
    monkeypatch.setattr(Classifier, "forward", lambda self, pixels: sizes.append(len(pixels)) or forward(self, pixels))
    answers = fitted.predict_proba(np.concatenate([IMAGES] * 3))
    assert sizes == [64, 64, 52]
    assert np.allclose(answers, np.concatenate([fitted.predict_proba(IMAGES)] * 3), atol=1e-6)


def test_score_counts_strange_labels_as_mistakes(fitted):
    assert fitted.score(IMAGES, ["never seen"] * 60) == 0
    assert fitted.score(IMAGES, fitted.predict(IMAGES)) == 1


# -- images ------------------------------------------------------------------------------------------------------------

HEIGHT_WIDTH_CHANNELS = IMAGES.transpose(0, 2, 3, 1)


@pytest.mark.parametrize(
    "images",
    [
        torch.from_numpy(IMAGES),
        HEIGHT_WIDTH_CHANNELS,
        IMAGES / 255,
        torch.from_numpy(IMAGES / 255).half().double().clamp(0, 1),
        IMAGES[:, :, ::-1][:, :, ::-1],
        list(IMAGES),
        [Image.fromarray(each) for each in HEIGHT_WIDTH_CHANNELS],
        [Image.fromarray(each).convert("RGBA") for each in HEIGHT_WIDTH_CHANNELS],
        tuple(torch.from_numpy(each / 255) for each in HEIGHT_WIDTH_CHANNELS),
    ],
    ids=["tensor", "NHWC", "float", "half", "negative strides", "list", "PIL", "RGBA", "float tensors"],
)
def test_images_may_come_in_many_forms(images, fitted):
    assert np.array_equal(fitted.predict_proba(images), fitted.predict_proba(IMAGES))


def test_images_of_other_sizes_are_scaled(fitted):
    large = IMAGES.repeat(3, axis=2).repeat(3, axis=3)
    apart = np.concatenate([fitted.predict_proba(IMAGES[:30]), fitted.predict_proba(large[30:])])
    assert np.allclose(fitted.predict_proba([*IMAGES[:30], *large[30:]]), apart, atol=1e-6)
    assert np.mean(fitted.predict(large) == fitted.predict(IMAGES)) > 0.9
    flat = np.full((1, 3, 50, 20), 77, dtype=np.uint8)
    assert np.array_equal(fitted.predict_proba(flat), fitted.predict_proba(flat[:, :, :SIZE, :SIZE]))


def test_a_large_picture_is_scaled_like_an_array(fitted):
    generator = np.random.default_rng(0)
    coarse = [Image.fromarray(generator.integers(0, 256, (9, 7, 3), dtype=np.uint8)) for _ in range(4)]
    pictures = [each.resize((311, 204), Image.Resampling.BICUBIC) for each in coarse]
    arrays = [np.asarray(each) for each in pictures]
    assert np.allclose(fitted.predict_proba(pictures), fitted.predict_proba(arrays), atol=0.02)


def test_a_photo_is_turned_as_its_exif_data_says(tmp_path, fitted):
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = Image.fromarray(HEIGHT_WIDTH_CHANNELS[0])
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "photo.png", exif=exif)
    with Image.open(tmp_path / "photo.png") as photo:
        assert np.array_equal(fitted.predict_proba([photo]), fitted.predict_proba([upright]))


def test_gray_images():
    gray = IMAGES[:, :1]
    learner = small(channels=1, mean=0.4).partial_fit(gray, LABELS)
    expected = learner.predict_proba(gray)
    pictures = [Image.fromarray(each[0]) for each in gray]
    for other in (gray[:, 0], gray.transpose(0, 2, 3, 1), pictures):
        assert np.array_equal(learner.predict_proba(other), expected)


@pytest.mark.parametrize("kind", ["<u2", ">u2"])
def test_gray_pictures_of_16_bits(kind, fitted):
    gray = IMAGES[:5, 0]
    deep = [Image.fromarray((each.astype(int) * 257 + 100).astype(kind)) for each in gray]
    assert {each.mode for each in deep} == {"I;16" if kind == "<u2" else "I;16B"}
    assert np.array_equal(fitted.predict_proba(deep), fitted.predict_proba([Image.fromarray(each) for each in gray]))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES.astype(np.int64), "uint8 from 0 to 255, or floats from 0 to 1, not int64"),
        (IMAGES.astype(float), "float images must lie from 0 to 1, these go from"),
        (np.full((2, 3, 8, 8), np.nan), "must lie from 0 to 1"),
        (IMAGES[0], "N×3×H×W or N×H×W×3, not 3×8×8$"),
        (IMAGES[:, 0], "N×3×H×W or N×H×W×3, not 60×8×8; a learner of gray images has channels=1$"),
        (IMAGES[:, :1], "not 60×1×8×8; a learner of gray images has channels=1$"),
        (IMAGES[:, :2], "not 60×2×8×8"),
        (IMAGES[:, :, :0], "not 60×3×0×8"),
        (Image.new("RGB", (8, 8)), "in a list"),
        ([Image.new("RGB", (0, 99))], "not 1×99×0×3"),
        ([Image.new("I", (8, 8))], "mode I does not say what is white"),
        ([Image.new("F", (8, 8))], "mode F does not say what is white"),
        (IMAGES.astype(np.uint16), "not uint16"),
        ("cat.png", "not str; open a file with PIL.Image.open"),
        ([Path("cat.png")], "PIL.Image.open"),
        (iter(IMAGES), "make it a list"),
        ([["a", "b"]], "not list"),
        (np.array([None]), "not object"),
        (torch.zeros(2, 3, 8, 8).to_sparse(), "dense tensors, not in a sparse_coo one"),
        ([torch.zeros(3, 8, 8).to_sparse()], "dense tensors, not in a sparse_coo one"),
        (torch.zeros(2, 3, 8, 8, device="meta"), "dense tensors, not in a meta one"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.float8_e4m3fn), "not float8_e4m3fn"),
    ],
)
def test_images_that_cannot_be_meant(images, message, fitted):
    with pytest.raises(UsageError, match=message):
        fitted.predict(images)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], "a label for each image, not 2 for 3"),
        ("cat", "a list with one label for each image"),
        (7, "a list with one label for each image"),
        (np.array(7), "a list with one label for each image"),
        ([0.5] * 3, "string or a whole number, not 0.5"),
        ([True] * 3, "string or a whole number, not True"),
        ([[1], [2], [3]], r"string or a whole number, not \[1\]"),
        (np.zeros((3, 2)), "string or a whole number"),
        ([10**5000] * 3, "must fit into 64 bits"),
        ([-(2**63) - 1] * 3, "must fit into 64 bits"),
        (["a" * 1001] * 3, "1000 characters, not 1001: 'aaaaaaaaaaaaaaaaaaaa'…"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), "dense tensors, not in a meta one"),
    ],
)
def test_labels_that_cannot_be_meant(labels, message):
    learner = small()
    with pytest.raises(UsageError, match=message):
        learner.partial_fit(IMAGES[:3], labels)
    assert learner.n_seen_ == 0


def test_a_label_outside_the_classes_is_refused_and_nothing_is_learned():
    learner = small(classes=[0, 1])
    with pytest.raises(UsageError, match="label 2 is not among the classes"):
        learner.partial_fit(IMAGES, LABELS)
    assert learner.n_seen_ == 0


def test_the_classes_of_a_call():
    """As users of scikit-learn give them."""
    learner = small().partial_fit(IMAGES, LABELS, classes=np.arange(5))
    assert same(learner, small().partial_fit(IMAGES, LABELS))
    assert learner.classes_.tolist() == [0, 1, 2]
    assert learner.partial_fit(IMAGES[:10], [7] * 10, classes="grow").n_seen_ == 70
    assert small(classes=[0, 1, 2, 3]).partial_fit(IMAGES[:3], LABELS[:3], [2, 1, 0]).n_seen_ == 3


@pytest.mark.parametrize(
    ("own", "classes", "message"),
    [
        ("grow", [0, 1], "label 2 is not among the classes of this call"),
        ([0, 1, 2], [0, 1, 2, 3], "label 3 is not among the classes of this learner"),
        ("grow", 3, "classes must be a list"),
        ("grow", [0, 1, 2, 2], "classes must be different"),
        ("grow", [0, 1, 2, 0.5], "a label must be a string or a whole number"),
    ],
)
def test_classes_of_a_call_that_cannot_be_meant(own, classes, message):
    learner = small(classes=own)
    with pytest.raises(UsageError, match=message):
        learner.partial_fit(IMAGES, LABELS, classes=classes)
    assert learner.n_seen_ == 0


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "xdr"}, r"unknown method 'xdr' \(known: finetune, er, er-ace, derpp, pcr, cope, ccl-dc\)"),
        ({"method": "xder"}, "xder has to know where tasks begin and end; .* can have .*er-ace, derpp, pcr, cope"),
        ({"method": "dualnet"}, "without tasks"),
        ({"method": "joint"}, "without tasks"),
        ({"method": "er-ac"}, "did you mean 'er-ace'"),
        ({"regularizer": "jigsw"}, "did you mean 'jigsaw'"),
        ({"regularizer": "none", "weight": 1.0}, "no effect"),
        ({"image_size": 33}, "^image_size 33 does not suit the regularizer: jigsaw needs images of even size"),
        ({"image_size": 0}, "image_size must be at least 3"),
        ({"image_size": 8.0}, "image_size must be a whole number, not 8.0"),
        ({"batch": True}, "batch must be a whole number"),
        ({"batch": 0}, "^batch must be at least 1"),
        ({"batch": 1}, "at least 2 for images of 8×8"),
        ({"buffer": 5}, "^buffer 5 is smaller than the replay batch of 10"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"lr": "fast"}, "lr must be a number"),
        ({"classes": 10}, "list of the labels"),
        ({"classes": "shrink"}, "list of the labels"),
        ({"classes": []}, "list of the labels"),
        ({"classes": [1, 1]}, "different from each other"),
        ({"classes": [1.5, 2]}, "string or a whole number"),
        ({"mean": (0.5, 0.5)}, "one for each of 3 channels"),
        ({"std": 0}, "std must be a number above zero"),
        ({"temperature": 1}, r"unknown parameter 'temperature' \(.*\); the method cope, .* have one of that name"),
        ({"sed": 1}, r"unknown parameter 'sed' \(.*\); did you mean 'seed'\?$"),
        ({"method": "cope", "temperature": "hot"}, "temperature must be a number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"device": "tpu"}, "unknown device"),
    ],
)
def test_parameters_that_cannot_be_meant(changes, message):
    with pytest.raises(UsageError, match=message) as caught:
        small(**changes)
    assert "\n" not in str(caught.value)


def test_parameters_are_kept_as_scikit_learn_expects():
    learner = small("cope", "none", temperature=0.1, classes=("a", "b"))
    parameters = learner.get_params()
    assert parameters["method"] == "cope"
    assert Learner(**parameters).get_params() == parameters
    assert eval(repr(learner), {"Learner": Learner}).get_params() == parameters
    assert learner.set_params(regularizer="rotation") is learner
    assert learner.get_params() == parameters | {"regularizer": "rotation"}
    own = {"variant": "text", "inner": 2, "momentum": 0.9, "temperature": 0.2}
    assert list(small("cope").set_params(**own).get_params())[-4:] == list(own)
    with pytest.raises(UsageError, match="did you mean 'buffer'"):
        learner.set_params(bufer=3)
    with pytest.raises(UsageError, match="even size"):
        small().set_params(image_size=7)


def test_parameters_may_be_numbers_of_other_libraries(tmp_path):
    numbers = {"batch": np.uint8(10), "seed": np.int64(3), "lr": np.float32(0.125), "image_size": np.int16(SIZE)}
    learner = small("finetune", "none", mean=np.full(3, 0.5), std=torch.tensor(0.25), **numbers)
    learner.partial_fit(*colors(300))  # more than a uint8 can count
    learner.save(tmp_path / "learner.safetensors")
    assert Learner.load(tmp_path / "learner.safetensors").n_seen_ == 300
    other = small("finetune", "none", batch=10, seed=3, lr=0.125)
    assert same(learner, other.partial_fit(*colors(300)))


@pytest.mark.parametrize("classes", [range(3), np.arange(3), torch.arange(3), [np.int64(each) for each in range(3)]])
def test_classes_may_be_of_other_libraries(classes, tmp_path):
    learner = small("finetune", "none", classes=classes)
    assert learner.get_params()["classes"] is classes
    learner.partial_fit(IMAGES[:20], LABELS[:20]).save(tmp_path / "learner.safetensors")
    other = small("finetune", "none", classes=[0, 1, 2]).partial_fit(IMAGES[:20], LABELS[:20])
    assert same(learner, other)
    assert same(Learner.load(tmp_path / "learner.safetensors"), other)
    assert "classes=[0, 1, 2]" in repr(learner)


def test_parameters_cannot_change_once_it_learns():
    with pytest.raises(UsageError, match="make a new one"):
        small().partial_fit(IMAGES[:3], LABELS[:3]).set_params(lr=0.1)


def test_scikit_learn_agrees():
    base = pytest.importorskip("sklearn.base")
    from sklearn.exceptions import NotFittedError as TheirError
    from sklearn.utils.validation import check_is_fitted

    learner = small(classes=[0, 1, 2])
    with pytest.raises(TheirError):
        check_is_fitted(learner)
    learner.partial_fit(IMAGES, LABELS)
    check_is_fitted(learner)
    copy = base.clone(learner)
    assert copy.get_params() == learner.get_params()
    with pytest.raises(TheirError):
        check_is_fitted(copy)
    assert base.is_classifier(learner)


def test_asked_too_early():
    learner = small().partial_fit(IMAGES[:4], LABELS[:4])
    for ask in (learner.predict, learner.predict_proba, lambda images: learner.score(images, LABELS)):
        with pytest.raises(NotFittedError, match="give partial_fit 6 more images"):
            ask(IMAGES)
    assert issubclass(NotFittedError, UsageError)
    assert issubclass(NotFittedError, ValueError)
    assert issubclass(NotFittedError, AttributeError)
    assert not hasattr(learner, "classes_")
    assert hasattr(learner.partial_fit(IMAGES[:6], LABELS[:6]), "classes_")


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "regularizer", "optimizer"),
    [
        ("er-ace", "jigsaw", "sgd"),
        ("er-ace", "none", "momentum"),
        ("cope", "rotation", "momentum"),
        ("finetune", "barlow-twins", "sgd"),
        ("cope", "none", "adam"),
        ("er", "none", "adamw"),
    ],
)
def test_a_loaded_learner_learns_on_to_the_bit(method, regularizer, optimizer, tmp_path):
    changes = {"mean": (0.4, 0.5, 0.6), **quick(method)} | chosen(optimizer)
    learner = small(method, regularizer, **changes).partial_fit(IMAGES[:37], LABELS[:37])
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors")
    assert loaded.n_seen_ == 37
    assert loaded.classes_.tolist() == learner.classes_.tolist()
    assert same(loaded, learner)
    for each in (learner, loaded):
        each.partial_fit(IMAGES[37:], LABELS[37:]).partial_fit(*colors(60, 20))  # with room for more classes
    assert same(loaded, learner)


class Counting(METHODS["er"]):
    """A method of somebody's own, with whole numbers that change."""

    name = "counting"
    about = replace(METHODS["er"].about, counted=METHODS["er"].about.counted | {"seen", "steps"})

    def __init__(self, setup):
        super().__init__(setup)
        self.seen, self.steps = torch.zeros(setup.tasks.n_classes, dtype=torch.int64), 0

    def observe(self, batch):
        self.seen += torch.bincount(batch.labels, minlength=len(self.seen))
        self.steps += 1
        return super().observe(batch)


def test_a_method_of_ones_own_says_what_it_counts(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS._entries, "counting", Counting)
    small("counting", "none").partial_fit(IMAGES[:40], LABELS[:40]).save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors")
    assert loaded._core.method.steps == loaded.n_seen_ // loaded.batch
    assert loaded._core.method.seen.sum() == loaded.n_seen_
    monkeypatch.setattr(Counting, "about", METHODS["er"].about)
    with pytest.raises(UsageError, match=r"steps is not what it is in a new counting: .* counted=About\.counted \|"):
        Learner.load(tmp_path / "learner.safetensors")


class CountingTeacher(TEACHERS["ema"]):
    """A teacher of somebody's own, with whole numbers that change."""

    name = "counting-teacher"

    def __init__(self, network, options):
        super().__init__(network, options)
        self.seen, self.steps = torch.zeros((), dtype=torch.int64), 0

    def after_step(self, network, task):
        super().after_step(network, task)
        self.seen.add_(1)
        self.steps += 1


class CountingPenalty(Regularizer):
    """A regularizer of somebody's own, with whole numbers that change."""

    def __init__(self, network, **_):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.steps = 0

    def loss(self, network, raw, augmented, labels, parts=None):
        return network.classifier.weight.square().mean()

    def after_step(self, network):
        self.seen.add_(1)
        self.steps += 1


def test_a_teacher_and_a_regularizer_of_ones_own_may_count(monkeypatch, tmp_path):
    monkeypatch.setitem(TEACHERS._entries, "counting-teacher", CountingTeacher)
    monkeypatch.setitem(REGULARIZERS._entries, "counting", Entry("counting", "", "", build=CountingPenalty, weight=1.0))
    learner = small("er", "counting", teacher="counting-teacher").partial_fit(IMAGES[:40], LABELS[:40])
    learner.save(tmp_path / "learner.safetensors")
    method = Learner.load(tmp_path / "learner.safetensors")._core.method
    for each in (method.teacher, *method.regularizers):
        assert each.steps == int(each.seen) == 4


class Penalty(CountingPenalty):
    """A regularizer with a name."""

    name = "penalty"


def test_parts_may_be_classes_of_ones_own(tmp_path):
    classes = {"method": Counting, "regularizer": Penalty, "teacher": CountingTeacher}
    learner = small(**classes).partial_fit(IMAGES[:20], LABELS[:20])
    assert {name: learner.get_params()[name] for name in classes} == classes
    assert same(sklearn.base.clone(learner).partial_fit(IMAGES[:20], LABELS[:20]), learner)
    assert "method='counting', regularizer='penalty', teacher='counting-teacher'" in repr(learner)
    learner.save(tmp_path / "learner.safetensors")
    assert same(Learner.load(tmp_path / "learner.safetensors"), learner)
    pickled = pickle.dumps(learner)
    for table, name in ((METHODS, "counting"), (REGULARIZERS, "penalty"), (TEACHERS, "counting-teacher")):
        entry = table._entries.pop(name)
        with pytest.raises(UsageError, match=rf"made with the {table.kind} '{name}', one of your own: .*--import"):
            Learner.load(tmp_path / "learner.safetensors")
        table._entries[name] = entry
    del METHODS._entries["counting"]
    assert same(pickle.loads(pickled), learner)  # which finds the class itself
    with pytest.raises(UsageError, match=r"^method must be the name of a method or a subclass of cler\.Method, not "):
        small(dict)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))])
def test_copies_go_on_alike_and_apart(copied):
    learner = small(optimizer="adamw", classes=range(3)).partial_fit(IMAGES[:37], LABELS[:37])
    twin = copied(learner)
    before = learner.predict_proba(IMAGES)
    twin.partial_fit(IMAGES[37:], LABELS[37:])
    assert np.array_equal(learner.predict_proba(IMAGES), before)
    assert same(learner.partial_fit(IMAGES[37:], LABELS[37:]), twin)
    assert twin.n_seen_ == 60


def test_a_learner_that_has_not_begun_can_be_saved(tmp_path):
    small(classes=["a", "b"]).partial_fit(IMAGES[:3], ["a", "b", "a"]).save(tmp_path / "new.safetensors")
    loaded = Learner.load(tmp_path / "new.safetensors", device="cpu")
    assert loaded.n_seen_ == 3
    assert not hasattr(loaded, "classes_")
    loaded.partial_fit(IMAGES[:7], ["b"] * 7)
    assert loaded.classes_.tolist() == ["a", "b"]


def test_what_becomes_of_the_file_is_nothing_to_who_was_loaded_from_it(fitted, saved):
    loaded, size = Learner.load(saved), saved.stat().st_size
    with saved.open("r+b") as file:
        file.write(bytes(size))
    assert content(loaded) == content(fitted)
    os.truncate(saved, 0)
    assert content(loaded) == content(fitted)


def test_a_file_that_is_cut_or_altered_anywhere_is_refused(saved):
    whole = saved.read_bytes()
    header = struct.unpack("<Q", whole[:8])[0]
    places = [0, 3, 7, 8, 20, header // 2, header + 7, header + 8, (header + len(whole)) // 2, len(whole) - 1]
    for place in places:
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]):
            saved.write_bytes(damaged)
            with pytest.raises(UsageError, match=r"learner\.safetensors") as caught:
                Learner.load(saved)
            assert "\n" not in str(caught.value)
    saved.write_bytes(whole)
    Learner.load(saved)


def test_a_path_that_is_not_utf_8_can_be_saved_to_and_loaded_from(fitted, tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    fitted.save(path)
    assert Learner.load(path).n_seen_ == fitted.n_seen_


def test_files_of_other_kinds_are_refused(tmp_path):
    contents = {
        "pickle": pickle.dumps({"format": "cler-learner"}),
        "tensors": safetensors.torch.save({"a": torch.zeros(3)}),
        "other": safetensors.torch.save({"a": torch.zeros(3)}, {"format": "pt", "version": "1"}),
        "empty": b"",
        "huge header": struct.pack("<Q", 2**62) + b"{}",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="not a saved learner"):
            Learner.load(tmp_path / name)
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="cannot read"):
            Learner.load(path)


def test_a_newer_version_is_refused(saved):
    with safetensors.safe_open(saved, "pt") as file:
        metadata = file.metadata() | {"version": "2"}
    saved.write_bytes(safetensors.torch.save({"a": torch.zeros(3)}, metadata))
    with pytest.raises(UsageError, match=r"newer cler .* upgrade"):
        Learner.load(saved)


def crafted(change):
    """A change of a file's content by somebody who also gets the checksum right."""
    return pytest.param(change, id=change.__name__)


def negative_steps(tensors, about):
    about["steps"] = -1


def steps_as_text(tensors, about):
    about["steps"] = "4"


def more_steps(tensors, about):
    about["steps"] += 1


def repeated_label(tensors, about):
    about["labels"][0] = about["labels"][1]


def label_of_a_strange_kind(tensors, about):
    about["labels"][0] = {"a": 1}


def no_labels(tensors, about):
    about["labels"] = []


def too_many_waiting(tensors, about):
    about["waiting"] = about["waiting"] * 3
    tensors["waiting"] = tensors["waiting"].repeat(3, 1, 1, 1)


def waiting_of_another_size(tensors, about):
    tensors["waiting"] = torch.zeros(4, 3, 9, 9, dtype=torch.uint8)


def strange_class_in_buffer(tensors, about):
    tensors["method.buffer.labels"][2] = 1_000_000


def negative_class_in_buffer(tensors, about):
    tensors["method.buffer.labels"][2] = -5


def larger_buffer(tensors, about):
    about["numbers"]["buffer.capacity"] = 10**9


def overfull_buffer(tensors, about):
    about["numbers"]["buffer.filled"] = 21


def another_task(tensors, about):
    about["numbers"]["task"] = 5


def number_of_another_kind(tensors, about):
    about["numbers"]["task"] = None


def wide_network(tensors, about):
    about["parameters"]["width"] = 1024


def huge_buffer(tensors, about):
    about["parameters"]["buffer"] = 10_000_000


def many_classes(tensors, about):
    about["parameters"]["classes"] = list(range(200_000))


def more_labels_than_weights(tensors, about):
    about["labels"] = list(range(200_000))


def negative_variance(tensors, about):
    tensors["method.network.stem.bn.running_var"][0] = -1


def strange_parameter(tensors, about):
    about["parameters"]["__class__"] = "Learner"


def parameter_of_another_kind(tensors, about):
    about["parameters"]["batch"] = "10"


def another_method(tensors, about):
    about["parameters"]["method"] = "cope"


def missing_tensor(tensors, about):
    del tensors["method.buffer.pixels"]


def altered_table(tensors, about):
    tensors["method.buffer._numbers"][0] = 10**12


def extra_tensor(tensors, about):
    tensors["method.more"] = torch.zeros(3)


def moments_for_plain_sgd(tensors, about):
    tensors["method.optimizer.state.0.exp_avg"] = torch.zeros(3)


def moments_without_a_number(tensors, about):
    tensors["method.optimizer.state.x"] = torch.zeros(3)


def infinite_weight(tensors, about):
    tensors["method.network.classifier.bias"][0] = torch.inf


def weights_in_double_precision(tensors, about):
    tensors["method.network.classifier.bias"] = tensors["method.network.classifier.bias"].double()


def broken_generator(tensors, about):
    tensors["generator"] = tensors["generator"].flip(0)


def nothing_but_a_list(tensors, about):
    about["parameters"] = [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        crafted(change)
        for change in (
            negative_steps, steps_as_text, more_steps, repeated_label, label_of_a_strange_kind, no_labels,
            too_many_waiting, waiting_of_another_size, strange_class_in_buffer, negative_class_in_buffer, larger_buffer,
            overfull_buffer, another_task, number_of_another_kind, negative_variance, strange_parameter,
            parameter_of_another_kind, another_method, missing_tensor, altered_table, extra_tensor,
            moments_for_plain_sgd, moments_without_a_number, infinite_weight, weights_in_double_precision,
            broken_generator, nothing_but_a_list,
        )
    ],
)  # fmt: skip
def test_a_file_made_to_do_harm_is_refused(change, saved):
    tensors, about = fileformat.read(saved)
    change(tensors, about)
    saved.write_bytes(fileformat.encode(tensors, about))
    with pytest.raises(UsageError, match=r"learner\.safetensors") as caught:
        Learner.load(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [crafted(each) for each in (wide_network, huge_buffer, many_classes, more_labels_than_weights)]
)
def test_a_small_file_cannot_ask_for_a_large_network(change, saved, monkeypatch):
    tensors, about = fileformat.read(saved)
    change(tensors, about)
    saved.write_bytes(fileformat.encode(tensors, about))
    monkeypatch.setattr(Core, "build", pytest.fail)
    with pytest.raises(UsageError, match="its size cannot be right"):
        Learner.load(saved)


def test_saving_replaces_the_file_at_once_or_not_at_all(fitted, saved, monkeypatch):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match=r"cannot write .*No space left"):
        small().save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_where_nothing_can_be_written(fitted, tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        fitted.save(tmp_path / "missing" / "learner.safetensors")


# -- many threads, endless streams -------------------------------------------------------------------------------------


def test_predictions_beside_learning_see_a_state_between_two_steps():
    images, labels = colors(200, seed=5)
    alone, states = small().partial_fit(images[:10], labels[:10]), set()
    for start in range(10, 200, 10):
        states.add(alone.predict_proba(IMAGES).tobytes())
        alone.partial_fit(images[start : start + 10], labels[start : start + 10])
    states.add(alone.predict_proba(IMAGES).tobytes())

    learner, answers, finished = small().partial_fit(images[:10], labels[:10]), [], threading.Event()

    class Patient(Worker):
        """Has who learns wait after each step until an answer has come that was begun after it."""

        def __call__(self, *call):
            result, told = super().__call__(*call), len(answers)
            while threading.current_thread() is threading.main_thread() and len(answers) <= told + len(threads):
                time.sleep(0.001)
            return result

    def ask():
        while not finished.is_set():
            answers.append(learner.predict_proba(IMAGES).tobytes())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    learner._worker = Patient()
    for thread in threads:
        thread.start()
    learner.partial_fit(images[10:], labels[10:])
    finished.set()
    for thread in threads:
        thread.join()
    learner._worker = Worker()
    assert set(answers) == states  # nobody had to wait for the whole call, and nobody saw half a step
    assert same(learner, alone)


def test_two_threads_may_learn():
    learner = small()
    threads = [threading.Thread(target=learner.partial_fit, args=colors(35, seed=seed)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert learner.n_seen_ == 70


def everything(path):
    """What a learner gives and becomes that is made, taught, asked, saved, loaded and copied here."""
    images = (IMAGES / 255).repeat(2, axis=2).repeat(2, axis=3)
    learner = small(optimizer="adamw").partial_fit(IMAGES[:7], LABELS[:7]).partial_fit(list(images[7:44]), LABELS[7:44])
    answers = [learner.predict_proba(images).tobytes()]
    learner.save(path)
    loaded = Learner.load(path).partial_fit(*colors(20, 20))
    copied = copy.copy(learner).partial_fit(*colors(20, 20))
    answers += [each.predict_proba(images).tobytes() for each in (learner, loaded, copied)]
    return answers, path.read_bytes(), loaded, copied


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    *given, loaded, copied = everything(tmp_path_factory.mktemp("undisturbed") / "learner.safetensors")
    return given, content(loaded), content(copied)


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_of_the_caller_make_no_difference(mode, undisturbed, tmp_path):
    with MODES[mode]():
        *given, loaded, copied = everything(tmp_path / "learner.safetensors")
    assert (given, content(loaded), content(copied)) == undisturbed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_learners_in_several_threads_do_not_disturb_each_other(dtype):
    """Neither by the generator of their initial weights nor by the default dtype, which all threads share."""
    with default_dtype(dtype):
        learners = [small("er", "none") for _ in range(4)]
        threads = [threading.Thread(target=each.partial_fit, args=(IMAGES, LABELS)) for each in learners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    alone = content(small("er", "none").partial_fit(IMAGES, LABELS))
    assert all(content(each) == alone for each in learners)


def in_a_fork(function):
    """Whether the function gives something true in a forked child; one that hangs does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def refused_for_the_fork(use):
    with pytest.raises(UsageError, match="forked while another thread used the learner") as caught:
        use()
    return "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_is_forked_during_a_step_is_told_so(monkeypatch):
    learner, inside, go_on = small().partial_fit(IMAGES[:20], LABELS[:20]), threading.Event(), threading.Event()
    add = Reservoir.add

    def waiting(self, *batch):
        inside.set()
        go_on.wait()
        add(self, *batch)

    monkeypatch.setattr(Reservoir, "add", waiting)
    with default_dtype(torch.float64):
        thread = threading.Thread(target=learner.partial_fit, args=(IMAGES[20:40], LABELS[20:40]))
        thread.start()
        inside.wait()
        uses = (
            lambda: learner.predict(IMAGES),
            lambda: learner.partial_fit(IMAGES[:1], LABELS[:1]),
            lambda: learner.n_seen_,
            lambda: copy.copy(learner),
        )
        assert in_a_fork(lambda: all(map(refused_for_the_fork, uses)))
        assert in_a_fork(lambda: torch.get_default_dtype() is torch.float64)
        go_on.set()
        thread.join()
    assert content(learner) == content(small().partial_fit(IMAGES[:40], LABELS[:40]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_is_forked_between_two_steps_goes_on():
    learner, alone = small().partial_fit(IMAGES[:30], LABELS[:30]), content(small().partial_fit(IMAGES, LABELS))
    with learner._worker.alone():  # as a thread has it that is in a call, and not in a step
        assert in_a_fork(lambda: content(learner.partial_fit(IMAGES[30:], LABELS[30:])) == alone)
    assert content(learner.partial_fit(IMAGES[30:], LABELS[30:])) == alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_does_without_the_threads_that_torch_had_in_its_parent(tmp_path):
    """Images so large that torch converts, scales, joins and checks them with several threads."""
    path, threads = tmp_path / "learner.safetensors", torch.get_num_threads()
    images = (IMAGES / 255).repeat(6, axis=2).repeat(6, axis=3)
    torch.set_num_threads(2)
    try:
        learner = small(width=16).partial_fit(images[:30], LABELS[:30])
        learner.save(path)
        alone = content(Learner.load(path).partial_fit(images[30:], LABELS[30:]))
        assert in_a_fork(lambda: content(learner.partial_fit(images[30:], LABELS[30:])) == alone)
        assert in_a_fork(lambda: content(Learner.load(path).partial_fit(images[30:], LABELS[30:])) == alone)
        assert in_a_fork(lambda: len(learner.predict(list(images))) == 60)
    finally:
        torch.set_num_threads(threads)


def tensor_bytes():
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    tensors = [each for each in tensors if each.layout is torch.strided]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.parametrize("method", TASK_FREE)
def test_memory_does_not_grow_with_the_stream(method, tmp_path):
    learner, sizes, files_written = small(method, **quick(method)), set(), set()
    for number in range(4):
        learner.partial_fit(*colors(23, seed=number)).partial_fit(*colors(7, seed=number))
        learner.predict(IMAGES)
        if number > 1:
            sizes.add(tensor_bytes())
            learner.save(tmp_path / "learner.safetensors")
            files_written.add((tmp_path / "learner.safetensors").stat().st_size // 100)
    assert len(sizes) == 1
    assert len(files_written) == 1


# -- export ------------------------------------------------------------------------------------------------------------


def test_an_exported_program_gives_the_same(tmp_path):
    """With prototypes, which are no part of the network; of ER-ACE in tests/teachers."""
    learner = small("cope").partial_fit(IMAGES, [["a", "7", "c"][label] for label in LABELS])
    learner.export(tmp_path / "classifier.pt2")
    labels = {"classes.json": ""}
    program = torch.export.load(tmp_path / "classifier.pt2", extra_files=labels).module()
    for count in (1, 2, 60):
        outputs = program(torch.from_numpy(IMAGES[:count])).numpy()
        assert np.allclose(outputs, learner.predict_proba(IMAGES[:count]), atol=1e-6)
    assert json.loads(labels["classes.json"]) == learner.classes_.tolist()
    before = learner.predict_proba(IMAGES)
    learner.partial_fit(IMAGES, [["a", "7", "c"][label] for label in LABELS])  # the file is left alone
    assert np.allclose(program(torch.from_numpy(IMAGES)).numpy(), before, atol=1e-6)
    with pytest.raises(RuntimeError, match="dtype mismatch! Expected: Byte"):
        program(torch.from_numpy(IMAGES) / 255)


def test_learners_that_come_and_go_trace_their_programs_in_one_thread_that_stays(monkeypatch, tmp_path):
    """Or torch 2.11, built for CUDA and without a GPU, crashes the process."""
    threads = []

    def trace(*_, **__):
        threads.append(threading.current_thread())
        raise InterruptedError

    monkeypatch.setattr(torch.export, "export", trace)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            small().partial_fit(IMAGES[:10], LABELS[:10]).export(tmp_path / "classifier.pt2")
        gc.collect()
    assert threads[0] is threads[1]
    assert threads[0].is_alive()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_an_exported_onnx_model_gives_the_same(fitted, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    fitted.export(tmp_path / "classifier.onnx")
    session = runtime.InferenceSession(tmp_path / "classifier.onnx")
    assert session.get_inputs()[0].shape == ["images", 3, SIZE, SIZE]
    for count in (1, 2, 60):
        (outputs,) = session.run(None, {"images": IMAGES[:count]})
        assert np.allclose(outputs, fitted.predict_proba(IMAGES[:count]), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes.json"]) == fitted.classes_.tolist()


def test_onnx_without_its_packages(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match="ONNX needs the package onnx: pip install onnx onnxscript onnxruntime"):
        fitted.export(tmp_path / "classifier.onnx")
    assert list(tmp_path.iterdir()) == []


def test_exports_that_cannot_be_meant(fitted, tmp_path):
    with pytest.raises(UsageError, match=r"must end in \.pt2 or \.onnx"):
        fitted.export(tmp_path / "classifier.bin")
    with pytest.raises(NotFittedError):
        small().export(tmp_path / "classifier.pt2")


# -- as documented -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(
    ("method", "regularizer"), [("er-ace", "jigsaw"), ("cope", "rotation"), ("er", "barlow-twins")]
)
def test_on_a_gpu_and_off_it_again(method, regularizer, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    path = tmp_path / "learner.safetensors"
    learner = small(method, regularizer, device="cuda")
    for _ in range(10):
        learner.partial_fit(IMAGES, LABELS)
    assert learner.score(IMAGES, LABELS) > 0.6
    learner.save(path)
    same_device, elsewhere = Learner.load(path), Learner.load(path, device="cpu")
    for each in (same_device, elsewhere):
        assert np.allclose(each.predict_proba(IMAGES), learner.predict_proba(IMAGES), atol=1e-3)
    for each in (learner, same_device, elsewhere):
        each.partial_fit(*colors(30, n_classes=5, seed=1))
        assert each.classes_.tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(same_device.predict_proba(IMAGES), learner.predict_proba(IMAGES), atol=1e-3)
    learner.export(tmp_path / "classifier.pt2")
    outputs = torch.export.load(tmp_path / "classifier.pt2").module()(torch.from_numpy(IMAGES)).numpy()
    assert np.allclose(outputs, learner.predict_proba(IMAGES), atol=1e-3)


def test_a_copy_on_another_device_is_the_same_learner(fitted):
    copied = fitted._core.copy_on("cpu")
    assert np.array_equal(copied.probabilities(torch.from_numpy(IMAGES)).numpy(), fitted.predict_proba(IMAGES))


def test_the_example_in_the_documentation_works():
    (example,) = doctest.DocTestFinder(recurse=False).find(Learner, "Learner", globs={})
    assert doctest.DocTestRunner().run(example).failed == 0
    assert len(example.examples) > 5


def test_it_is_a_public_name():
    assert cler.Learner is Learner
    with pytest.raises(AttributeError, match="no attribute 'Lerner'"):
        cler.Lerner  # noqa: B018


def small_cnn(n_outputs, *, channels, width):
    """Ordinary layers, with a batch norm that counts its batches."""
    layers = nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1)),
        nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, n_outputs)),
    )
    return cler.backbone(layers, tap="0", head="1", classifier="2.2")


@pytest.mark.parametrize("regularizer", ["none", "jigsaw", "barlow-twins"])
def test_a_network_with_ordinary_batch_norms_is_saved_and_loaded_to_the_bit(regularizer, monkeypatch, tmp_path):
    monkeypatch.setitem(NETWORKS._entries, "resnet18", Network("resnet18", "", small_cnn, width=64))
    learner = small(regularizer=regularizer).partial_fit(*colors(40))
    learner.save(tmp_path / "it.cler")
    loaded = Learner.load(tmp_path / "it.cler")
    for each in (learner, loaded):
        each.partial_fit(*colors(30, n_classes=20, seed=1))  # more than it had room for
    tensors, again = (each._core.content()[0] for each in (learner, loaded))
    assert any("num_batches_tracked" in name for name in tensors)
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())


def test_a_count_of_batches_that_cannot_be_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(NETWORKS._entries, "resnet18", Network("resnet18", "", small_cnn, width=64))
    learner = small().partial_fit(*colors(40))
    tensors, about = learner._core.copied_content()
    tensors["method.network.module.0.1.num_batches_tracked"].fill_(-1)
    fileformat.write(tmp_path / "bad.cler", fileformat.encode(tensors, about))
    with pytest.raises(UsageError, match="its counters cannot be right"):
        Learner.load(tmp_path / "bad.cler")


# -- the stream, predicted before it is learned ------------------------------------------------------------------------


def test_prequential_accuracy_counts_what_is_predicted_before_it_is_learned(tmp_path):
    images, labels = colors(60)
    learner, other = small(prequential=True), small()
    right, blind, last = 0, 0, None
    for start in range(0, 60, 10):
        some = slice(start, start + 10)
        if start:
            right += int((other.predict(images[some]) == labels[some]).sum())
        blind, last = blind + int((labels[some] == last).sum()), labels[some][-1]
        learner.partial_fit(images[some], labels[some])
        other.partial_fit(images[some], labels[some])
        if start == 20:
            learner.save(tmp_path / "learner")
            learner = Learner.load(tmp_path / "learner", device="cpu")
    assert (learner.prequential_, learner.blind_) == (right / 60, blind / 60)
    assert np.array_equal(learner.predict_proba(images), other.predict_proba(images))
    with pytest.raises(NotFittedError, match="prequential=True"):
        _ = other.prequential_
