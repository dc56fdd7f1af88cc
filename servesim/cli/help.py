"""`--help`, which fits a screen, and `--help-all`, which lists every option.

`--help` lists the options that are marked COMMON, each with its first sentence. It lists all options of a command that
marks none.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from servesim.sentinels import COMMON

ALL = "--help-all"
EXAMPLES = 3
"""Number of examples in the help of a command that marks options."""


class Helped:
    """Command or group with `--help-all`, mixed into a class of typer's."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), _help_all(bool(common(self)))]  # type: ignore[misc]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if not is_short(self, ctx):
            super().format_options(ctx, formatter)  # type: ignore[misc]
            return
        for title, params in sorted(groups(self, ctx).items(), key=lambda group: group[0] == "Options"):
            if title == "Arguments":
                _write(formatter, title, _records(params, ctx))
                continue
            of = [param for param in params if param.rich_help_panel == COMMON]
            _write(formatter, title, [(name, first_sentence(text)) for name, text in _records(of, ctx)])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if not is_short(self, ctx):
            super().format_epilog(ctx, formatter)  # type: ignore[misc]
            return
        path, known = ctx.command_path, [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        examples = [line for line in (self.epilog or "").splitlines() if line.startswith("  servesim ")]  # type: ignore[attr-defined]
        text = f"`{path} {ALL}` lists all {len(known)} options by group"
        if hasattr(self, "group_names"):
            text += f"; `{ctx.find_root().command_path} settings WORD` searches the settings"
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n".join(("\b", "Examples:", *examples[:EXAMPLES])))
            formatter.write_paragraph()
            formatter.write_text(f"{text}.")


def common(command: Any) -> list[Any]:
    """Return the options of a command that are marked COMMON."""
    return [param for param in command.params if getattr(param, "rich_help_panel", None) == COMMON]


def is_short(command: Any, ctx: Any) -> bool:
    """Return whether the help of a command leaves options out."""
    return not ctx.meta.get(ALL) and bool(common(command))


def groups(command: Any, ctx: Any) -> dict[str, list[Any]]:
    """Return the parameters of a command by the title of their group. A command may know the groups of its options by
    name (`group_names`)."""
    found: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    known = command.group_names(ctx) if hasattr(command, "group_names") else {}
    for param in command.get_params(ctx):
        other = "Arguments" if param.param_type_name == "argument" else "Options"
        found.setdefault(known.get(param.name, other), []).append(param)
    return found


def write_groups(command: Any, ctx: Any, formatter: Any) -> None:
    """Write every parameter of a command, by group."""
    for title, params in groups(command, ctx).items():
        _write(formatter, title, _records(params, ctx))


def first_sentence(text: str) -> str:
    """Return the first sentence of an option's help, with the default in brackets."""
    sentence, *rest = re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)
    brackets = re.findall(r"\[default: [^\]]*\]", rest[0]) if rest else []
    return " ".join((sentence, *brackets))


def with_help_all(app: typer.Typer) -> None:
    """Give every command and group of an app `--help-all`, whichever package added it."""
    app.info.cls = _helped(_given(app.info.cls) or TyperGroup)
    for command in app.registered_commands:
        command.cls = _helped(_given(command.cls) or TyperCommand)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_help_all(group.typer_instance)
        if given := _given(group.cls):
            group.cls = _helped(given)


@cache
def _helped(cls: type[Any]) -> type[Any]:
    return cls if issubclass(cls, Helped) else type(cls.__name__, (Helped, cls), {})


def _given(cls: Any) -> Any:
    """Return a class, or None in place of typer's default."""
    return cls if isinstance(cls, type) else None


def _records(params: list[Any], ctx: Any) -> list[tuple[str, str]]:
    return [record for param in params if (record := param.get_help_record(ctx)) is not None]


def _write(formatter: Any, title: str, records: list[tuple[str, str]]) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


def made(parameters: list[inspect.Parameter]) -> list[Any]:
    """Return the options defined by parameters with typer's annotations."""

    def command() -> None:
        """Hold the options."""

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    maker = typer.Typer(add_completion=False, rich_markup_mode=None)
    maker.command()(command)
    return [*typer.main.get_command(maker).params]


@cache
def _help_all(differs: bool) -> Any:
    """Return the option `--help-all`, which is hidden where `--help` shows the same."""

    def show(ctx: typer.Context, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            typer.echo(ctx.get_help())
            raise typer.Exit

    option = typer.Option(ALL, help="Show every option by group and exit.", is_eager=True, callback=show)
    kind = inspect.Parameter.KEYWORD_ONLY
    (found,) = made([inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, option])])
    found.expose_value, found.hidden = False, not differs
    return found
