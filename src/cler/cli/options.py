"""How a command is made: what comes before it, and its options, derived from the settings of `cler.config`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cler.config.learner import learner_settings
from cler.config.machine import Machine
from cler.config.reading import imports_in, parse_settings
from cler.config.registry import DATASETS, import_code
from cler.config.schema import Setting, joined, settings_of
from cler.config.settings import PARTS, Settings, parts_with
from cler.errors import UsageError
from cler.files import as_path

_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH", bool: "true|false", str: "TEXT"}


class Commands(TyperGroup):
    """A command with commands of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command as usual; what is `train` in Python is called `run` here."""
        if args[0] == "train" and "run" in self.commands:
            raise UsageError("No such command 'train'. Did you mean 'run'?")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, in which flags take no value."""
        _show_no_values_of_flags(self.get_params(ctx))
        super().format_help(ctx, formatter)


class OnceEach(TyperCommand):
    """A command that refuses an option given twice, unless it can be repeated, instead of ignoring the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual; refuse options that are given more than once, arguments too many, and files as names."""
        try:
            _, extra, order = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as mistake:
            if option := getattr(mistake, "option_name", ""):
                self._check_argument(option, args, ctx.command_path)
                self._check_own(option)
            raise
        seen = set()
        for parameter in order:
            if parameter.name in seen and not parameter.multiple and parameter.nargs == 1:
                raise UsageError(f"{parameter.opts[0]} is given twice: give it once")
            seen.add(parameter.name)
        if extra and not any(parameter.is_eager for parameter in order):  # such as --help
            raise UsageError(f"unexpected extra argument '{extra[0]}': {self._instead_of(extra[0])}")
        left: list[str] = super().parse_args(ctx, args)
        for parameter in self.params:
            word = ctx.params.get(parameter.name or "")
            if isinstance(parameter, TyperArgument) and isinstance(word, str) and word.endswith(".py"):
                raise UsageError(f"{word} is a file: write --import {word}, and the name of what it registers")
            if parameter.name == "method" and isinstance(word, str) and "+" in word:
                _check_joined(word)
        return left

    def _check_argument(self, option: str, args: list[str], command: str) -> None:
        """Refuse an option that is an argument of this command, and say how that is written."""
        words = [word for each in args for word in each.split("=", 1)]
        for parameter in self.params:
            name = parameter.name or ""
            if isinstance(parameter, TyperArgument) and get_close_matches(option, [f"--{name}"], cutoff=0.8):
                given = words[words.index(option) + 1 :] or [name.upper()]
                raise UsageError(f"the {name} is an argument: {command} {given[0]}")

    def _check_own(self, option: str) -> None:
        """Refuse an option that is a setting of a part's own, and say how such settings are given."""
        name = option.lstrip("-").replace("-", "_")
        if any("--set" in each.opts for each in self.params) and (parts := parts_with(name)):
            raise UsageError(
                f"{option} is not a setting of all runs, but of the {', the '.join(parts)}: write --set {name}=VALUE"
            )

    def _instead_of(self, word: str) -> str:
        """What to do about an argument too many, which may name a part of a run."""
        tables = {**PARTS, "dataset": DATASETS}
        for parameter in self.params:
            table = tables.get(parameter.name or "", ())
            if near := [word] if word in table else get_close_matches(word, table, cutoff=0.8):
                argument = isinstance(parameter, TyperArgument)
                return "join several by commas" if argument else f"write {parameter.opts[0]} {near[0]}"
        return "leave it out"

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, with the choices that are registered; only here, because reading them imports PyTorch."""
        declared = settings_of(Settings) | settings_of(Machine) | learner_settings()
        for parameter in self.params:
            each = declared.get(parameter.name or "")
            if each and each.choices is not None and "`cler" not in each.help and isinstance(parameter, TyperOption):
                told, _, _ = (parameter.help or "").partition(" One of ")
                parameter.help = f"{told} One of {', '.join(each.choices)}."
        self._tell_whose_defaults()
        _show_no_values_of_flags(self.get_params(ctx))
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperArgument):
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # as `<list[Path]>`
            # Typer would show the bounds of some numbers, in a column that takes its width from the descriptions.
            parameter._get_number_range_help_str = lambda: ""  # type: ignore[attr-defined]
            if isinstance(shown := getattr(parameter, "show_default", None), str):
                # Typer would put it into brackets of its own.
                parameter._get_default_string = functools.partial(_as_it_is, shown)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def _tell_whose_defaults(self) -> None:
        """Beside each default of a command that trains, name the parts of a run that may have another one."""
        from cler.config.making import decided_by

        shown = {each.name: each for each in self.params if isinstance(each, TyperOption)}
        if "dataset" not in shown or "method" not in {each.name for each in self.params}:
            return
        for name, parts in decided_by().items():
            if name in shown and isinstance(default := shown[name].show_default, str):
                *others, last = [f"{part}'s" for part in parts]
                told = f"{', '.join(others)} or {last}" if others else last
                shown[name].show_default = f"{default.partition(', or the ')[0]}, or the {told}"


def _check_joined(word: str) -> None:
    """Refuse a method that is joined with what is added to it, as tables write it, and say how they are given."""
    method, *others = word.split("+")
    options = [(kind, joined([each for each in others if each in PARTS[kind]])) for kind in ("regularizer", "teacher")]
    if method in PARTS["method"] and all(each in PARTS["regularizer"] or each in PARTS["teacher"] for each in others):
        told = " ".join([method, *(f"--{kind} {names}" for kind, names in options if names)])
        raise UsageError(f"'{word}' is not a method alone: write {told}")


def _show_no_values_of_flags(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


def _as_it_is(shown: str, **_: Any) -> str:
    """Replaces the method of typer that says how a default is shown."""
    return shown


@dataclass(frozen=True)
class Given:
    """The settings that were given on a command line."""

    settings: dict[str, Any]
    """Values of `Settings` that were given, by name; a list where there are several, for a grid."""
    of_the_machine: dict[str, Any]
    """Values of `Machine` that were given, by name."""
    defaults: dict[str, Any]
    """Values of `Machine` that the command has where none are given, by name."""

    @property
    def machine(self) -> Machine:
        """The machine that was given."""
        return self.machine_with({})

    def machine_with(self, filed: Mapping[str, Any]) -> Machine:
        """The machine by the command line, then by a file's settings; refuses given settings that have no effect."""
        machine = Machine(**{**self.defaults, **filed, **self.of_the_machine})
        machine.check_given(self.of_the_machine)
        return machine

    def several(self, name: str) -> list[Any]:
        """The values that were given of a setting; none if it was not."""
        value = self.settings.get(name, [])
        return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class Derived:
    """Options of a command that are derived from settings."""

    known: Mapping[str, Setting]
    """The settings, by name."""
    argument: str
    """The setting that is a positional argument; empty for none."""
    read: Callable[[dict[str, Any]], Any]
    """Makes the command's parameter `given` of what stands on the command line, by name."""


