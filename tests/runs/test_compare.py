import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats

from cler.config.comparing import completed, of_a_row
from cler.errors import UsageError
from cler.metrics import METRICS, Metric
from cler.runs.compare import (
    best_by_validation,
    compare,
    distinguishing_settings,
    measured_against,
    without_teacher,
)
from cler.runs.results import Result, make_result

PLAIN = of_a_row(
    completed(
        {
            "method": "er-ace",
            "regularizer": "none",
            "weight": 0.0,
            "dataset": "toy",
            "tasks": 2,
            "buffer": 50,
            "epochs": 1,
            "lr": 0.01,
        }
    )
)
CLER = PLAIN | {"regularizer": "jigsaw", "weight": 1.5}


def run(settings, seed=0, final=40.0, path=None, **changes):
    """A run over two tasks whose class-incremental FAA is `final`, and whose task-incremental FAA is 20 more."""
    accuracy = {"class_il": [[80.0], [final, final]], "task_il": [[80.0], [final + 20, final + 20]]}
    value = make_result(settings, seed, accuracy, 1.0, 1, {}, **changes)
    return Result.from_dict(Path(path or f"run{seed}"), value)


def runs(settings, finals, **changes):
    return [run(settings, seed, final, **changes) for seed, final in enumerate(finals)]


def test_runs_that_differ_by_seed_form_a_group():
    (group,) = compare(reversed(runs(PLAIN, [30.0, 34.0, 38.0]))).groups
    assert group.seeds == [0, 1, 2]
    assert (group.final_accuracy["class_il"].mean, group.final_accuracy["class_il"].std) == pytest.approx((34, 4))
    assert group.final_accuracy["task_il"].mean == pytest.approx(54)
    assert group.adjusted_forgetting["class_il"].mean == pytest.approx(100 * (50 + 46 + 42) / 3 / 80)
    assert group.gain == {}
    assert group.label == "ER-ACE"


def test_runs_that_have_been_read_know_a_metric_that_is_added_or_replaced_later():
    comparison = compare(runs(PLAIN, [30.0, 34.0]))
    (group,) = comparison.groups
    comparison.to_json()
    METRICS["first_task"] = Metric(lambda rows: rows[0][0], "Right after it was learned.", "higher", "%")
    assert group.metrics["first_task"]["class_il"].mean == 80.0
    METRICS["first_task"] = Metric(lambda rows: -rows[0][0], "The same, negative.", "lower", "%")
    assert group.results[0].metrics["first_task"]["task_il"] == -80.0
    assert comparison.to_json()["groups"][0]["class_il"]["first_task"]["mean"] == -80.0
    assert pickle.loads(pickle.dumps(group.results[0])).metrics == group.results[0].metrics  # a lambda stays behind


def test_a_network_whose_width_cannot_be_chosen_is_told_without_one():
    kinds = [PLAIN | {"network": name, "width": width} for name, width in (("custom:mine:net", 64), ("resnet18", 8))]
    groups = compare([run(kind) for kind in kinds]).groups
    told = {distinguishing_settings(group, groups) for group in groups}
    assert told == {"network custom:mine:net", "network resnet18, width 8"}


def test_of_several_baselines_the_one_that_is_trained_alike_is_taken_or_a_line_says_that_none_is():
    narrow, wide = PLAIN | {"width": 8}, PLAIN | {"width": 64}
    runs = [run(narrow, final=30.0), run(wide, final=50.0), run(CLER | {"width": 8, "lr": 0.03}, final=35.0)]
    comparison = compare(runs, "er-ace")
    assert [row.gain["class_il"].points for row in comparison.groups if row.gain] == [pytest.approx(5.0)]
    assert comparison.complaints == ()
    comparison = compare([*runs, run(narrow | {"lr": 0.1})], "er-ace")
    assert not any(row.gain for row in comparison.groups)
    (told,) = comparison.complaints
    assert told.startswith(
        "ER-ACE + CLER (jigsaw) is measured against nothing: 3 rows are ER-ACE (width 64; width 8, lr"
    )
    assert told.endswith("; …), and none or several of them are trained as it is")
    exact = run(CLER | {"width": 8, "lr": 0.1}, final=45.0)
    assert [
        row.gain["class_il"].points
        for row in compare([*runs, run(narrow | {"lr": 0.1}), exact], "er-ace").groups
        if row.gain
    ] == [pytest.approx(5.0)]


