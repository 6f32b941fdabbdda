import csv
import io
import re
import shutil
import subprocess

import pytest

from cler.report.content import make_report
from cler.report.csv_files import results_csv, runs_csv
from cler.report.latex import escape, latex
from cler.report.markdown import markdown

AWKWARD = "a|b_<i>&%$#{}~^\\ λ±– 名\n\n\x01é«Þ"


def lines_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def rows_of(text):
    """The tables of a Markdown document, as lists of rows of cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def test_markdown_has_every_row_with_its_numbers(runs):
    text = markdown(runs.usual())
    assert text.startswith("# Results of 12 runs on toy\n\n- Runs: 12 in 4 rows")
    header, alignment, *rows = rows_of(text)
    assert header[:3] == ["method", "runs", "class-incremental: accuracy"]
    assert alignment[:2] == ["---", "---:"]
    assert [rows[0][0], rows[3][0]] == ["**without a buffer**", "**buffer 50**"]
    assert rows[5][:5] == ["ER-ACE + CLER (jigsaw)", "3", "33.00 ± 1.50", "45.0", "**+3.00**"]
    assert "| 0.009 (3) |" in text


def test_markdown_shows_awkward_names_as_they_are(runs):
    text = markdown(runs.report((runs.plain, [30.0]), (runs.plain | {"variant": AWKWARD}, [31.0])))
    header, *rows = rows_of(text)
    assert {len(row) for row in rows} == {len(header)}
    assert r"variant a\|b\_&lt;i>" in text


def test_the_sections_come_in_order(runs, published):
    comparison = runs.compare(
        (runs.plain | {"dataset": "printed"}, [20.0]), (runs.cler | {"dataset": "printed"}, [24.0])
    )
    preface = "## What differs\n\n| what | why |\n|---|---|\n| all | `x_y` |\n\n---\n## At last\n\nNotes."
    report = make_report(comparison, preface=preface, beside=published(comparison))
    parts = ["An Atlas", "Of 3 accuracies in the atlas, 1 agree", "Its claim holds.", "What differs", "what"]
    parts += ["All accuracies agree.", "ER-ACE + CLER", "Results", "At last", "Notes."]
    for text in (markdown(report), latex(report)):
        places = [text.index(part) for part in parts]
        assert places == sorted(places)
        assert "Left out" not in text
    assert "| what | why |\n| --- | --- |\n| all | `x_y` |" in markdown(report)
    assert r"all & \texttt{x\char95{}y} \\" in latex(report)


def test_markdown_has_the_marks_of_published_numbers(runs, published):
    comparison = runs.compare((runs.plain | {"dataset": "printed"}, [20.0]))
    text = markdown(make_report(comparison, beside=published(comparison)))
    assert "[Table 1](#table-1)" in text
    assert "| ER-ACE | ✓ +0.1 | ≠ −3.0 |\n| Joint |  | · |" in text


def test_latex_escapes():
    assert escape("50 % of a_b") == r"50 \% of a\_b"
    assert escape("−1.5 ± 2 < 3 ≠") == r"$-$1.5 $\pm$ 2 $<$ 3 $\neq$"
    assert escape(r"\{$}") == r"\textbackslash{}\{\$\}"
    assert escape("é名Þ\x01") == "é???"
    assert escape("two\n\nparagraphs") == "two paragraphs"


def test_commands_can_be_copied_from_latex(runs):
    preface = "Try `cler run --set a_b='1'`, then `x < \"y\"` -- so."
    text = latex(runs.report((runs.plain, [30.0]), preface=preface))
    assert r"Try \texttt{cler run -{}-{}set a\char95{}b=\char13{}1\char13{}}, then" in text
    assert r'then \texttt{x < "y"} -- so.' in text


def test_latex_is_booktabs_with_shared_headings(runs):
    text = latex(runs.usual())
    for line in (r"\usepackage{array,booktabs,longtable}", r"\toprule", r"\midrule", r"\bottomrule", r"\end{document}"):
        assert line in text
    assert r"\multicolumn{3}{c}{class-incremental} & \multicolumn{3}{c}{task-incremental} \\" in text
    assert r"\cmidrule(lr){3-5}\cmidrule(lr){6-8}" in text
    assert r"\multicolumn{8}{@{}l}{\textit{buffer 50}} \\*" in text
    assert r"ER-ACE + CLER (jigsaw) & 3 & 33.00 $\pm$ 1.50 & 45.0 & \textbf{+3.00} &" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles_whatever_the_names(runs, published, tmp_path):
    odd = runs.plain | {"dataset": AWKWARD}
    pairs = [(runs.plain | {"dataset": "printed"}, [19.0, 20.0]), (odd, [30.0]), (odd | {"variant": AWKWARD}, [31.0])]
    comparison = runs.compare(*pairs)
    report = make_report(comparison, preface=AWKWARD, beside=published(comparison))
    (tmp_path / "report.tex").write_text(latex(report), "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout.decode("latin-1")[-2000:]
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_results_as_numbers(runs):
    lines = lines_of(results_csv(runs.usual()))
    assert len(lines) == 8
    cler = lines[-2]
    assert (cler["label"], cler["scenario"], cler["runs"]) == ("ER-ACE + CLER (jigsaw)", "class_il", "3")
    assert (float(cler["accuracy"]), float(cler["accuracy_std"]), float(cler["gain"])) == pytest.approx((33, 1.5, 3))
    assert float(cler["gain_welch_low"]) < 3 < float(cler["gain_bootstrap_high"])
    assert float(cler["p_holm"]) == pytest.approx(2 * float(cler["p_student"]))
    assert (cler["weight"], cler["pairs"]) == ("1.5", "3")
    assert (lines[0]["gain"], lines[0]["weight"]) == ("", "0.0")


def test_published_numbers_have_columns_of_their_own(runs, published):
    comparison = runs.compare((runs.plain | {"dataset": "printed"}, [20.0]), (runs.plain, [30.0]))
    lines = lines_of(results_csv(make_report(comparison, beside=published(comparison))))
    assert [(line["dataset"], line["atlas_accuracy"]) for line in lines] == [("printed", "20.0")] * 2 + [
        ("toy", "")
    ] * 2


def test_nothing_is_said_of_forgetting_where_everything_is_learned_at_once(runs):
    report = runs.report((runs.joint, [45.0, 46.0]), (runs.plain, [30.0]))
    joint, _, plain, _ = lines_of(results_csv(report))
    assert joint["adjusted_forgetting"] == joint["adjusted_forgetting_std"] == ""
    assert float(plain["adjusted_forgetting"]) == pytest.approx(50)
    joint, _, plain = lines_of(runs_csv(report))
    assert {joint[f"{metric}_class_il"] for metric in ("adjusted_forgetting", "forgetting", "backward_transfer")} == {
        ""
    }
    assert (joint["accuracy_class_il"], plain["adjusted_forgetting_class_il"]) == ("45.0", "50.0")


def test_a_line_for_each_run(runs):
    awkward = runs.plain | {"dataset": 'a,"b"\n', "class_order": [1, 0]}
    lines = lines_of(runs_csv(runs.report((awkward, [30.0, 31.0]), (runs.plain, [20.0]))))
    assert [(line["seed"], line["accuracy_class_il"]) for line in lines] == [
        ("0", "30.0"),
        ("1", "31.0"),
        ("0", "20.0"),
    ]
    assert lines[0]["dataset"] == 'a,"b" '
    assert lines[0]["class_order"] == "[1, 0]"
    assert lines[0]["hardware"] == "Abacus 9"
    assert lines[0]["path"] == "er-ace-none/0/result.json"
