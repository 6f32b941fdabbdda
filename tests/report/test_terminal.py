import io
from pathlib import Path

import pytest

from cler.report.console import Terminal
from cler.report.content import make_report
from cler.report.csv_files import results_csv
from cler.report.markdown import markdown
from cler.report.numbers import format_p, tenths
from cler.report.summary import summary
from cler.report.terminal import comparison_table, markdown_table, one_sentence
from cler.runs.compare import Comparison, compare
from cler.runs.results import Result, make_result

ER_ACE = {
    "method": "er-ace",
    "regularizer": "none",
    "dataset": "toy",
    "tasks": 2,
    "buffer": 50,
    "epochs": 1,
    "lr": 0.01,
}
CLER = ER_ACE | {"regularizer": "jigsaw", "weight": 1.5}
FINETUNE = ER_ACE | {"method": "finetune", "buffer": 0}


def runs(settings, finals, forgotten=0.5):
    """Runs over two tasks with the given class-incremental accuracies, and task-incremental ones 20 higher."""
    for seed, final in enumerate(finals):
        last = 2 * final / (2 - forgotten)
        rows = [[last], [last * (1 - forgotten), last]]
        accuracy = {"class_il": rows, "task_il": [[accuracy + 20 for accuracy in row] for row in rows]}
        value = make_result(settings, seed, accuracy, 1.0, 1, {})
        yield Result.from_dict(Path(f"run{seed}"), value)


def groups_of(*pairs):
    return compare([run for settings, finals in pairs for run in runs(settings, finals)]).groups


@pytest.fixture
def groups():
    finetune = runs(FINETUNE, [16.0, 16.2, 15.8], forgotten=1.0)
    others = [*runs(ER_ACE, [30.0, 30.3, 29.7]), *runs(CLER, [32.3, 32.6, 32.0])]
    return compare([*finetune, *others]).groups


def printed(groups, width=80):
    return shown(comparison_table(groups), width)


def shown(table, width=80):
    stream = io.StringIO()
    Terminal(width=width, color_system=None, file=stream).print(table)
    return stream.getvalue()


def held_out(settings, final):
    value = make_result(
        settings, 0, {"class_il": [[50.0], [40.0, 50.0]], "task_il": [[50.0], [40.0, 50.0]]}, 1.0, 1, {}
    )
    rows = {"class_il": [[final], [final, final]], "task_il": [[final], [final, final]]}
    return Result.from_dict(Path("run"), value | {"validation": rows})


def test_accuracy_on_held_out_images_is_shown_and_the_best_marked():
    groups = compare([held_out(ER_ACE, 30.0), held_out(ER_ACE | {"lr": 0.1}, 31.25)]).groups
    table, plain = (
        printed(groups),
        printed(compare(run for group in groups for run in runs(group.settings, [9])).groups),
    )
    assert "held-" in table
    assert "held-" not in plain
    assert "gain" not in table  # none of the rows has one
    (best,) = [line for line in markdown_table(groups).splitlines() if "★" in line and line.startswith("| ER-ACE")]
    assert "31.25, ★" in best
    assert "lr 0.1" in best
    assert "★: the settings that do best there" in " ".join(table.split())
    report = make_report(Comparison(groups, ()))
    (line,) = summary(report).lines
    assert (line.best.settings["lr"], line.note) == (0.1, "lr 0.1, by held-out images")
    csv = results_csv(report)
    assert "held_out_accuracy" in csv.splitlines()[0]
    assert "31.25" in csv


def test_a_table_of_runs_before_their_end_says_after_which_task(groups):
    assert "as of the end of" not in printed(groups)
    early = compare([run.until(1) for group in groups for run in group.results]).groups
    assert "All numbers are as of the end of task 1 of 2." in " ".join(printed(early).split())
    joint = compare(runs({**FINETUNE, "method": "joint"}, [60.0])).groups
    joint[0].results[0].accuracy["class_il"].pop(0)  # one row, after all tasks at once
    assert "as of the end of" not in printed(joint)


def test_the_heading_of_the_buffer_is_broken_only_where_80_columns_are_too_few(groups):
    assert "buffer runs" in printed(groups[:2])  # without gains
    assert "buf-" in printed(groups)


@pytest.mark.parametrize(
    ("p_value", "text"),
    [
        (0.0, "p < 0.001"),
        (0.00099, "p < 0.001"),
        (0.001, "p = 0.001"),
        (0.02697, "p = 0.027"),
        (0.41, "p = 0.41"),
        (1.0, "p = 1.00"),
        (float("nan"), ""),
    ],
)
def test_p_values(p_value, text):
    assert format_p(p_value) == text


def test_halves_are_rounded_up_however_the_computer_writes_them():
    assert [*map(tenths, (13.85, 38.75, 0.05, 100.0, 36.149999))] == ["13.9", "38.8", "0.1", "100.0", "36.1"]