def test_the_best_settings_are_those_of_the_same_parts_buffer_and_benchmark():
    changes = [{"teacher": "ema"}, {"teacher": "none"}, {"buffer": 9}, {"tasks": 4}]
    kinds = [PLAIN | change | {"lr": lr} for change in changes for lr in (0.1, 0.2)]
    results = [replace(run(kind), validation=run(kind, final=40.0 + n).accuracy) for n, kind in enumerate(kinds)]
    best = best_by_validation(compare(results).groups)
    names = ("teacher", "buffer", "tasks")
    assert {tuple(row.settings[name] for name in names) for row in best} == {
        tuple((PLAIN | change)[name] for name in names) for change in changes
    }
    assert [row.settings["lr"] for row in best] == [0.2] * len(changes)


def test_rows_are_rated_on_held_out_images_only_where_all_of_their_runs_have_some():
    whole, part = PLAIN | {"lr": 0.1}, PLAIN | {"lr": 0.2}
    results = [replace(run(kind, 0), validation=run(kind).accuracy) for kind in (whole, part)]
    groups = compare([*results, run(part, 1)]).groups
    assert [group.validation is not None for group in groups] == [True, False]
    assert best_by_validation(groups) == []


def test_of_two_runs_of_a_seed_the_one_that_was_evaluated_within_tasks_counts():
    plain, finer = (run(PLAIN | {"evaluate_every": every}, path=f"every-{every}/seed-0") for every in (0, 5))
    finer = replace(finer, curves={"task": []})
    for order in ([plain, finer], [finer, plain]):
        comparison = compare(order)
        assert comparison.complaints == ()
        assert comparison.groups[0].results == (finer,)


@pytest.mark.parametrize("other", [PLAIN, CLER])
def test_runs_on_different_images_of_one_name_are_said_to_be_so(other):
    known = [run(PLAIN, data="1a", path="then/seed-0/result.json"), run(PLAIN, seed=1, path="old/seed-1/result.json")]
    assert compare([*known, run(other, seed=2, data="1a")]).complaints == ()  # what a file does not say is the same
    (line,) = compare([*known, run(other, seed=2, data="2b", path="now/seed-2/result.json")]).complaints
    said = (
        "toy: not comparable, because its runs are on different images: 1 on 1a (then/seed-0 …), 1 on 2b (now/seed-2 …)"
    )
    assert line == said
    smaller = run(other | {"size": 16}, seed=2, data="2b")
    assert compare([*known, smaller]).complaints == ()


def test_the_machine_does_not_split_a_group_but_precision_does():
    here = [run(PLAIN | {"device": "cpu", "threads": 1}), run(PLAIN | {"device": "cuda", "threads": 8}, seed=1)]
    assert len(compare(here).groups) == 1
    assert len(compare([run(PLAIN | {"precision": "fp32"}), run(PLAIN | {"precision": "bf16"})]).groups) == 2


@pytest.mark.parametrize("key", ["method", "dataset", "tasks", "buffer", "epochs", "lr", "variant"])
def test_any_other_setting_splits_a_group(key):
    other = {"method": "xder", "dataset": "other", "variant": "clean"}.get(key, 7)
    assert len(compare([run(PLAIN), run(PLAIN | {key: other})]).groups) == 2


def test_numbers_are_compared_by_value_also_inside_lists():
    first, second = PLAIN | {"lr": 1, "class_order": [1, 0]}, PLAIN | {"lr": 1.0, "class_order": [1, 0]}
    assert len(compare([run(first), run(second, seed=1)]).groups) == 1
    assert len(compare([run(first), run(second | {"class_order": [0, 1]})]).groups) == 2


