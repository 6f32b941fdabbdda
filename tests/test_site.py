"""The site: every page is built without a warning, and nothing public is left out of its reference."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cler

ROOT = Path(__file__).parent.parent
CONFIGURATION = ROOT / "mkdocs.yml"


@pytest.mark.skipif(not CONFIGURATION.exists(), reason="mkdocs.yml is not in the source distribution")
def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"CLER_RUN_TOUR": "false", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    home = (tmp_path / "index.html").read_text("utf-8")
    assert 'href="frontier/"' in home  # where the README says docs/frontier.md
    assert "own_tracker.py" in (tmp_path / "examples" / "index.html").read_text("utf-8")
    commands = (tmp_path / "commands" / "index.html").read_text("utf-8")
    assert '<span class="word">--dry-run</span>' in commands  # which is not broken at a hyphen
    reproduction = (tmp_path / "reproduction" / "index.html").read_text("utf-8")
    assert '<a href="../questions/"><code>' in reproduction  # where a report can only name the file
    train = (tmp_path / "api" / "training" / "index.html").read_text("utf-8")
    assert "replay_batch" in train


def names_of_the_reference():
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    return {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", pages, re.MULTILINE)}


def test_the_reference_has_every_public_name():
    assert set(cler.__all__) - {"__version__"} <= names_of_the_reference()


def test_the_reference_has_what_the_files_of_contributing_use():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    files = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^from cler\.\S+ import (.*)$", "\n".join(files), re.MULTILINE)
    used = {name for line in lines for name in line.split(", ")} - {"register", "setting"}
    assert used >= {"Reservoir", "Plan", "Lesson", "Entry"}
    assert used - names_of_the_reference() <= {
        "Terms",
        "Advance",
        "ImageData",
        "Status",
    }  # types, and members of others
