"""A hash of somebody's own code.

Of a module it is the whole file, but no other one that this imports. A program or notebook says other things too: of
these it is the class or function itself, and those that it names there. What it was given, such as a width, counts
everywhere.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

from cler.config.registry import class_or_function
from cler.runs.syntax import SAID, fingerprint

_fingerprint = cache(fingerprint)
_DEEP, _MANY = 5, 1000
"""How deep containers are looked into, and how many values of each count."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def hash_of(*things: Any) -> str | None:
    """A hash of classes or functions, also of some with arguments; None where there is no Python code of the user's.

    Code that was never in a file, such as a program that Python reads from its standard input, is hashed as compiled.
    """
    found = _Found()
    for thing in things:
        found.add(thing)
    if not found.sources and not found.compiled and not any(isinstance(thing, partial) for thing in things):
        return None
    words = [_fingerprint(source) for source in found.sources] + found.compiled + found.values
    return words[0] if len(words) == len(found.sources) == 1 else _digest(words)


class _Found:
    """The sources that some code is made of, and the values that they use."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.compiled: list[str] = []
        self.values: list[str] = []
        self._seen: set[Any] = set()

    def add(self, thing: Any) -> None:
        """A class or function, and what it was given."""
        while isinstance(thing, partial):
            self._use((thing.args, thing.keywords), given=True)
            thing = thing.func
        code = class_or_function(thing)
        if code in self._seen or _module(code).partition(".")[0] == "cler":
            return
        self._seen.add(code)
        if (source := source_of(code)) and source not in self.sources:  # a file may have several of them
            self.sources.append(source)
        in_program = not _has_file(code)
        for each in _family(code) if in_program else (code,):
            self._seen.add(each)
            if in_program and isinstance(each, type) and not _class_source(each):
                self._use(_attributes(each))
            for function in _functions(each):
                if in_program and not source:
                    self.compiled.append(_compiled(function.__code__))
                if in_program:
                    self._use_names(function)
                if in_program or "<locals>" in function.__qualname__:  # else its file says what is in there
                    self._use_closure(function)

    def _use_names(self, function: FunctionType) -> None:
        """What a function looks up outside itself, and the defaults of its arguments."""
        for name in sorted(_globals_of(function.__code__) & function.__globals__.keys()):
            self._use(function.__globals__[name])
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._use(value, given=True)

    def _use_closure(self, function: FunctionType) -> None:
        """What a function has from the one that it was made in."""
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # a name that nothing has been assigned to yet
                self._use(cell.cell_contents)

    def _use(self, value: Any, *, given: bool = False, depth: int = 0) -> None:
        """A value that code was `given` or uses: as it is where it is plain, else what it is made of.

        A list that it uses may be where it notes something while it runs, so that only lists that it was given count.
        """
        if isinstance(value, _PLAIN):
            self.values.append(repr(value))
        elif isinstance(value, Mapping | tuple) or (given and isinstance(value, list)):
            self.values.append(f"{len(value)} values")
            inside = [each for pair in value.items() for each in pair] if isinstance(value, Mapping) else list(value)
            for each in inside[:_MANY] if depth < _DEEP else ():
                self._use(each, given=given, depth=depth + 1)
        elif isinstance(value, partial):
            self.add(value)
        elif not inspect.ismodule(value):
            code = class_or_function(value)
            if _has_file(code):
                self.values.append(f"{_module(code)}.{code.__qualname__}")
            else:
                self.add(code)


@cache  # so that it stays that of the code which runs, though its file may be edited
def source_of(code: Any) -> str:
    """The file of some code; of a program or notebook only its own lines; nothing for what was never in a file."""
    try:
        if _has_file(code):
            return inspect.getsource(sys.modules[_module(code)])
        return "\n".join(_own_source(each) for each in _family(code)).strip()
    except (OSError, TypeError):
        return ""


def _own_source(code: Any) -> str:
    if not isinstance(code, type):
        return _whole(textwrap.dedent(inspect.getsource(code)))
    if source := _class_source(code):
        return source
    found = []
    for each in _functions(code):
        with suppress(OSError, TypeError):  # such as what a dataclass is given
            found.append(_whole(textwrap.dedent(inspect.getsource(each))))
    return "\n".join(found)


def _class_source(code: type) -> str:
    """The lines of a class; nothing in a notebook, where Python knows only those of functions."""
    try:
        source = textwrap.dedent(inspect.getsource(code))
        ast.parse(source)
    except (OSError, SyntaxError, TypeError):
        return ""
    return source if f"class {code.__name__}" in source else ""


def _whole(source: str) -> str:
    """Lines as they are, or the lambda in them where they begin or end in the middle of a call."""
    with suppress(SyntaxError):
        ast.parse(source)
        return source
    start = source.find("lambda")
    for end in range(len(source), start, -1) if start >= 0 else ():
        with suppress(SyntaxError):
            text = f"({source[start:end]})"
            if isinstance(ast.parse(text, mode="eval").body, ast.Lambda):
                return text
    raise OSError("these lines are no code")


def _family(code: Any) -> list[Any]:
    """A class with those that it inherits from, of the same program; or a function."""
    return [each for each in getattr(code, "__mro__", (code,)) if _module(each) == _module(code)]


def _attributes(code: type) -> dict[str, Any]:
    """What a class says besides its methods: values and classes inside it, but nothing for people."""
    kinds = (*_PLAIN, tuple, Mapping, type)
    said = {name: value for name, value in vars(code).items() if not name.startswith("__") and name not in SAID}
    return {name: value for name, value in said.items() if isinstance(value, kinds)}


def _functions(code: Any) -> Iterator[FunctionType]:
    """The functions that a class defines, also behind a property or a cache; or a function itself."""
    for each in vars(code).values() if isinstance(code, type) else (code,):
        inside = (getattr(each, name, None) for name in ("fget", "func", "__func__", "__wrapped__"))
        inner = each if isinstance(each, FunctionType) else next(filter(None, inside), None)
        if isinstance(inner, FunctionType):
            yield inner


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _compiled(code: CodeType) -> str:
    """What a function does, in words that are the same each time that this Python compiles it."""
    constants = [_compiled(each) if isinstance(each, CodeType) else _in_order(each) for each in code.co_consts]
    return repr((code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars))


def _in_order(constant: Any) -> str:
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _globals_of(code: CodeType) -> set[str]:
    """The names that code looks up outside itself, also in functions that it defines, and does not change."""
    names: dict[str, set[str]] = {"LOAD_GLOBAL": set(), "STORE_GLOBAL": set()}
    for each in dis.get_instructions(code):
        if each.opname in names:
            names[each.opname].add(str(each.argval))
    inside = (_globals_of(each) for each in code.co_consts if isinstance(each, CodeType))
    return (names["LOAD_GLOBAL"] - names["STORE_GLOBAL"]).union(*inside)


def _has_file(code: Any) -> bool:
    """Whether all of its module counts: not if that is a program or notebook."""
    name = _module(code)
    return name in sys.builtin_module_names or (name != "__main__" and hasattr(sys.modules.get(name), "__file__"))


def _module(code: Any) -> str:
    return str(getattr(code, "__module__", None))
