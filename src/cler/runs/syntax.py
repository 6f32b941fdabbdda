"""A hash of what source code does: comments, docstrings, annotations, messages and renames do not change it."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PROSE = re.compile(r"\w{3,}\W* \w")
"""Marks a string as text for people, not one that decides something."""
SAID = frozenset({"about", "title", "summary", "revision", "REVISION"})
"""Names of attributes that are for people, or the revision itself."""
_LEFT_OUT = frozenset({"ctx", "returns", "annotation", "type_comment", "type_params", "kind"})


@dataclass
class Names:
    """Identifiers that code defines itself, and that can therefore be renamed."""

    functions: set[str] = field(default_factory=set)
    """Functions, methods and classes."""
    attributes: set[str] = field(default_factory=set)
    """What is assigned to objects, and fields of classes."""
    arguments: set[str] = field(default_factory=set)
    """What functions and classes are given by name."""
    variables: set[str] = field(default_factory=set)

    def add(self, node: ast.AST) -> None:
        """Note what one node defines."""
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self.functions.add(name)
                self.variables.add(name)
                for each in node.body if isinstance(node, ast.ClassDef) else ():
                    self._add_field(each)
            case ast.arg(arg=name):
                self.arguments.add(name)
                self.variables.add(name)
            case ast.Attribute(ctx=ast.Store()):
                self.attributes.add(node.attr)
            case ast.Name(ctx=ast.Store()):
                self.variables.add(node.id)
            case ast.ImportFrom() if _of_the_package(node):
                self.variables |= {each.asname or each.name for each in node.names}

    def _add_field(self, node: ast.stmt) -> None:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                self.attributes.add(name)
                self.arguments.add(name)


def defined_names(sources: Iterable[str]) -> Names:
    """All identifiers that these files define."""
    names = Names()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            names.add(node)
    return names


def fingerprint(source: str, beside: Names | None = None) -> str:
    """A short hash of what a file does.

    Identifiers that it defines, or that files `beside` it do, are numbered as they first occur in it; all others, such
    as those of torch, stand for themselves.
    """
    names = defined_names([source])
    if beside:
        names.functions |= beside.functions
        names.attributes |= beside.attributes
        names.arguments |= beside.arguments
    writer = _Writer(names)
    writer.write(ast.parse(source))
    return hashlib.sha256("\0".join(writer.words).encode()).hexdigest()[:16]


class _Writer:
    """Writes a syntax tree as a list of words."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.words: list[str] = []
        self.numbers: dict[str, int] = {}
        self.origins: dict[str, str] = {}
        """What names that were imported from other packages stand for."""

    def write(self, value: Any) -> None:
        """Append a node with all that is below it, or a list of nodes, or a plain value."""
        match value:
            case list():
                self._say("[", *value, "]")
            case ast.AST() if _changes_nothing(value):
                pass
            case ast.Import() | ast.ImportFrom():
                self._note_origins(value)
            case ast.Raise():
                self._say("Raise")
            case ast.Assert():
                self._say("Assert", value.test)
            case ast.AnnAssign(value=ast.expr() as assigned):
                self.write(ast.Assign([value.target], assigned))
            case ast.Name():
                self._say(self.origins.get(value.id) or self._name(value.id, value.id in self.names.variables))
            case ast.Attribute():
                self._write_attribute(value, called=False)
            case ast.Call(func=ast.Attribute() as method):
                self._say("Call")
                self._write_attribute(method, called=True)
                self._say(value.args, value.keywords)
            case ast.keyword():
                self._say(self._name(value.arg or "**", value.arg in self.names.arguments), value.value)
            case ast.Constant():
                self._say(_constant(value))
            case ast.JoinedStr() if "prose" in map(_constant, value.values):
                self._say("prose")
            case ast.AST():
                self._write_any(value)
            case _:
                self.words.append(str(value))

    def _say(self, *values: Any) -> None:
        for value in values:
            self.write(value)

    def _write_any(self, node: ast.AST) -> None:
        self._say(type(node).__name__, "(")
        for name, value in ast.iter_fields(node):
            if name in ("name", "arg", "rest", "names") and isinstance(value, str | list):
                names = [value] if isinstance(value, str) else value
                self._say(*(self._name(each, known=True) if isinstance(each, str) else each for each in names))
            elif name not in _LEFT_OUT:
                self.write(value)
        self._say(")")

    def _write_attribute(self, node: ast.Attribute, *, called: bool) -> None:
        """What is called may be a method of a tensor that has the name of a field of ours; on `self` it is ours."""
        on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ours = node.attr in self.names.functions
        ours |= (on_self or not called) and node.attr in self.names.attributes
        self._say("Attribute", node.value, self._name(node.attr, ours))

    def _name(self, name: str, known: bool) -> str:
        if not known or (name.startswith("__") and name.endswith("__")):
            return name
        return f"#{self.numbers.setdefault(name, len(self.numbers))}"

    def _note_origins(self, node: ast.Import | ast.ImportFrom) -> None:
        if _of_the_package(node):
            return
        for each in node.names:
            if isinstance(node, ast.ImportFrom):
                self.origins[each.asname or each.name] = f"{node.module}.{each.name}"
            elif each.asname:
                self.origins[each.asname] = each.name


def _of_the_package(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cler"


def _constant(node: ast.AST) -> str:
    value = getattr(node, "value", None)
    if isinstance(value, str) and PROSE.search(value):
        return "prose"
    return f"{type(value).__name__} {value!r}"


def _changes_nothing(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.AnnAssign(value=None):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.keyword(arg=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in SAID
    return False