NOTHING = Derived({}, "", lambda texts: None)
"""For commands that take no settings."""


def takes(
    *declared: type,
    argument: str = "",
    only: tuple[str, ...] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    helps: Mapping[str, str] = MappingProxyType({}),
) -> Derived:
    """The options of these dataclasses; the command's parameter `given` gets what was given, as a `Given`.

    `argument` names the setting that is a positional argument. With `only`, no other settings are taken;
    `defaults` are this command's own, and so are `helps`, for settings that mean something else to it.
    """
    known = {
        each.name: replace(each, default=defaults.get(each.name, each.default), help=helps.get(each.name, each.help))
        for one in declared
        for each in settings_of(one).values()
        if not only or each.name in only
    }
    return Derived(known, argument, lambda texts: _given(texts, known, defaults))


def takes_learner() -> Derived:
    """The options of a learner; the command's parameter `given` gets the values that were given, by name."""
    known = learner_settings()
    return Derived(known, "", lambda texts: {name: _one_value(known[name], text) for name, text in texts.items()})


def command(group: typer.Typer, derived: Derived = NOTHING, name: str | None = None) -> Callable[[Any], Any]:
    """Make a function a command of a group, with options for its own parameters and those `derived` from settings.

    Before it begins, the paths that are given to it are checked, and the user's own parts are imported, which its
    parameter `imports` names, or the settings file behind `config`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(**values: Any) -> Any:
            values = {name: _checked_paths(value) for name, value in values.items()}
            filed = imports_in(values["config"]) if values.get("config") else []
            for code in [*filed, *(values.get("imports") or ())]:
                import_code(code)
            if derived.known:
                texts = {name: values.pop(name) for name in derived.known}
                values["given"] = derived.read({name: text for name, text in texts.items() if text is not None})
            return function(**values)

        parameters = _parameters(function, derived)
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        group.command(name, cls=OnceEach, help=_paragraphs(function.__doc__))(called)
        return called

    return decorate


def _checked_paths(value: Any) -> Any:
    """A value, of which whatever is a path, or a list of some, is refused if it cannot be one."""
    if isinstance(value, list):
        return [_checked_paths(each) for each in value]
    return as_path(value) if isinstance(value, Path) else value


def _parameters(function: Callable[..., Any], derived: Derived) -> list[inspect.Parameter]:
    """What a command has arguments and options for, in the order of its help."""
    own = [each for each in inspect.signature(function, eval_str=True).parameters.values() if each.name != "given"]
    for each in own:
        _name_value(each)
    arguments = [each for each in own if isinstance(_marker(each), typer.models.ArgumentInfo)]
    options = [each for each in own if each not in arguments]
    made = {name: _derived_parameter(each, name == derived.argument) for name, each in derived.known.items()}
    first = [made.pop(derived.argument)] if derived.argument else []
    settings = [each for name, each in made.items() if derived.known[name].role != "machine"]
    of_the_machine = [each for name, each in made.items() if derived.known[name].role == "machine"]
    ordered = [*first, *arguments, *settings, *options, *of_the_machine]
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in ordered]


def _derived_parameter(each: Setting, is_argument: bool) -> inspect.Parameter:
    kind: Any = bool | None if _is_flag(each) else str | None
    annotation = Annotated[kind, _argument(each) if is_argument else _option(each)]
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _marker(parameter: inspect.Parameter) -> Any:
    metadata = getattr(parameter.annotation, "__metadata__", (None,))
    return metadata[0]


def _name_value(parameter: inspect.Parameter) -> None:
    """Call the value of a command's own option by the same name as those of settings, in its help."""
    marker = _marker(parameter)
    if isinstance(marker, typer.models.ArgumentInfo):
        marker.metavar = marker.metavar or parameter.name.upper()
    elif isinstance(marker, typer.models.OptionInfo) and marker.metavar is None:
        (kind, *_) = get_args(parameter.annotation)
        (kind, *_) = get_args(kind) or (kind,)
        marker.metavar = None if kind is bool else _METAVARS.get(kind)


