"""A report as a LaTeX document with booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cler.report.content import Report
from cler.report.prose import Block, Grid, Heading, Paragraph, pieces
from cler.report.sections import Section
from cler.report.sheets import Cell, Column, Sheet, shared_headings

PACKAGES = r"\usepackage{array,booktabs,longtable}"
PREAMBLE = rf"""\documentclass{{article}}
\usepackage[a4paper,landscape,margin=15mm]{{geometry}}
{PACKAGES}
\setlength{{\parindent}}{{0pt}}
\setlength{{\tabcolsep}}{{4pt}}
\begin{{document}}
\footnotesize"""
NAME_COLUMN = r">{\raggedright\arraybackslash}p{58mm}"
SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": "$<$", ">": "$>$", "|": "$|$", '"': "''",
    "±": r"$\pm$", "−": "$-$", "–": "--", "×": r"$\times$", "≠": r"$\neq$", "λ": r"$\lambda$", "†": r"\dag{}", "’": "'",
}  # fmt: skip
CODE = SPECIAL | {"-": "-{}", "_": r"\char95{}", "$": r"\char36{}", "'": r"\char13{}"} | {one: one for one in '<>|"'}
"""As `SPECIAL`, but for a typewriter font, so that commands can be copied."""
LACKING = "«»ÐÞðþ"
"""Characters of Latin-1 that LaTeX's standard fonts lack."""


def latex(report: Report) -> str:
    """The whole report as a document that pdflatex compiles."""
    return "\n\n".join(filter(None, _parts(report))) + "\n"


def latex_sections(sections: Sequence[Section]) -> str:
    """The sections of a report as LaTeX to put into a document, one for each dataset."""
    return "\n\n".join(filter(None, [f"% needs {PACKAGES}", *_sections(sections)]))


def escape(text: str) -> str:
    """A string that LaTeX prints as it is, in one paragraph; a question mark for what its fonts lack."""
    return _printed(" ".join(text.split()), SPECIAL)


def _paragraph(text: str) -> str:
    """A paragraph in which LaTeX prints what stands between backticks as code."""
    return "".join(
        rf"\texttt{{{_printed(part, CODE)}}}" if code else _printed(part, SPECIAL)
        for part, code in pieces(" ".join(text.split()))
    )


def _printed(text: str, special: Mapping[str, str]) -> str:
    return "".join(special.get(each, each if _known(each) else "?") for each in text)


def _known(character: str) -> bool:
    return character <= "\xff" and character.isprintable() and character not in LACKING


def _parts(report: Report) -> Iterator[str]:
    yield PREAMBLE
    yield rf"\section*{{{escape(report.title)}}}"
    if report.beside.sheets:
        yield escape(report.beside.counts_in_words)
        yield from map(escape, report.beside.verdict)
    yield from map(_block, report.preface)
    yield "\n".join(rf"\textbf{{{escape(name)}:}} {escape(value)}\\" for name, value in report.facts)
    if report.beside.sheets:
        yield rf"\section*{{{escape(report.beside.possessive)} tables}}"
        yield escape(report.beside.agreement)
        yield escape(report.beside.reading)
    for sheet in report.beside.sheets:
        yield from _sheet(sheet)
    yield from _sections(report.sections)
    yield from map(_block, report.notes)
    if report.complaints:
        yield r"\section*{Left out}"
        yield "\n".join(rf"{escape(line)}\\" for line in report.complaints)
    yield r"\end{document}"


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return rf"\section*{{{_paragraph(text)}}}"
        case Paragraph(text):
            return _paragraph(text)
        case Grid(columns, rows):
            width = f"{0.94 / len(columns):.3f}"
            kinds = rf">{{\raggedright\arraybackslash}}p{{{width}\textwidth}}" * len(columns)
            lines = [r"\toprule", _line(map(_paragraph, columns)), r"\midrule", r"\endhead"]
            lines += [*(_line(map(_paragraph, row)) for row in rows), r"\bottomrule"]
            return "\n".join([rf"\begin{{longtable}}{{@{{}}{kinds}@{{}}}}", *lines, r"\end{longtable}"])


def _sections(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        yield rf"\section*{{{escape(section.title)}}}"
        yield escape(section.summary)
        for sheet in section.sheets:
            yield from _sheet(sheet)


def _sheet(sheet: Sheet) -> Iterator[str]:
    yield rf"\subsection*{{{escape(sheet.title)}}}"
    yield _table(sheet)
    yield escape(sheet.note)
    yield from map(escape, sheet.stamps)


def _table(sheet: Sheet) -> str:
    kinds = "".join("r" if column.numeric else "l" for column in sheet.columns[1:])
    headings = [r"\toprule", *_above(sheet.columns), _line(escape(column.heading) for column in sheet.columns)]
    lines = [*headings, r"\midrule", r"\endhead", *_rows(sheet), r"\bottomrule"]
    begin = rf"\begin{{longtable}}{{@{{}}{NAME_COLUMN}{kinds}@{{}}}}"
    return "\n".join([begin, *lines, r"\end{longtable}"])


def _rows(sheet: Sheet) -> Iterator[str]:
    for heading, rows in sheet.blocks:
        if heading:
            yield rf"\multicolumn{{{len(sheet.columns)}}}{{@{{}}l}}{{\textit{{{escape(heading)}}}}} \\*"
        yield from (_line(map(_cell, row.cells)) for row in rows)


def _above(columns: Sequence[Column]) -> Iterator[str]:
    """The line of headings that columns share, with a rule under each; nothing where there are none."""
    if not (shared := shared_headings(columns)):
        return
    cells, rules, place = [], [], 1
    for above, width in shared:
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(above)}}}")
        rules += [rf"\cmidrule(lr){{{place}-{place + width - 1}}}"] if above else []
        place += width
    yield _line(cells)
    yield "".join(rules)


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    text = rf"\textbf{{{escape(cell.text)}}}" if cell.strong else escape(cell.text)
    return rf"{text} {{\scriptsize {escape(cell.note)}}}" if cell.note else text
