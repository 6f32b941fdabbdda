import itertools
import json
import os
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from cler.config.machine import Machine
from cler.data import decoding
from cler.engine.events import (
    Checkpointed,
    Decoding,
    Elsewhere,
    Evaluated,
    Finished,
    Message,
    Progress,
    Started,
    ignore,
)
from cler.errors import UsageError
from cler.files import HOST, read_json
from cler.runs import trainers
from cler.runs.backends import attempts, driver, find_backend
from cler.runs.backends.attempts import ATTEMPTS, EVENTS, Attempt, Mailbox, train_attempt
from cler.runs.backends.driver import drive
from cler.runs.backends.wire import Begun, Ended, line_of
from cler.runs.folders import ATTEMPT, OWNER, locked
from cler.runs.jobs import remaining
from cler.runs.record import Recorder
from photos import write_folder


def accuracy(job):
    return read_json(job.folder / "result.json")["accuracy"]


def said(heard):
    return [event.text for event in heard if isinstance(event, Message)]


def test_jobs_are_trained_elsewhere_with_the_same_numbers_and_all_is_heard(tmp_path, here, machine, toy_jobs):
    plain, jobs, heard = toy_jobs([0, 1], tmp_path / "plain"), toy_jobs([0, 1]), []
    trainers.train_bundles([plain], machine, ignore)
    drive(jobs, here(), machine, heard.append)
    assert [accuracy(job) for job in jobs] == [accuracy(job) for job in plain]
    assert {type(event) for event in heard} == {Message, Started, Progress, Evaluated, Checkpointed, Finished}
    assert [event.run for event in heard if isinstance(event, Finished)] == [job.name for job in jobs]
    assert said(heard) == ["submitted to here: 2 jobs", *(f"{HOST} has 1 run: {job.label}" for job in jobs)]
    assert not (tmp_path / ATTEMPTS).exists()
    assert not list(tmp_path.rglob(OWNER))


@pytest.mark.parametrize(
    ("device", "at_once", "workers", "sizes"),
    [("cpu", None, None, [1] * 25), ("cuda", None, None, [10, 10, 5]), ("cuda", 4, None, [4] * 6 + [1]),
     ("cuda", None, 8, [4] * 6 + [1]), ("cuda", None, 100, [1] * 25)],
)  # fmt: skip
def test_bundles_are_made_without_a_look_at_this_machine(tmp_path, here, toy_jobs, device, at_once, workers, sizes):

    class Enough(Exception):  # noqa: N818 - stands for Ctrl-C
        pass

    def stop(cluster, folder):
        raise Enough

    cluster = here(dict.fromkeys(range(1, 30), stop), lasting=True)
    machine = Machine(device=device, workers=workers, at_once=at_once, out=tmp_path)
    with pytest.raises(Enough):
        drive(toy_jobs(range(25)), cluster, machine, ignore)
    described = [read_json(attempt / ATTEMPT) for attempt in cluster.submitted]
    assert [len(each["jobs"]) for each in described] == sizes
    assert {each["order"]["device"] for each in described} == {device}


# -- what is lost ------------------------------------------------------------------------------------------------------


def lost(cluster, folder):
    """A machine that goes without a word."""


class KilledError(BaseException):
    pass


def killed_after(kind, count):
    """A machine that is killed after so many events of a kind, with its lock in place."""

    def fate(cluster, folder, kept=[]):  # noqa: B006 - the lock is never given back
        seen = 0

        class Dying(Mailbox):
            def __call__(self, word):
                nonlocal seen
                super().__call__(word)
                seen += isinstance(word, kind)
                if seen == count:
                    raise KilledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attempts, "Mailbox", Dying)
            patch.setattr("cler.runs.folders._give_back", lambda folder: None)
            with pytest.raises(KilledError):
                train_attempt(folder, signals=[])

    return fate


