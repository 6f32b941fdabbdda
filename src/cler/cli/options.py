"""Options of commands, derived from the settings as they are declared in `cler.config`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from cler.config.schema import Setting, settings_of
from cler.config.settings import PARTS, Settings, parts_with
from cler.errors import UsageError
from cler.files import as_path

_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH", bool: "true|false", str: "TEXT"}


class Commands(TyperGroup):
    """A command with commands of its own."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, in which flags take no value."""
        _show_no_values_of_flags(self.get_params(ctx))
        super().format_help(ctx, formatter)


class OnceEach(TyperCommand):
    """A command that refuses an option given twice, unless it can be repeated, instead of ignoring the first.

    The user's own parts, which its parameter `imports` or the settings file behind `config` names, are imported before
    it begins.
    """

    def invoke(self, ctx: Any) -> Any:
        """Import what is to be imported, then begin."""
        filed = imports_in(as_path(ctx.params["config"])) if ctx.params.get("config") else []
        for code in [*filed, *(ctx.params.get("imports") or ())]:
            import_code(code)
        for parameter in self.params:
            word = ctx.params.get(parameter.name or "")
            if isinstance(parameter, TyperArgument) and isinstance(word, str) and word.endswith(".py"):
                raise UsageError(f"{word} is a file: write --import {word}, and the name of what it registers")
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse options that are given more than once and arguments too many, then parse as usual."""
        try:
            _, extra, order = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as mistake:
            self._check_own(getattr(mistake, "option_name", ""))
            raise
        seen = set()
        for parameter in order:
            if parameter.name in seen and not parameter.multiple and parameter.nargs == 1:
                raise UsageError(f"{parameter.opts[0]} is given twice: give it once")
            seen.add(parameter.name)
        if extra and not any(parameter.is_eager for parameter in order):  # such as --help
            raise UsageError(f"unexpected extra argument '{extra[0]}': {self._instead_of(extra[0])}")
        return super().parse_args(ctx, args)

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
            if word in tables.get(parameter.name or "", ()):
                argument = isinstance(parameter, TyperArgument)
                return "join several by commas" if argument else f"write {parameter.opts[0]} {word}"
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


def takes(
    *declared: type,
    argument: str = "",
    only: tuple[str, ...] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    helps: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Any], Any]:
    """Give a command the options of these dataclasses; its parameter `given` gets what was given, as a `Given`.

    `argument` names the setting that is a positional argument. With `only`, no other settings are taken;
    `defaults` are this command's own, and so are `helps`, for settings that mean something else to it.
    """
    known = {
        each.name: replace(each, default=defaults.get(each.name, each.default), help=helps.get(each.name, each.help))
        for one in declared
        for each in settings_of(one).values()
        if not only or each.name in only
    }
    return _taking(known, argument, lambda texts: _given(texts, known, defaults))


def takes_learner() -> Callable[[Any], Any]:
    """Give a command the options of a learner; its parameter `given` gets the values that were given, by name."""
    known = learner_settings()
    return _taking(known, "", lambda texts: {name: _one_value(known[name], text) for name, text in texts.items()})


def _taking(known: dict[str, Setting], argument: str, read: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """Give a command options for these settings; `read` makes its `given` of those that stand on the command line."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(**values: Any) -> Any:
            texts = {name: values.pop(name) for name in known if name in values}
            return command(given=read({name: text for name, text in texts.items() if text is not None}), **values)

        signature = inspect.signature(command, eval_str=True)
        own = [each for name, each in signature.parameters.items() if name != "given"]
        derived = {each.name: each for each in _parameters(known, argument)}
        first = [derived.pop(argument)] if argument else []
        arguments = [each for each in own if isinstance(_marker(each), typer.models.ArgumentInfo)]
        settings = [each for name, each in derived.items() if known[name].role != "machine"]
        of_the_machine = [each for name, each in derived.items() if known[name].role == "machine"]
        options = [each for each in own if each not in arguments]
        ordered = [*first, *arguments, *settings, *options, *of_the_machine]
        ordered = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in ordered]
        wrapped.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {each.name: each.annotation for each in ordered}
        return wrapped

    return decorate


def _marker(parameter: inspect.Parameter) -> Any:
    metadata = getattr(parameter.annotation, "__metadata__", (None,))
    return metadata[0]


def _parameters(known: dict[str, Setting], argument: str) -> Iterator[inspect.Parameter]:
    for name, each in known.items():
        kind: Any = bool | None if _is_flag(each) else str | None
        marker = _argument(each) if name == argument else _option(each)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, marker])


def name_values(command: Callable[..., Any]) -> None:
    """Call the values of a command's own options by the same names as those of settings, in its help."""
    parameters = inspect.signature(command, eval_str=True).parameters
    for name, parameter in parameters.items():
        marker = _marker(parameter)
        if isinstance(marker, typer.models.ArgumentInfo):
            marker.metavar = marker.metavar or name.upper()
        elif isinstance(marker, typer.models.OptionInfo) and marker.metavar is None:
            (kind, *_) = get_args(parameter.annotation)
            (kind, *_) = get_args(kind) or (kind,)
            marker.metavar = None if kind is bool else _METAVARS.get(kind)
    command.__annotations__ |= {name: parameter.annotation for name, parameter in parameters.items()}


def _argument(each: Setting) -> Any:
    return typer.Argument(help=escape(each.help), show_default=str(each.default))


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
