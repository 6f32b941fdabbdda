import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import cler

SOURCE = Path(cler.__file__).parent
LAYERS = (
    "errors", "signals", "files", "processes", "pictures", "pretext", "metrics", "stats", "config", "data", "streams",
    "memory", "nets", "regularizers", "teachers", "methods", "engine", "tracking", "runs", "tune", "report", "frontier",
    "paper", "learner", "promises", "avalanche", "api", "cli",
)  # fmt: skip
"""From the bottom up: a module imports only from layers before its own, and from its own."""
FACADE = {"__init__", "__main__"}


def in_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_brings_nothing_but_torch_and_cler_and_does_nothing_else():
    """So that it takes hardly longer than importing torch; no image file is opened, nor is scipy imported."""
    code = """
import random, sys, torch
before, states, threads = set(sys.modules), (random.getstate(), torch.get_rng_state()), torch.get_num_threads()
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import cler, cler.data, cler.stats
new = {name.partition(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names
assert new == {"cler"}, new
assert states[0] == random.getstate() and torch.equal(states[1], torch.get_rng_state())
assert threads == torch.get_num_threads()
assert not torch.cuda.is_initialized()
assert not [path for path in opened if path.endswith((".xz", ".json", ".bin"))], opened
"""
    in_python(code)


def test_all_but_figures_works_without_the_packages_of_the_report():
    code = """
import sys
for name in ("matplotlib", "timm", "tensorboard", "torchvision", "datasets", "pytest", "hypothesis"):
    sys.modules[name] = None  # as if it were not installed
import pkgutil, importlib, cler
skipped = {"cler.__main__", "cler.report.figures"}  # it runs; matplotlib
skipped.add("cler.avalanche")  # the package of that name
for module in pkgutil.walk_packages(cler.__path__, "cler."):
    if module.name not in skipped and not module.name.endswith("_gpu"):  # Triton
        importlib.import_module(module.name)
from cler.cli import app
from typer.testing import CliRunner
assert CliRunner().invoke(app, ["methods"]).exit_code == 0
"""
    in_python(code)


def test_the_rooms_below_the_commands_do_without_the_paper():
    code = """
import sys
sys.modules["cler.paper"] = None  # as if its folder were deleted
import pkgutil, importlib, cler
skipped = {"cler.__main__", "cler.paper", "cler.cli", "cler.avalanche"}  # as above
for module in pkgutil.walk_packages(cler.__path__, "cler.", onerror=lambda name: None):
    below = any(module.name == name or module.name.startswith(name + ".") for name in skipped)
    if not below and not module.name.endswith("_gpu"):
        importlib.import_module(module.name)
from cler.config.making import make_settings
assert make_settings(method="er-ace", dataset="cifar100").buffer > 0
"""
    in_python(code)


@pytest.mark.parametrize("name", [name for name in cler.__all__ if not name.startswith("__")])
def test_public_names_exist_and_are_explained(name):
    thing = getattr(cler, name)
    assert inspect.getdoc(thing)
    assert thing.__doc__, f"{name} has only the docstring of what it is made from"


def modules():
    """Every module of the package, by its path inside it."""
    return sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def layer_of(path):
    return path.parts[0].removesuffix(".py")


def imported(path, text):
    """What a module imports from the package, anywhere in it: full name and layer."""
    package = ["cler", *path.parts[:-1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "cler" else [module]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "cler":
                yield name, [*name.split("."), ""][1]


def upward_imports(path, text):
    """The imports that break the rule: of a layer above the module's own, or of none."""
    own = layer_of(path)
    if own in FACADE:
        return []
    allowed = {"__version__", *LAYERS[: LAYERS.index(own) + 1]}
    return [name for name, layer in imported(path, text) if layer not in allowed]


def test_every_module_has_a_layer():
    assert {layer_of(path) for path in modules()} - FACADE <= set(LAYERS)


def test_imports_point_to_rows_above():
    found = {path: upward_imports(path, (SOURCE / path).read_text("utf-8")) for path in modules()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("path", "line", "wrong"),
    [
        ("data/stream.py", "from cler.methods import METHODS", ["cler.methods"]),
        ("data/stream.py", "import cler.methods.base", ["cler.methods.base"]),
        ("data/stream.py", "from cler import methods, errors", ["cler.methods"]),
        ("data/stream.py", "from ..methods import METHODS", ["cler.methods"]),
        ("data/stream.py", "def later():\n    from cler.engine.run import Run", ["cler.engine.run"]),
        ("data/stream.py", "import cler", ["cler"]),
        ("data/stream.py", "from .images import ImageData", []),
        ("data/stream.py", "from cler.errors import UsageError\nimport torch", []),
        ("runs/execute.py", "from cler import __version__, data", []),
        ("__init__.py", "from cler.methods import METHODS", []),
    ],
)
def test_an_import_that_points_upwards_is_found(path, line, wrong):
    assert upward_imports(Path(path), line) == wrong


ONLY_UNIX = {
    "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "curses", "readline",
    *(f"os.{name}" for name in (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "chown", "fchmod", "fchown", "fork",
        "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "nice", "pread", "pwrite",
        "register_at_fork", "sched_getaffinity", "setsid", "statvfs", "sysconf", "uname",
    )),
    *(f"signal.{name}" for name in (
        "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXFSZ", "alarm",
        "pause", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait",
    )),
    "select.poll", "select.epoll", "socket.AF_UNIX", "socket.socketpair",
}  # fmt: skip
GUARDED = {"signal.SIGALRM": "signal.setitimer"}
"""What comes with something else that a module has looked for."""


def only_unix(text):
    """What a module uses, without having looked for it, that there is on Unix only."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")

    def is_looked_for(name):
        module, _, attribute = GUARDED.get(name, name).partition(".")
        return f'hasattr({module}, "{attribute}")' in text

    return {name for name in found & ONLY_UNIX if not is_looked_for(name)}


def test_nothing_is_used_that_only_unix_has():
    found = {path: only_unix((SOURCE / path).read_text("utf-8")) for path in modules()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("def later():\n    import fcntl", {"fcntl"}),
        ("from resource import getrlimit", {"resource"}),
        ("from os import fork", {"os.fork"}),
        ("import os\nos.kill(os.getpid(), os.getuid())", {"os.getuid"}),
        ("signal.signal(signal.SIGHUP, signal.SIG_IGN)", {"signal.SIGHUP"}),
        ('if hasattr(os, "fork"):\n    os.fork()', set()),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", set()),
    ],
)
def test_what_only_unix_has_is_found(text, wrong):
    assert only_unix(text) == wrong


SCRIPTS = [
    path for folder in ("benchmarks", "tools") for path in sorted((Path(__file__).parents[1] / folder).glob("*.py"))
]
"""Nothing else runs all of these, and they are not in the source distribution."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_only_what_there_is(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cler":
            module = importlib.import_module(node.module)
            there = {*dir(module), *(each.name for each in pkgutil.iter_modules(getattr(module, "__path__", ())))}
            assert {each.name for each in node.names} <= there