def test_a_lost_attempt_is_made_again_from_its_checkpoint(tmp_path, here, machine, toy_jobs):
    (plain,), (job,), heard = toy_jobs(out=tmp_path / "plain"), toy_jobs(), []
    trainers.train_bundles([[plain]], machine, ignore)
    cluster = here({1: killed_after(Checkpointed, 1)})
    drive([job], cluster, machine, heard.append)
    assert accuracy(job) == accuracy(plain)
    assert len(cluster.submitted) == 2
    assert f"{HOST} was lost: its run is resumed elsewhere" in said(heard)
    assert f"{job.label}: resuming from task 2, step 1" in said(heard)


def test_what_comes_to_nothing_three_times_is_told(here, machine, toy_jobs):
    cluster = here(dict.fromkeys((1, 2, 3), lost))
    with pytest.raises(UsageError, match=r"a job of here was lost with er buffer 8, seed 0, for the 3rd time") as told:
        drive(toy_jobs(), cluster, machine, ignore)
    assert len(cluster.submitted) == 3
    assert str(told.value).endswith(f"nothing was heard of it: do all machines have cler, and share {machine.out}?")


def test_what_begins_three_times_without_a_checkpoint_is_told(here, machine, toy_jobs):
    cluster = here(dict.fromkeys((1, 2, 3), killed_after(Progress, 1)))
    with pytest.raises(UsageError, match=rf"{HOST} was lost with .* for the 3rd time .* a smaller --checkpoint-every "):
        drive(toy_jobs(), cluster, machine, ignore)


def test_why_an_attempt_was_lost_is_told_where_that_is_known(here, machine, toy_jobs):
    jobs, heard, cluster = toy_jobs(), [], here({1: lost})
    cluster.words = "ModuleNotFoundError: No module named 'cler'\t."
    drive(jobs, cluster, machine, heard.append)
    told = "a job of here was lost (ModuleNotFoundError: No module named 'cler'): its run is resumed elsewhere"
    assert told in said(heard)


def test_a_run_that_ended_before_it_could_say_so_is_not_repeated(here, machine, toy_jobs):
    jobs, heard = toy_jobs([0]), []

    def without_a_word(cluster, folder):
        train_attempt(folder, signals=[])
        (folder / EVENTS).write_text("")

    drive(jobs, here({1: without_a_word}), machine, heard.append)
    assert heard[1:] == [Elsewhere(jobs[0].name, complete=True)]


def test_a_machine_that_says_nothing_is_given_up_and_avoided(here, machine, toy_jobs):
    jobs, heard = toy_jobs(), []

    def frozen(cluster, folder):
        (folder / EVENTS).write_text(line_of(Begun("tortoise"), []))
        cluster.listed[folder.name] = "running"

    cluster = here({1: frozen})
    hasty = replace(machine, give_up_after=1e-9)
    drive(jobs, cluster, hasty, heard.append)
    first, second = cluster.submitted
    assert cluster.cancelled == [first.name]
    assert cluster.avoided == [[], ["tortoise"]]
    assert not first.exists()
    assert not second.exists()
    assert "tortoise said nothing for 1e-09 seconds: its run is resumed elsewhere" in said(heard)
    assert not remaining(jobs)


def test_a_machine_that_begins_again_and_says_nothing_is_given_up(here, machine, toy_jobs):
    def queued_again(cluster, folder):
        (folder / EVENTS).write_text(line_of(Begun("tortoise"), []) + line_of(Ended("stopped"), []))
        cluster.listed[folder.name] = "running"

    jobs, cluster = toy_jobs(), here({1: queued_again})
    drive(jobs, cluster, replace(machine, give_up_after=1e-9), ignore)
    assert cluster.avoided == [[], ["tortoise"]]
    assert not remaining(jobs)


