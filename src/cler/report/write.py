"""Write a report to disk in every format."""

from __future__ import annotations

from pathlib import Path

from cler.errors import UsageError
from cler.files import write_text, writing
from cler.report.content import Report
from cler.report.csv_files import results_csv, runs_csv
from cler.report.latex import latex
from cler.report.markdown import markdown
from cler.report.page import page

PAGE = "index.html"
FORMATS = {
    PAGE: page,
    "report.md": markdown,
    "report.tex": latex,
    "results.csv": results_csv,
    "runs.csv": runs_csv,
}


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write every format into a folder, which is made if it is missing, and return the files."""
    return _write({name: render(report) for name, render in FORMATS.items()}, folder)


def write_page(report: Report, folder: Path, *, live: float | None = None) -> Path:
    """Write only the page; with `live`, one that loads itself again every so many seconds."""
    return _write({PAGE: page(report, live=live)}, folder)[0]


def _write(texts: dict[str, str], folder: Path) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: give another folder for the report")
    for name, text in texts.items():
        with writing(folder / name):
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)
    return [folder / name for name in texts]
