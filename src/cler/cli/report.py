"""`cler report`: a report on runs, as a page and as documents; the page also while they are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cler.cli.app import Folders, Imports, app, console, errors, say
from cler.cli.compare import Against, given_or_usual
from cler.cli.options import command
from cler.errors import UsageError
from cler.signals import asked_to_stop

if TYPE_CHECKING:
    from cler.report.content import Report
    from cler.runs.scan import Scan


@command(app)
def report(
    folders: Folders = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")] = Path("report"),
    against: Against = None,
    preface: Annotated[
        Path | None,
        typer.Option(
            help="Your own Markdown to put before the tables: paragraphs, headings (##) and tables; what follows a "
            "line of --- goes at the end."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the page as runs train, until Ctrl-C; an open page reloads.")
    ] = False,
    every: Annotated[
        float | None, typer.Option(help="Seconds between checks of the folders.", show_default="5")
    ] = None,
    imports: Imports = None,
) -> None:
    """Report on runs: a web page, Markdown, LaTeX and CSV, with the paper's numbers beside ours.

    The page, index.html, is a single file that needs no network. It also shows how far unfinished runs have come. The
    paper's numbers are shown for runs with its settings.
    """
    folders = given_or_usual(folders, wait=watch)
    if every is not None and not watch:
        raise UsageError("is for --watch: give both", "every")
    if every is not None and not 0.1 <= every <= 86400:
        raise UsageError(f"must be from 0.1 to 86400 seconds, not {every:g}", "every")
    if watch:
        with asked_to_stop() as stop:  # also while modules are imported, which would swallow Ctrl-C now and then
            scan, text = _begin(folders, preface)
            _watch(scan, against, text, out, 5.0 if every is None else every, stop)
    else:
        scan, text = _begin(folders, preface)
    scan.update(wait=watch)
    if not (watch or scan.results or scan.unfinished):
        for line in scan.complaints:
            say(line)
        raise UsageError("there is no run in " + ", ".join(map(str, folders)))
    _write_all(_report(scan, against, text, wait=watch), out)


def _begin(folders: list[Path], preface: Path | None) -> tuple[Scan, str]:
    """What looks for runs in the folders, and the text that comes before the tables."""
    from cler.files import read_text
    from cler.runs.scan import Scan

    return Scan(folders), read_text(preface) if preface else ""


def _watch(scan: Scan, against: str | None, preface: str, out: Path, every: float, stop: Callable[[], bool]) -> None:
    """Write the page now and whenever something has changed, until somebody asks to stop."""
    from cler.report.content import readable
    from cler.report.watch import watch
    from cler.report.write import PAGE, write_page

    def write() -> None:
        write_page(_report(scan, against, preface, wait=True, quiet=True), out, live=every)

    console.print(f"{readable(str(out / PAGE))} follows the runs; Ctrl-C ends it", soft_wrap=True)
    with errors.status("looking for runs") as line:
        watch(scan, write, stop, every=every, status=line.update)


def _report(scan: Scan, against: str | None, preface: str, *, wait: bool, quiet: bool = False) -> Report:
    """The report on what has been found; unless `quiet`, says what was left out.

    Gains are measured `against` other runs, which have to be among those that have finished unless it may `wait`.
    """
    from cler.paper.report_section import beside_paper
    from cler.report.content import make_report
    from cler.runs.compare import compare

    comparison = compare(scan.results)
    if against and (any(one.pair == against for one in comparison.groups) or (comparison.groups and not wait)):
        comparison = compare(scan.results, against)
    elif against and not quiet:
        say(f"gains are not measured against {against}, of which no run has finished")
    beside = beside_paper(comparison.groups)
    if against:  # while the paper's gains are over the method alone
        beside = replace(beside, gains={}, caution="")
    if not quiet:
        for line in [*scan.complaints, *comparison.complaints]:
            say(line)
    return make_report(
        comparison,
        scan.complaints,
        preface=preface,
        beside=beside,
        unfinished=scan.unfinished,
        attachments=scan.attachments,
    )


def _write_all(made: Report, out: Path) -> None:
    """Write every format and say where; without a finished run there is only the page."""
    from cler.report.content import readable
    from cler.report.numbers import count_runs
    from cler.report.write import write_page, write_report

    if made.unfinished:
        say(f"{count_runs(made.unfinished)} not finished: the page shows the progress")
    written = write_report(made, out) if made.sections else [write_page(made, out)]
    for path in written:
        console.print(readable(str(path)), soft_wrap=True)
