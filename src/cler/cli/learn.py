"""`cler learn`: a classifier that keeps learning from a folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cler.cli.app import AsJson, Device, app, errors, say
from cler.errors import UsageError

if TYPE_CHECKING:
    from cler.learner import Learner


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
        str | None, typer.Option(help="A regularizer; `cler methods` lists them.", show_default="jigsaw")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Height and width that images are scaled to.", show_default="32")
    ] = None,
    channels: Annotated[int | None, typer.Option(help="3 for color, 1 for gray.", show_default="3")] = None,
    buffer: Annotated[int | None, typer.Option(help="Images that the memory holds.", show_default="500")] = None,
    batch: Annotated[int | None, typer.Option(help="Images of a step.", show_default="10")] = None,
    replay_batch: Annotated[int | None, typer.Option(help="Remembered images of a step.", show_default="10")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.01")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the regularizer's loss (λ_r).", show_default="the regularizer's")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Filters of ResNet-18's first layer.", show_default="64")] = None,
    seed: Annotated[int | None, typer.Option(help="Where everything random comes from.", show_default="0")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; more than one pays for wide networks.", min=1)] = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Watch a folder, learn each image that arrives there once, and tell how well a held-out share is recognized.

    It learns in batches; images that do not fill one wait for the next. Ctrl-C saves and stops; the same command goes
    on from there. A file that is written anew, or taken away and put back, counts as new, but not where its whole
    folder was away. Folders inside FOLDER/LABEL are not looked into.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; images are looked for in FOLDER/LABEL/")
    if held_out is not None and not 0 <= held_out < 1:
        raise UsageError(f"--held-out must be a share from 0 to less than 1, not {held_out}")
    if not (every > 0 and save_every > 0):
        raise UsageError("--every and --save-every must be larger than zero")
    given = {
        "method": method, "regularizer": regularizer, "image_size": image_size, "channels": channels, "buffer": buffer,
        "batch": batch, "replay_batch": replay_batch, "lr": lr, "weight": weight, "width": width, "seed": seed,
    }  # fmt: skip
    state = state or folder / ".cler"
    with _asked_to_stop() as stop:  # also while modules are imported, which would swallow Ctrl-C now and then
        from cler.learner.folder import TRIES, FolderLearner
        from cler.learner.watch import in_words, watch
        from cler.runs.folders import check_writable, locked
        from cler.runs.machine import threads as using_threads

        check_writable(state)
        with locked(state) as ours, using_threads(threads):
            if not ours:
                raise UsageError(f"another cler is learning in {state}: wait for it, or choose another --state")
            learner = _learner(state, {name: value for name, value in given.items() if value is not None}, device)
            share = _share_held_out(state, held_out)
            watched = FolderLearner(folder, state, learner, held_out=share, tries=1 if once else TRIES, message=say)
            with errors.status(f"waiting for images in {escape(str(folder))}/LABEL/") as line:
                watch(watched, stop, status=line.update, once=once, every=every, save_every=save_every)
    summary = watched.summary()
    print(json.dumps(summary, indent=1) if as_json else f"{in_words(summary)}; kept in {summary['learner']}")


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