@pytest.fixture
def of_photos(tmp_path, machine, toy_jobs, monkeypatch):
    """An attempt at a run on a folder of photos, which are decoded two at a time, each time anew."""
    write_folder(tmp_path / "photos", size=(24, 24))
    monkeypatch.setattr(decoding, "CHUNK", 2)
    monkeypatch.setattr("cler.runs.loading.REPORT_SECONDS", 0.0)
    (job,) = toy_jobs(dataset=f"folder:{tmp_path / 'photos'}")
    there = replace(machine, data_dir=tmp_path / "data")
    return Attempt.make(tmp_path / ATTEMPTS / "driver", [job], there, "here", 0)


def test_a_machine_that_decodes_a_dataset_is_heard(of_photos):
    train_attempt(of_photos.folder, signals=[])
    before = list(of_photos.news())
    heard = [word.decoded for word in before if isinstance(word, Decoding)]
    assert heard == list(range(2, 56 + 1, 2))
    kinds = [type(word) for word in before]
    assert kinds.index(Begun) < kinds.index(Decoding) < kinds.index(Started)


def test_a_machine_that_is_asked_to_stop_does_not_decode_to_the_end(of_photos, monkeypatch):
    def ask(mailbox, word, say=Mailbox.__call__):
        if isinstance(word, Decoding) and word.decoded == 4:
            of_photos.ask_to_stop()
        say(mailbox, word)

    monkeypatch.setattr(Mailbox, "__call__", ask)
    with pytest.raises(SystemExit):
        train_attempt(of_photos.folder, signals=[])
    *_, last, ended = of_photos.news()
    assert (last.decoded, ended.how) == (4, "stopped")


@pytest.mark.parametrize("kind", [Started, Progress, Checkpointed, Evaluated])
def test_who_was_given_up_and_comes_back_publishes_nothing(tmp_path, machine, toy_jobs, monkeypatch, kind):
    (job,) = toy_jobs()
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "here", 0)
    then = []

    class Frozen(Mailbox):
        def __call__(self, word):
            super().__call__(word)
            if isinstance(word, kind) and not then:
                attempt.discard()
                then.append(published())

    def published():
        return {path.name: path.read_bytes() for path in job.folder.iterdir() if path.name not in (".lock", OWNER)}

    monkeypatch.setattr(attempts, "Mailbox", Frozen)
    train_attempt(attempt.folder, signals=[])
    assert [published()] == then
    assert remaining([job])


@pytest.mark.parametrize(("name", "time"), [("checkpoint.safetensors", 1), ("result.json", 1), ("result.json", 2)])
def test_what_is_being_written_when_it_is_given_up_is_not_published(
    tmp_path, machine, toy_jobs, monkeypatch, name, time
):
    """And at its end, which is when it has learned both tasks, its checkpoint stays for those who take it over."""
    (job,) = toy_jobs()
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "here", 0)
    sync, times = os.fsync, itertools.count(1)

    def slow(descriptor):
        sync(descriptor)
        if f".{name}." in os.readlink(f"/proc/self/fd/{descriptor}") and next(times) == time:
            attempt.discard()

    monkeypatch.setattr(os, "fsync", slow)
    train_attempt(attempt.folder, signals=[])
    assert not attempt.folder.exists()
    if time == 1:
        assert not (job.folder / name).exists()
    else:
        assert not read_json(job.folder / name)["complete"]
        assert (job.folder / "checkpoint.safetensors").exists()
    assert not [path for path in job.folder.iterdir() if path.suffix == ".tmp"]


def test_who_loses_a_run_at_its_end_writes_nothing_for_its_unaided_run(tmp_path, machine, toy_jobs, monkeypatch):
    (alone,), (job,) = toy_jobs(), toy_jobs(teacher="ema")
    job = replace(job, unaided=alone)
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "here", 0)
    end = Recorder._end
    monkeypatch.setattr(Recorder, "_end", lambda self, *about: attempt.discard() or end(self, *about))
    train_attempt(attempt.folder, signals=[])
    assert not read_json(job.folder / "result.json")["complete"]
    assert not (alone.folder / "result.json").exists()


