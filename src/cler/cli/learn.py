"""`cler learn`: a classifier that keeps learning from a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from cler.cli.app import AsJson, Imports, OwnSettings, app, console, errors, say
from cler.cli.options import command, spoken, takes_learner
from cler.errors import UsageError
from cler.signals import asked_to_stop

if TYPE_CHECKING:
    from cler.learner import Learner


@command(app, takes_learner())
def learn(
    given: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="Where images arrive, as FOLDER/LABEL/IMAGE.")],
    options: OwnSettings = None,
    imports: Imports = None,
    once: Annotated[bool, typer.Option("--once", help="Learn the images that are there now, and stop.")] = False,
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the images, chosen by name, to test on and never learn.",
            show_default="0.1",
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between checks of the folder.")] = 2.0,
    save_every: Annotated[float, typer.Option(help="Seconds between saves of the learner.")] = 60.0,
    state: Annotated[
        Path | None, typer.Option(help="Folder for the learner's file and its journal.", show_default="FOLDER/.cler")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; more than one helps wide networks.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Watch a folder, learn each image that arrives there once, and report accuracy on held-out images.

    It learns in batches; images that do not fill a batch wait for more. Ctrl-C saves and stops, and the same command
    resumes from there. A file that is written again, or removed and put back, counts as new, unless its whole folder
    was removed and put back. Images that move to another label are left out, with a line that says what to do. Folders
    inside FOLDER/LABEL are ignored.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; images are looked for in FOLDER/LABEL/")
    if held_out is not None and not 0 <= held_out < 1:
        raise UsageError(f"--held-out must be a share from 0 to less than 1, not {held_out}")
    for flag, seconds in {"--every": every, "--save-every": save_every}.items():
        if not seconds > 0:
            raise UsageError(f"{flag} must be above zero, not {seconds}")
    device = given.pop("device", "auto")
    state = state or folder / ".cler"
    with asked_to_stop() as stop:  # also while modules are imported, which would swallow Ctrl-C now and then
        from cler.learner.folder import TRIES, FolderLearner
        from cler.learner.watch import summary_line, watch
        from cler.runs.machine import threads as using_threads

        with _as_found_if_refused(state), _locked(state) as ours, using_threads(threads):
            if not ours:
                raise UsageError(f"another cler is learning in {state}: wait for it, or choose another --state")
            learner = _learner(state, given, options or [], device)
            share = _share_held_out(state, held_out)
            watched = FolderLearner(folder, state, learner, held_out=share, tries=1 if once else TRIES, message=say)
            if not once:
                say(f"watching {folder}/LABEL/ with {_described(learner)}; Ctrl-C saves and stops")
            with errors.status(f"waiting for images in {escape(str(folder))}/LABEL/") as line:
                watch(watched, stop, status=line.update, once=once, every=every, save_every=save_every)
    summary = watched.summary()
    if as_json:
        text = json.dumps(summary, indent=1, ensure_ascii=False)
        print(text.encode(errors="backslashreplace").decode())  # of names that are not UTF-8, as JSON writes such bytes
    else:
        console.print(f"{summary_line(summary)}; kept in {summary['learner']}", soft_wrap=True)


@contextmanager
def _as_found_if_refused(state: Path) -> Iterator[None]:
    """After a mistake, delete the folders that were made inside for the state, if they are empty."""
    missing = [each for each in (state, *state.parents) if not each.exists()]
    try:
        yield
    except UsageError:
        with suppress(OSError):
            for each in missing:
                each.rmdir()
        raise


@contextmanager
def _locked(state: Path) -> Iterator[bool]:
    """The folder of the state, made and locked; yields whether that worked, False if another process has it."""
    from cler.runs.folders import check_writable, locked

    try:
        check_writable(state)
    except UsageError as error:
        raise UsageError(f"{error}; choose another --state") from None
    with locked(state) as ours:
        yield ours


def _learner(state: Path, given: dict[str, Any], options: list[str], device: str) -> Learner:
    """The learner that is kept there, or a new one."""
    from cler.config.settings import own_settings
    from cler.learner import Learner
    from cler.learner.folder import LEARNER

    if not (state / LEARNER).exists():
        return Learner(**given, **_own_options(options, given), device=device)
    learner = Learner.load(state / LEARNER, device=device)
    parameters = learner.get_params()
    kept = {name: each.default for name, each in own_settings(parameters).items()} | parameters
    for name, value in (given | _own_options(options, kept)).items():
        _check_same(state, name, kept.get(name), value)
    return learner


def _described(learner: Learner) -> str:
    """What watches a folder: a learner that is kept there, by what it has seen, or a new one, by what it is."""
    from cler.config.settings import pair_of

    if learner.n_seen_:
        return f"the learner that is kept for it, which has seen {learner.n_seen_} images"
    given = learner.get_params()
    side, parts = given["image_size"], (given[name] or "none" for name in ("method", "regularizer", "teacher"))
    return f"a new learner, {pair_of(*parts)}, for which images are scaled to {side}×{side} pixels"


def _own_options(texts: list[str], chosen: dict[str, Any]) -> dict[str, Any]:
    """The values behind --set, one for each name, for a learner with the chosen parts."""
    from cler.config.reading import parse_options

    options = parse_options(texts, chosen)
    for name, value in options.items():
        if isinstance(value, list):
            raise UsageError(f"a learner takes one value, not {len(value)}: --set {name}=VALUE")
    return options


def _share_held_out(state: Path, given: float | None) -> float:
    """The share of images to hold out: that of the learner which is kept there, else the given one.

    With another share a learner would be tested on what it has learned.
    """
    from cler.files import read_json
    from cler.learner.folder import HELD_OUT, LEARNER

    path = state / HELD_OUT
    if not ((state / LEARNER).exists() and path.exists()):
        return 0.1 if given is None else given
    kept = read_json(path).get("held_out")
    if not (isinstance(kept, int | float) and 0 <= kept < 1):
        raise UsageError(f"{path} does not hold a share from 0 to less than 1: delete it, and give --held-out")
    _check_same(state, "held_out", kept, kept if given is None else given)
    return kept


def _check_same(state: Path, name: str, kept: Any, given: Any) -> None:
    if kept != given:
        flag = spoken(name)
        made = f"was made without {flag}" if kept is None or kept is False else f"has {flag} {kept}"
        raise UsageError(f"the learner in {state} {made}: leave {flag} out, or choose another --state")