def test_gain_over_the_twin():
    before, after = [30.0, 31.0, 32.5], [33.0, 35.0, 34.5]
    plain, cler = compare(runs(CLER, after) + runs(PLAIN, before)).groups
    assert (plain.label, cler.label) == ("ER-ACE", "ER-ACE + CLER (jigsaw)")
    assert cler.twin is plain
    assert cler.gain["class_il"].points == pytest.approx(sum(after) / 3 - sum(before) / 3)
    assert cler.gain["class_il"].p_value == pytest.approx(scipy.stats.ttest_ind(before, after).pvalue)
    assert cler.gain["task_il"].points == pytest.approx(cler.gain["class_il"].points)


def twin_of(settings, *others):
    groups = compare([run(settings), *(run(other) for other in others)]).groups
    (group,) = [group for group in groups if group.regularized and group.settings == settings]
    return group.twin and group.twin.settings


def test_the_exact_twin_is_preferred():
    assert twin_of(CLER, PLAIN | {"lr": 0.1}, PLAIN, PLAIN | {"lr": 0.03}) == PLAIN


def test_the_only_candidate_may_differ_in_learning_rate_and_method_options():
    other = PLAIN | {"lr": 0.1, "alpha": 0.8}
    assert twin_of(CLER | {"alpha": 0.5}, other) == other


def test_several_inexact_candidates_are_no_twin():
    assert twin_of(CLER, PLAIN | {"lr": 0.1}, PLAIN | {"lr": 0.03}) is None


@pytest.mark.parametrize(
    "key",
    [
        "dataset",
        "tasks",
        "buffer",
        "epochs",
        "batch",
        "width",
        "class_order",
        "optimizer",
        "replay_batch",
        "precision",
    ],
)
def test_another_benchmark_is_no_twin(key):
    assert twin_of(CLER, PLAIN | {key: "other" if key == "dataset" else 99}) is None


def test_what_x_der_s_variant_feeds_cler_does_not_change_x_der_alone():
    plain = of_a_row(completed(PLAIN | {"method": "xder", "variant": "text"}))
    cler = plain | {"regularizer": "jigsaw", "weight": 1.5, "variant": "released"}
    assert twin_of(cler, plain) == plain
    assert twin_of(cler, plain | {"lr": 0.1}, plain) == plain
    assert twin_of(cler, plain, plain | {"variant": "released"}) == plain | {"variant": "released"}
    assert twin_of(cler, plain | {"buffer": 9}) is None
    plain = of_a_row(completed(PLAIN | {"method": "cope", "variant": "text"}))
    assert twin_of(plain | {"regularizer": "jigsaw", "weight": 1.5, "variant": "released"}, plain) is None


def test_a_regularized_group_is_no_twin():
    assert twin_of(CLER, CLER | {"regularizer": "rotation"}) is None


def test_settings_of_the_regularizer_do_not_hide_the_exact_twin():
    assert twin_of(CLER | {"head_depth": 2}, PLAIN, PLAIN | {"lr": 0.1}) == PLAIN


def test_one_run_has_a_gain_but_no_p_value_nor_deviation():
    _, cler = compare([run(PLAIN, final=30.0), run(CLER, final=35.0)]).groups
    value = json.loads(json.dumps(cler.to_json(), allow_nan=False))
    assert value["class_il"]["gain"] == {"points": pytest.approx(5), "p_value": None}
    assert value["class_il"]["accuracy"] == {"mean": pytest.approx(35), "std": None}
    assert (value["settings"], value["twin"]) == (CLER, PLAIN)
    assert (value["label"], value["runs"], value["seeds"]) == ("ER-ACE + CLER (jigsaw)", 1, [0])


def test_a_repeated_seed_counts_once_and_is_reported_when_different():
    same = [run(PLAIN, path="a"), run(PLAIN, path="b")]
    assert compare(same).complaints == ()
    comparison = compare([*same, run(PLAIN, final=41.0, path="c")])
    assert comparison.groups[0].seeds == [0]
    assert comparison.groups[0].final_accuracy["class_il"].mean == 40
    (complaint,) = comparison.complaints
    assert "seed 0" in complaint
    assert "kept a, not c" in complaint