# -- drivers -----------------------------------------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818 - stands for Ctrl-C
    pass


def stop_at(kind):
    def callback(event):
        if isinstance(event, kind):
            raise Stopped

    return callback


def begun(cluster, folder):
    """A machine that is at it, as far as the driver hears."""
    with (folder / EVENTS).open("a") as file:
        file.write(line_of(Begun("hare"), []))
    cluster.listed[folder.name] = "running"


def test_what_an_earlier_driver_left_on_a_lasting_cluster_is_found(here, machine, toy_jobs):
    jobs, heard, cluster = toy_jobs([0, 1]), [], here({1: begun, 2: begun}, lasting=True)

    def stop(event):
        heard.append(event)
        if len(heard) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        drive(jobs, cluster, machine, stop)
    assert said(heard)[-1] == "still with here: 2 jobs, which the same command finds; nothing ends them"
    cluster.waiting = [None, *enumerate(cluster.submitted, 3)]
    heard.clear()
    drive(jobs, cluster, machine, heard.append)
    assert len(cluster.submitted) == 2
    assert said(heard)[0] == "found again with here: 2 jobs"
    assert not remaining(jobs)
    assert not (machine.out / ATTEMPTS).exists()


@pytest.mark.parametrize("less", [{"until_task": 1}, {"save_network": False}])
def test_what_an_earlier_driver_left_is_made_again_where_more_is_asked_for_now(here, machine, toy_jobs, less):
    (job,), cluster = toy_jobs(), here({1: begun}, lasting=True)
    asked = replace(machine, save_network=True)
    before = replace(asked, **less)
    with pytest.raises(Stopped):
        drive([replace(job, until_task=before.until_task)], cluster, before, stop_at(Message))
    drive([job], cluster, asked, ignore)
    assert len(cluster.submitted) == 2
    assert cluster.cancelled == [cluster.submitted[0].name]
    assert not remaining([job])


def test_what_an_earlier_driver_left_on_another_cluster_is_made_again(here, machine, toy_jobs, monkeypatch):
    jobs, cluster = toy_jobs(), here({1: begun})
    with monkeypatch.context() as patch:
        patch.setattr("cler.runs.backends.driver._Driver._stop", lambda self: None)  # as if it were killed
        with pytest.raises(Stopped):
            drive(jobs, cluster, machine, stop_at(Message))
    assert cluster.submitted[0].exists()
    drive(jobs, cluster, machine, ignore)
    assert [attempt.exists() for attempt in cluster.submitted] == [False, False]
    assert not remaining(jobs)


def test_the_attempts_of_another_driver_are_left_to_it(tmp_path, here, machine, toy_jobs):
    jobs, heard = toy_jobs(), []
    folder = tmp_path / ATTEMPTS / "other"
    folder.mkdir(parents=True)
    with locked(folder):
        attempt = Attempt.make(folder, jobs, machine, "here", 0)
        drive(jobs, here(), machine, heard.append)
        assert attempt.folder.exists()
    assert heard == [Elsewhere(jobs[0].name, complete=False)]


def test_attempts_that_do_not_last_end_with_the_driver_and_leave_checkpoints(here, machine, toy_jobs, monkeypatch):
    (job,) = toy_jobs()
    asked = []
    monkeypatch.setattr(Attempt, "ask_to_stop", lambda self: asked.append(self.name))
    cluster = here()
    with pytest.raises(Stopped):
        drive([job], cluster, machine, stop_at(Message))
    assert asked == cluster.cancelled == [cluster.submitted[0].name]
    assert not cluster.submitted[0].exists()


