import re
from pathlib import Path

import pytest

from cler.frontier import arithmetic
from cler.runs import folders

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "frontier"
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="results are not in the source distribution")


def test_a_page_a_figure_and_a_table_in_another_file(cler_here, tmp_path, monkeypatch):
    monkeypatch.setattr(arithmetic, "flops_per_image", lambda shape: 1.0)
    (tmp_path / "README.md").write_text("Mine.\n\n<!-- frontier -->\n<!-- /frontier -->\nEnd.\n")
    command = ("frontier", RESULTS, "--into", "README.md", "--arithmetic", "counts.json")
    code, out, err = cler_here(*command)
    assert code == 0, err
    assert out.split() == ["frontier.md", "frontier.png", "README.md"]
    assert re.search(r"counting arithmetic, 7 of \d\d: method ", err)
    assert ": method xder, regularizer jigsaw, teacher ema" in err
    page, readme = ((tmp_path / name).read_text() for name in ("frontier.md", "README.md"))
    assert page.startswith("# Accuracy and arithmetic\n")
    table = readme.partition("<!-- frontier -->\n")[2].partition("<!-- /frontier -->\nEnd.\n")[0]
    assert table.startswith("| protocol |")
    assert table in page
    assert (tmp_path / "frontier.png").stat().st_size > 10_000
    (tmp_path / "README.md").write_text(readme.replace("| protocol |", "| old |"))
    assert "counting" not in cler_here(*command).err
    assert (tmp_path / "README.md").read_text() == readme


def test_counts_in_a_folder_with_results_are_used(cler_here, monkeypatch):
    monkeypatch.setattr(arithmetic, "flops_per_image", lambda shape: pytest.fail("counted what was known"))
    code, _, err = cler_here("frontier", RESULTS.parent / "blurry", RESULTS)
    assert (code, "counting" in err) == (0, False), err


def test_a_file_without_a_place_for_the_table_is_refused_and_stays(cler_here, tmp_path, monkeypatch):
    monkeypatch.setattr(arithmetic, "flops_per_image", lambda shape: pytest.fail("counted before it was refused"))
    (tmp_path / "README.md").write_text("Mine.\n")
    code, _, err = cler_here("frontier", RESULTS, "--into", "README.md")
    assert code == 2
    assert "--into README.md needs the lines <!-- frontier --> and <!-- /frontier -->" in err
    assert (tmp_path / "README.md").read_text() == "Mine.\n"


def test_a_page_in_the_place_of_something_else_is_refused_before_anything_is_tried_there(cler_here, monkeypatch):
    monkeypatch.setattr(folders, "check_writable", lambda folder: pytest.fail(f"tried to write to {folder}"))
    code, _, err = cler_here("frontier", RESULTS, "--out", "/dev/null")
    assert code == 2
    assert "--out /dev/null: is not a plain file; give a file for the page" in err


def test_runs_of_something_else_are_refused(cler_here):
    code, _, err = cler_here("frontier", ROOT / "results" / "mini-imagenet" / "joint_mini-imagenet_precision-bf16")
    assert code == 2
    assert "none of these runs is comparable" in err


def test_a_place_where_nothing_can_be_kept_is_told_in_one_line(cler_here, tmp_path, monkeypatch):
    monkeypatch.setattr(arithmetic, "flops_per_image", lambda shape: 1.0)
    (tmp_path / "file").write_text("")
    code, _, err = cler_here("frontier", RESULTS, "--arithmetic", "file/counts.json")
    assert code == 2
    assert err.splitlines()[-1] == "cler: cannot write to file/counts.json: File exists"
