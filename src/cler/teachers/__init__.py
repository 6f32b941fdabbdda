"""Teachers: slow copies of the network that answer in its place, or teach it. A new one is a new file here, named in
`_FILES`."""

from __future__ import annotations

from importlib import import_module

from cler.teachers.base import TEACHERS, Lesson, Teacher, register

_FILES = ("ema", "mkd")
for _file in _FILES:
    import_module(f"cler.teachers.{_file}")

__all__ = ["TEACHERS", "Lesson", "Teacher", "register"]