def test_an_attempt_that_is_asked_to_stop_leaves_a_checkpoint_and_says_so(tmp_path, machine, toy_jobs):
    (job,) = toy_jobs()
    attempt = Attempt.make(tmp_path / ATTEMPTS / "driver", [job], machine, "here", 0)
    attempt.ask_to_stop()
    with pytest.raises(SystemExit):
        train_attempt(attempt.folder, signals=[])
    assert [type(word).__name__ for word in attempt.news()] == ["Begun", "Ended"]
    assert attempt.ended.how == "stopped"


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_a_mistake_on_another_machine_is_the_users_mistake_here(here, machine, toy_jobs, monkeypatch):
    def unknown(*_):
        raise UsageError("toy is missing")

    monkeypatch.setattr("cler.data.load_for", unknown)
    with pytest.raises(UsageError, match=f"{HOST}: toy is missing"):
        drive(toy_jobs(), here(), machine, ignore)
    assert not (machine.out / ATTEMPTS).exists()


def test_another_version_on_another_machine_is_told(here, machine, toy_jobs, monkeypatch):
    def older(cluster, folder):
        about = read_json(folder / ATTEMPT)
        (folder / ATTEMPT).write_text(json.dumps(about | {"cler": "0.0.1"}))
        train_attempt(folder, signals=[])

    with pytest.raises(UsageError, match=f"{HOST} has cler .*, and 0.0.1 is needed"):
        drive(toy_jobs(), here({1: older}), machine, ignore)


def test_a_job_that_somebody_cancels_is_not_made_again(here, machine, toy_jobs):
    def cancelled(cluster, folder):
        cluster.listed[folder.name] = "cancelled"

    with pytest.raises(UsageError, match="its job was canceled"):
        drive(toy_jobs(), here({1: cancelled}), machine, ignore)


def test_code_that_no_other_machine_can_import_is_refused(here, machine, toy_jobs, monkeypatch):
    monkeypatch.setattr("cler.runs.backends.driver.only_here", lambda jobs, machine: ["the method mine"])
    with pytest.raises(UsageError, match="the method mine: no other machine can import this"):
        drive(toy_jobs(), here(), machine, ignore)
    for module in ("ray", "slurm"):
        monkeypatch.setattr(f"cler.runs.backends.{module}._find_{module}", lambda: None)
        with pytest.raises(UsageError, match="the method mine: no other machine can import this"):
            find_backend(Machine(on=module)).check(toy_jobs())


def silent(here, *when):
    """A cluster that does not answer these of the questions, by their number."""

    class Silent(here):
        asked = 0

        def states(self):
            self.asked += 1
            return None if self.asked in when else super().states()

    return Silent


def test_a_cluster_that_does_not_answer_is_told_before_anything_is_submitted(here, machine, toy_jobs):
    cluster = silent(here, 1)()
    with pytest.raises(UsageError, match=r"here does not answer \(nobody is there\): try again later"):
        drive(toy_jobs(), cluster, machine, ignore)
    assert not cluster.submitted
    assert not (machine.out / ATTEMPTS).exists()


def test_no_attempt_counts_as_lost_while_the_cluster_does_not_answer(here, machine, toy_jobs):
    cluster = silent(here, 2, 3, 4, 5)()
    drive(toy_jobs(), cluster, machine, ignore)
    assert len(cluster.submitted) == 1


def test_a_driver_whose_folder_is_being_swept_away_takes_another(here, machine, toy_jobs, monkeypatch):
    asked = []

    @contextmanager
    def first_of_another(folder):
        asked.append(folder)
        with locked(folder) if len(asked) > 1 else nullcontext(False) as ours:
            yield ours

    monkeypatch.setattr(driver, "locked", first_of_another)
    cluster = here()
    drive(toy_jobs(), cluster, machine, ignore)
    first, second = asked
    assert [attempt.parent for attempt in cluster.submitted] == [second] != [first]


def test_a_machine_with_other_images_under_the_same_name_is_refused(here, machine, toy_jobs):
    (job,) = toy_jobs()
    with pytest.raises(UsageError, match=rf"{HOST}: toy has other images here \(fingerprint \w+\) than .* \(abc\)"):
        drive([replace(job, data="abc")], here(), machine, ignore)
    assert not (job.folder / "result.json").exists()