def test_runs_that_did_not_finish_are_left_out_and_reported():
    comparison = compare(
        [run(PLAIN), run(PLAIN, 1, complete=False, path="half"), run(PLAIN, 2, failure="diverged\nhere", path="nan")]
    )
    assert comparison.groups[0].seeds == [0]
    assert comparison.complaints == (
        "left out: half (not finished: the command that began it resumes it, without --until-task)",
        "left out: nan (failed: diverged here)",
    )


def test_groups_come_in_the_order_of_the_paper_whatever_the_order_of_the_runs():
    finetune = PLAIN | {"method": "finetune", "buffer": 0}
    order = [finetune, PLAIN | {"method": "er"}, PLAIN, CLER, PLAIN | {"buffer": 500}, PLAIN | {"method": "mine"}]
    forward = compare([run(settings) for settings in order]).groups
    backward = compare([run(settings) for settings in reversed(order)]).groups
    assert [group.settings for group in forward] == order
    assert [group.settings for group in backward] == order


def test_gains_over_other_runs():
    er, small = {"method": "er"}, {"buffer": 9}
    runs = [run(PLAIN | er, seed, 30.0 + seed) for seed in range(3)]
    runs += [run(PLAIN, seed, 40.0 + seed) for seed in range(3)]
    runs += [run(CLER, seed, 42.0 + seed) for seed in range(3)]
    runs += [run(PLAIN | er | small, final=20.0), run(PLAIN | small, final=25.0), run(PLAIN | {"tasks": "1+1"})]
    groups = compare(runs, "er").groups
    points = {(group.pair, group.settings["buffer"]): group.gain["class_il"].points for group in groups if group.gain}
    assert points == {("er-ace", 50): 10.0, ("er-ace+jigsaw", 50): 12.0, ("er-ace", 9): 5.0}
    assert all(group.gain["class_il"].p_value < 0.01 for group in groups if group.gain and len(group.results) == 3)
    assert measured_against(groups) == "ER"
    assert measured_against(compare([run(PLAIN | er), run(PLAIN | small)], "er").groups) == "ER with a buffer of 50"
    the_same = compare(runs, next(group for group in groups if group.pair == "er-ace+jigsaw")).groups
    assert measured_against(the_same) == "ER-ACE + CLER (jigsaw) with a buffer of 50"
    assert measured_against(compare(runs).groups) == "the same method without the regularizer"
    turned = CLER | {"regularizer": "rotation"}  # two regularizers of one method
    assert measured_against(compare([run(CLER), run(turned)], "er-ace+rotation").groups) == "ER-ACE + CLER (rotation)"
    with pytest.raises(UsageError, match=r"compared, er, er-ace, er-ace\+jigsaw, not 'er-acee'; did you mean 'er-ace'"):
        compare(runs, "er-acee")


def test_distinguishing_settings_only_where_groups_look_the_same():
    groups = compare([run(PLAIN), run(PLAIN | {"lr": 0.1, "clip": 1}), run(CLER), run(PLAIN | {"buffer": 9})]).groups
    notes = [distinguishing_settings(group, groups, shown=("dataset", "buffer")) for group in groups]
    assert sorted(notes) == ["", "", "lr 0.01, clip –", "lr 0.1, clip 1"]
    assert all(
        bool(note) == (group.label == "ER-ACE" and group.settings["buffer"] == 50)
        for note, group in zip(notes, groups, strict=True)
    )
    assert "buffer 9" in distinguishing_settings(groups[0], groups)


def test_one_epoch_goes_without_saying_and_comes_first():
    longer = {"epochs": 5, "lr": 0.1}
    groups = compare([run(PLAIN | longer), run(PLAIN | longer | {"method": "er"}), run(CLER), run(PLAIN)]).groups
    assert [(group.label, distinguishing_settings(group, groups)) for group in groups] == [
        ("ER-ACE", ""), ("ER-ACE + CLER (jigsaw)", ""), ("ER", "5 epochs"), ("ER-ACE", "5 epochs")
    ]  # fmt: skip


