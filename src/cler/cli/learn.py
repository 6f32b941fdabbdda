"""`cler learn`: a classifier that keeps learning from a folder."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from cler.cli.app import AsJson, Device, app, errors, say
from cler.errors import UsageError

if TYPE_CHECKING:
    from cler.learner import Learner
    from cler.learner.folder import FolderLearner


@app.command()
def learn(
    folder: Annotated[Path, typer.Argument(help="Where images arrive, as FOLDER/LABEL/IMAGE.")],
    once: Annotated[bool, typer.Option("--once", help="Learn what is there and stop.")] = False,
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the images that are not learned but tested on, chosen by their names.", show_default="0.1"
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks into the folder.")] = 2.0,
    save_every: Annotated[float, typer.Option(help="Seconds between two times that the state is saved.")] = 60.0,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the learner and its journal.", show_default="FOLDER/.cler")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="A method that needs no tasks; `cler methods` lists them.", show_default="er-ace")
    ] = None,
    regularizer: Annotated[
        str | None, typer.Option(help="A regulariser; `cler methods` lists them.", show_default="jigsaw")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Height and width that images are scaled to.", show_default="32")
    ] = None,
    channels: Annotated[int | None, typer.Option(help="3 for colour, 1 for grey.", show_default="3")] = None,
    buffer: Annotated[int | None, typer.Option(help="Images that the memory holds.", show_default="500")] = None,
    batch: Annotated[int | None, typer.Option(help="Images of a step.", show_default="10")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.01")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the regulariser's loss (λ_r).", show_default="the regulariser's")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Filters of ResNet-18's first layer.", show_default="64")] = None,
    seed: Annotated[int | None, typer.Option(help="Where everything random comes from.", show_default="0")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; more than one pays for wide networks.", min=1)] = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Watch a folder, learn each image that arrives there once, and tell how well a held-out share is recognised.

    Ctrl-C saves and stops; the same command goes on from there. A file that is taken away counts as new when it comes
    back, but not where its whole folder was away.
    """
    from cler.experiments.folders import check_writable
    from cler.experiments.machine import threads as using_threads
    from cler.learner.folder import TRIES, FolderLearner

    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; images are looked for in FOLDER/LABEL/")
    if held_out is not None and not 0 <= held_out < 1:
        raise UsageError(f"--held-out must be a share from 0 to less than 1, not {held_out}")
    if not (every > 0 and save_every > 0):
        raise UsageError("--every and --save-every must be larger than zero")
    given = {
        "method": method, "regularizer": regularizer, "image_size": image_size, "channels": channels, "buffer": buffer,
        "batch": batch, "lr": lr, "weight": weight, "width": width, "seed": seed,
    }  # fmt: skip
    state = state or folder / ".cler"
    check_writable(state)
    with _alone(state), using_threads(threads):
        learner = _learner(state, {name: value for name, value in given.items() if value is not None}, device)
        share = _share_held_out(state, held_out)
        watched = FolderLearner(folder, state, learner, held_out=share, tries=1 if once else TRIES, message=say)
        with _asked_to_stop() as stop, _saved_at_the_end(watched):
            _watch(watched, stop, once=once, every=every, save_every=save_every)
    summary = _summary(watched)
    print(json.dumps(summary, indent=1) if as_json else f"{_in_words(summary)}; kept in {summary['learner']}")


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Keep other processes out of the state's folder."""
    from cler.experiments.folders import locked

    with ExitStack() as stack:
        try:
            stack.enter_context(locked(state))
        except UsageError:
            raise UsageError(f"another cler is learning in {state}: wait for it, or choose another --state") from None
        yield


def _learner(state: Path, given: dict[str, Any], device: str) -> Learner:
    """The learner that is kept there, or a new one."""
    from cler.learner import Learner
    from cler.learner.folder import LEARNER

    if not (state / LEARNER).exists():
        return Learner(**given, device=device)
    learner = Learner.load(state / LEARNER, device=device)
    for name, value in given.items():
        _check_same(state, name, learner.get_params()[name], value)
    return learner


def _share_held_out(state: Path, given: float | None) -> float:
    """As it was when the learner there was made, or it would learn what it is tested on; noted for a new one."""
    from cler.files import read_json, write_json, writing
    from cler.learner.folder import HELD_OUT, LEARNER

    path, share = state / HELD_OUT, 0.1 if given is None else given
    if (state / LEARNER).exists() and path.exists():
        kept = read_json(path).get("held_out")
        if not (isinstance(kept, int | float) and 0 <= kept < 1):
            raise UsageError(f"{path} does not tell a share from 0 to less than 1: delete it, and give --held-out")
        _check_same(state, "held_out", kept, kept if given is None else given)
        return kept
    with writing(path):
        write_json(path, {"held_out": share})
    return share


def _check_same(state: Path, name: str, kept: Any, given: Any) -> None:
    if kept != given:
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"the learner in {state} has {flag} {kept}: leave {flag} out, or choose another --state")


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C and SIGTERM wait until the step is done; a second one does not."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _saved_at_the_end(watched: FolderLearner) -> Iterator[None]:
    """Save what was learned inside, whatever ended it."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # what ended it is the error to tell
            if watched.unsaved:
                watched.save()
        raise
    if watched.unsaved:
        watched.save()


def _watch(watched: FolderLearner, stop: Callable[[], bool], *, once: bool, every: float, save_every: float) -> None:
    """Learn what arrives until asked to stop, and save now and then."""
    saved, there = time.monotonic(), True
    with errors.status(f"waiting for images in {escape(str(watched.folder))}/LABEL/") as line:
        while not stop():
            try:
                for left in watched.learn():
                    line.update(f"{watched.learner.n_seen_} images learned, {left} to go")
                    saved = _save_when_due(watched, saved, save_every)
                    if stop():
                        break
                if once:
                    break
                saved, there = _save_when_due(watched, saved, save_every), True
            except UsageError:
                gone = [each for each in (watched.folder, watched.state) if not each.is_dir()]
                if once or not gone:
                    raise
                there = there and _say_that_it_has_gone(watched, gone[0])
            _sleep(every, stop)
    if once and not watched.learner.n_seen_:
        raise UsageError(f"there are no images to learn in {watched.folder}; they are looked for in FOLDER/LABEL/")


def _say_that_it_has_gone(watched: FolderLearner, gone: Path) -> Literal[False]:
    """Save what was learned, if where it is kept has not gone too."""
    if watched.unsaved and watched.state.is_dir():
        watched.save()
    say(f"{gone} has gone; {watched.learner.n_seen_} images are learned, looking for it again")
    return False


def _save_when_due(watched: FolderLearner, saved: float, save_every: float) -> float:
    """Save, and say how it is going, if it is time; gives back when it was saved last."""
    if not watched.unsaved or time.monotonic() - saved < save_every:
        return saved
    watched.save()
    say(_in_words(_summary(watched)))
    return time.monotonic()


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not stop() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def _summary(watched: FolderLearner) -> dict[str, Any]:
    accuracy, held_out = watched.accuracy()
    return {
        "images": watched.learner.n_seen_,
        "classes": watched.classes,
        "held_out": held_out,
        "accuracy": accuracy,
        "learner": str(watched.path),
    }


def _in_words(summary: dict[str, Any]) -> str:
    classes = len(summary["classes"])
    text = f"{summary['images']} images of {classes} {'class' if classes == 1 else 'classes'} learned"
    if summary["accuracy"] is None:
        return f"{text}, no held-out image to test on yet"
    return f"{text}, {summary['accuracy']:.1f} % right of {summary['held_out']} held-out images"