def test_markdown_is_that_of_the_report(groups):
    others = groups_of((ER_ACE | {"dataset": "zoo"}, [30.0]), (ER_ACE | {"dataset": "zoo", "lr": 0.1}, [31.0]))
    text = markdown_table([*groups, *others])
    assert markdown(make_report(Comparison((*groups, *others), ()))).endswith(f"\n\n{text}\n")
    assert "| ER-ACE + CLER (jigsaw) | 3 | 32.30 ± 0.30 | 50.0 | **+2.30** | 52.30 ± 0.30 |" in text
    assert text.index("## toy") < text.index("16.00 ± 0.20") < text.index("## zoo") < text.index("ER-ACE, lr 0.1 |")


def test_one_run_shows_neither_deviation_nor_p_value():
    groups = groups_of((ER_ACE, [30.0]), (CLER, [29.0]))
    *_, cler = [line.split() for line in printed(groups).splitlines() if line.startswith("ER-ACE")]
    assert cler[2:5] == ["1", "29.00", "50.0"]
    assert "p =" not in printed(groups)


def test_no_loss_is_shown_for_minus_zero():
    assert "+0.00" in printed(groups_of((ER_ACE, [30.001]), (CLER, [30.0])))


def test_rows_that_would_look_the_same_show_their_settings():
    text = printed(groups_of((ER_ACE, [30.0]), (ER_ACE | {"lr": 0.1}, [31.0]), (FINETUNE, [16.0])))
    assert text.count("lr 0.01") == text.count("lr 0.1 ") == 1


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_table_is_whole_at_common_widths(groups, width):
    text = printed(groups, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for cell in ("toy", "Finetune", "+ CLER (jigsaw)", "32.30±0.30", "+2.30", "p < 0.001", "52.30±0.30", "100.0"):
        assert cell in text


def test_several_datasets_and_markup_in_names_stay_readable():
    groups = groups_of((ER_ACE | {"dataset": "[red]x"}, [30.0]), (ER_ACE | {"dataset": "mini-imagenet"}, [12.0]))
    text = printed(groups)
    assert "…" not in text
    assert text.index("[red]x") < text.index("30.00") < text.index("mini-imagenet") < text.index("12.00")


def test_a_dataset_whose_name_looks_like_markup_is_a_title():
    assert "[/red]" in printed(groups_of((ER_ACE | {"dataset": "[/red]"}, [30.0])))


def test_empty_tables():
    assert "method" in printed([])
    assert markdown_table([]) == ""


def test_the_sentence_of_the_demo(groups):
    assert one_sentence(groups) == (
        "After 2 tasks Finetune has lost 100.0 % of its best accuracy on earlier tasks and keeps 16.0 % accuracy, "
        "replay (ER-ACE) keeps 30.0 %, and CLER (jigsaw) adds 2.3 points (p < 0.001; 3 seeds)."
    )


@pytest.mark.parametrize(
    ("finals", "says"),
    [
        ([27.0, 27.3, 26.7], "CLER (jigsaw) costs 3.0 points (p < 0.001; 3 seeds)."),
        (
            [30.2, 30.9, 29.8],
            "CLER (jigsaw) changes accuracy by +0.3 points, which is not significant (p = 0.46; 3 seeds).",
        ),
        (
            [29.0, 30.9, 29.2],
            "CLER (jigsaw) changes accuracy by -0.3 points, which is not significant (p = 0.66; 3 seeds).",
        ),
        ([33.0, 33.1], "CLER (jigsaw) adds 3.0 points (p < 0.001; 2 against 3 seeds)."),
        ([33.0], "CLER (jigsaw) changes accuracy by +3.0 points (1 against 3 seeds: too few to test)."),
    ],
)
def test_the_sentence_tells_the_truth(finals, says):
    sentence = one_sentence(groups_of((ER_ACE, [30.0, 30.3, 29.7]), (CLER, finals)))
    assert sentence == f"After 2 tasks replay (ER-ACE) keeps 30.0 % accuracy, and {says}"


def test_the_sentence_with_one_seed_each():
    assert one_sentence(groups_of((ER_ACE, [30.0]), (CLER, [31.0]))).endswith(
        "+1.0 points (one seed: too few to test)."
    )


def test_the_sentence_without_a_twin_claims_no_gain():
    assert one_sentence(groups_of((CLER, [33.0]))) == "After 2 tasks ER-ACE + CLER (jigsaw) keeps 33.0 % accuracy."


def test_the_sentence_names_the_method_when_there_are_several():
    er = ER_ACE | {"method": "er"}
    sentence = one_sentence(groups_of((ER_ACE, [30.0]), (er, [35.0]), (er | {"regularizer": "jigsaw"}, [36.0])))
    assert "CLER (jigsaw) on ER changes accuracy by +1.0" in sentence


def test_the_sentence_keeps_to_one_benchmark():
    sentence = one_sentence(groups_of((ER_ACE, [30.0]), (ER_ACE | {"dataset": "zoo"}, [99.0])))
    assert sentence == "After 2 tasks replay (ER-ACE) keeps 30.0 % accuracy."


def test_the_sentence_about_nothing():
    assert one_sentence([]) == "No run is complete yet."