def test_the_usual_benchmark_goes_without_saying_beside_others():
    blurry, held_out = {"stream": "blurry"}, {"validate": 0.1, "lr": 0.1}
    groups = compare([run(PLAIN), run(PLAIN | blurry), run(PLAIN | held_out)]).groups
    notes = sorted(distinguishing_settings(group, groups) for group in groups)
    assert notes == ["", "stream blurry", "validate 0.1"]


def test_a_protocol_is_named_and_what_it_says_is_not():
    protocol = {"protocol": "online-10+64", "replay_batch": 64, "normalize": False, "class_order": "seed"}
    others = {"replay_batch": 10, "normalize": True, "class_order": None}
    groups = compare(
        [
            run(PLAIN | others),
            run(PLAIN | protocol | {"sgd_momentum": 0.9, "lr": 0.001}),
            run(PLAIN | protocol | {"sgd_momentum": 0.9, "lr": 0.001, "normalize": True}),
            run(PLAIN | protocol | {"method": "er", "sgd_momentum": 0.0}),
        ]
    ).groups
    notes = sorted(f"{group.label}: {distinguishing_settings(group, groups)}" for group in groups)
    assert notes == [
        "ER-ACE: ",
        "ER-ACE: online-10+64",
        "ER-ACE: online-10+64, normalize True",
        "ER: online-10+64",
    ]


def test_rates_and_weights_are_told_though_a_protocol_has_them():
    cler = CLER | {"method": "er", "protocol": "online-10+64", "lr": 5e-4}
    groups = compare([run(cler | {"weight": 1.0}), run(cler | {"weight": 3.0}), run(cler | {"lr": 0.1})]).groups
    notes = sorted(distinguishing_settings(group, groups) for group in groups)
    assert notes == ["lr 0.0005, weight 1.0", "lr 0.0005, weight 3.0", "lr 0.1, weight 1.5"]


def test_another_network_is_told_in_every_row_of_its_method():
    groups = compare(
        [
            run(PLAIN | {"width": 4}),
            run(PLAIN | {"width": 16, "buffer": 9}),
            run(PLAIN | {"method": "dualnet", "width": 20}),
        ]
    ).groups
    notes = {group.label + str(group.settings["buffer"]): distinguishing_settings(group, groups) for group in groups}
    assert notes["DualNet50"] == ""
    assert notes["ER-ACE50"].startswith("width 4")
    assert notes["ER-ACE9"].startswith("width 16")


def test_another_benchmark_is_told_in_every_row_of_its_dataset():
    other = PLAIN | {"dataset": "another", "tasks": 5}
    groups = compare([run(PLAIN), run(CLER | {"tasks": 4}), run(PLAIN | {"method": "er"}), run(other)]).groups
    notes = {(group.label, group.settings["dataset"]): distinguishing_settings(group, groups) for group in groups}
    assert notes == {
        ("ER-ACE", "toy"): "tasks 2, dataset toy",
        ("ER-ACE + CLER (jigsaw)", "toy"): "tasks 4",
        ("ER", "toy"): "tasks 2",
        ("ER-ACE", "another"): "dataset another, tasks 5",
    }


def test_nothing_to_compare():
    assert compare([]).to_json() == {"groups": [], "complaints": []}


def test_the_same_without_a_teacher_differs_in_nothing_else():
    taught = CLER | {"teacher": "ema", "ema_momentum": 0.9}
    others = [CLER | {"lr": 0.5}, PLAIN, CLER | {"buffer": 9}]
    groups = compare([run(each) for each in (taught, *others)]).groups
    (group,) = [each for each in groups if each.settings["teacher"] == "ema"]
    assert without_teacher(group, groups) is None
    groups = compare([run(each) for each in (taught, *others, CLER)]).groups
    (group,) = [each for each in groups if each.settings["teacher"] == "ema"]
    assert without_teacher(group, groups).settings == CLER
    assert all(without_teacher(each, groups) is None for each in groups if each is not group)
