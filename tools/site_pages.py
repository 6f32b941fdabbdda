"""Pages of the site that are files elsewhere in the repository, and links between pages there and here.

Files link to each other as they lie in the repository, so that links work where it is browsed. On the site the README
is the first page, and a log is shown as it is.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "src/cler/data/sample/README.md": "sample.md",
}
"""Where pages outside docs/ are on the site."""
EXAMPLES = "examples.md"
LOGS = "tools/*.log"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#]+)")
_FILE = re.compile(r"`docs/(\w+)\.md`")  # as a report says it, which has no links
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_WORD = re.compile(r"(?<!\S)\S{1,30}(?!\S)")
_RUN = re.compile(r"^```python exec.*$", re.MULTILINE)


def on_files(files, config):
    """Add what is not in docs/."""
    pages = {page: _read(ROOT / source) for source, page in PAGES.items()}
    programs = [f"## {path.name}\n\n```python\n{_read(path)}```" for path in sorted(ROOT.glob("examples/*.py"))]
    logs = {_as_text(path.relative_to(ROOT).as_posix()): _read(path) for path in ROOT.glob(LOGS)}
    for name, content in {**pages, EXAMPLES: "\n\n".join(["# Examples", *programs]), **logs}.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Let links lead to where files are on the site, and show code that is not to be run."""
    here = page.file.src_uri
    source = next((source for source, name in PAGES.items() if name == here), f"docs/{here}")

    def moved(match):
        place = _place(os.path.normpath(os.path.join(os.path.dirname(source), match[1])))
        return os.path.relpath(place, os.path.dirname(here) or ".") if place else match[1]

    if "markdown-exec" not in config.plugins:
        markdown = _RUN.sub("```python", markdown)
    return _LINK.sub(moved, _FILE.sub(r"[\g<0>](\1.md)", markdown))


def on_page_content(html, page, config, files):
    """Let the style sheet keep a name or an option in code from being broken at a hyphen."""
    return _CODE.sub(lambda code: _WORD.sub(r'<span class="word">\g<0></span>', code[0]), html)


def _place(target):
    """The path on the site of a file of the repository, or None for what is not there."""
    if target in PAGES:
        return PAGES[target]
    if target.partition("/")[0] == "examples":
        return EXAMPLES
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return _as_text(target) if Path(target).match(LOGS) else None


def _read(path):
    return path.read_text(encoding="utf-8")


def _as_text(name):
    """The name of a file that a browser shows as text."""
    return f"{name}.txt"