def _paragraphs(docstring: str | None) -> str:
    """Each paragraph of a docstring as one line, which the terminal wraps."""
    return "\n\n".join(" ".join(each.split()) for each in inspect.cleandoc(docstring or "").split("\n\n"))


def _argument(each: Setting) -> Any:
    return typer.Argument(help=escape(each.help), metavar=each.name.upper(), show_default=str(each.default))


def _option(each: Setting) -> Any:
    flag = "--" + each.name.replace("_", "-")
    told = escape(each.help)  # a table [slurm] is no style
    panel = "Where and how to train" if each.role == "machine" else "Settings"
    if _is_flag(each) and each.default:
        negated = f"Do not {told[0].lower()}{told[1:]}"
        return typer.Option(f"--no-{flag[2:]}", help=negated, show_default=False, rich_help_panel=panel)
    if _is_flag(each):
        return typer.Option(flag, help=told, show_default=False, rich_help_panel=panel)
    told_already = each.default is None or "(default: " in each.help
    shown = "" if told_already else str(each.default).lower() if each.kind is bool else str(each.default)
    return typer.Option(
        flag,
        help=told,
        metavar=_METAVARS.get(each.kind, "TEXT"),
        show_default=shown or False,
        rich_help_panel=panel,
    )


def _given(texts: dict[str, Any], known: dict[str, Setting], defaults: Mapping[str, Any]) -> Given:
    """Turn the strings of the command line into values; a setting of a run may have several, for a grid."""
    run, machine = settings_of(Settings), settings_of(Machine)
    strings = {name: text for name, text in texts.items() if name in run and not _is_flag(known[name])}
    single = {name: _one_value(known[name], text) for name, text in texts.items() if name not in strings}
    settings = parse_settings(strings) | single
    return Given(
        settings={name: value for name, value in {**defaults, **settings}.items() if name in run},
        of_the_machine={name: value for name, value in single.items() if name in machine},
        defaults={name: value for name, value in defaults.items() if name in machine},
    )


def _one_value(each: Setting, text: Any) -> Any:
    """The value that a string means, or a flag, which stands for the opposite of the default."""
    return not each.default if _is_flag(each) else each.parsed(text)


def _is_flag(each: Setting) -> bool:
    """Whether an option has no value; one that a protocol may turn off has, to be turned on again."""
    return each.kind is bool and (not each.default or each.role == "machine")


def spoken(parameter: str) -> str:
    """How the command line writes a parameter: 'replay_batch' is --replay-batch."""
    return f"--set {parameter}" if parts_with(parameter) else "--" + parameter.replace("_", "-")
