"""The options of a scenario, which `run`, `compare`, `sweep` and `capacity` share, generated from its fields and
docstrings.

A field `engine.block_size` is `--engine.block-size`. Parameters of policies and limits, which the policies and the
trace define, are options too (`--scheduler.max-num-seqs 64`). Hyphens and underscores are interchangeable.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from servesim.cli.completion import values_of
from servesim.cli.help import made, write_groups
from servesim.errors import Interrupted, UserError, suggest
from servesim.sentinels import COMMON

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

OTHER_NAMES = {
    "rate": ("--rate", "--request-rate"),
    "preset": ("--engine", "--preset"),
    "clients.tool": ("--client", "--clients.tool"),
    "clients.max_concurrency": ("--max-concurrency", "--clients.max-concurrency"),
    "engine.ignore_memory": ("--ignore-memory", "--engine.ignore-memory"),
}
"""Options whose names differ from their fields', or that have additional names; help shows the first name."""
SET = (
    "Set any key of the scenario. Repeatable. Policy parameters and limits are also options: "
    "--scheduler.max-num-seqs 64, --slo.ttft 500, --slo-classes.CLASS ttft:300,tpot:50."
)
SERVE = (
    "Take settings from a quoted command that starts a server: 'vllm serve MODEL --tensor-parallel-size 4', "
    "sglang.launch_server, trtllm-serve, or @FILE. Flags that have no effect here are listed. compare accepts "
    "several commands."
)
TRUST = "Allow code (FILE.py:CLASS) that is named only in a file, such as a scenario or a result. Read the code first."
SAVE = "Write the scenario as YAML, with every key, and continue."
OPTIONS = "options"
"""Key under which a command finds the options of features."""
BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0")


@dataclass(frozen=True)
class Setting:
    """One option of a scenario."""

    key: str
    """Key in the scenario, such as `engine.block_size`."""
    section: str
    """Heading in the help under which the option is listed."""
    help: str
    type: Any = str
    """Type of a single value: int, float, str or list[str]."""
    shown: str = ""
    """Placeholder of the value in the help; empty for a switch."""
    words: tuple[str, ...] = ()
    """Values that may follow a switch; a switch without one is set to `on`."""
    on: str = "true"
    common: bool = False
    """Whether `--help` lists it, not only `--help-all`: its field is annotated with COMMON."""
    optional: bool = False
    """Whether a number need not be given: the word none stands for that."""
    open: bool = False
    """Whether it has parts that no field declares: parameters of a policy, limits, parts of a data sheet or config."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names on the command line, with hyphens for underscores in the fields' names."""
        outer, dot, inner = self.key.partition(".")
        inner = inner if outer == "slo_classes" else inner.replace("_", "-")
        return OTHER_NAMES.get(self.key, (f"--{outer.replace('_', '-')}{dot}{inner}",))


class TrustCommand(TyperCommand):
    """Command that reads files which may name code, with the option `--trust`. The option is handled where the command
    line begins (servesim.cli.app), before any file is read. The message for an interrupt names the policy call during
    which it arrived."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *_trust()]

    def invoke(self, ctx: Any) -> Any:
        ctx.params.pop("trust", None)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from servesim.cli.interrupted import call_during

            if call := call_during(error):
                raise Interrupted(f"during {call}; nothing was written") from None
            raise


class ScenarioCommand(TrustCommand):
    """Command with every option of a scenario. `context.obj` holds the given settings: values by key, in the order
    typed, and the texts of `--set` under `set`. The options are created on first use, since they require pydantic. If
    the command has an option of its own of the same name, only `--set` reaches the setting."""

    several = False
    """Whether values are comma-separated lists, which are kept as unconverted text."""
    _params: list[Any]
    _whole: bool

    @property
    def params(self) -> list[Any]:
        """The command's own parameters and, from the first access on, one option per setting."""
        if not self._whole:
            self._whole = True
            own = {name for param in self._params for name in param.opts}
            settings = _options(_settings(), self.several)
            self._params += [option for option, _ in settings if not own.intersection(option.opts)]
        return self._params

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._params, self._whole = [*own], False

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *(option for option, _ in ctx.meta.get(__name__, ()))]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        more = _settings_of_own(own_features_in(args) or own_features_of_files(args))
        own = {name for param in super().get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        words, parts = canonical(args, own, more)
        ctx.meta[__name__] = [*_options(more, self.several), *_options(parts, self.several)]
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        keys = {option.name: s.key for option, s in (*_options(_settings(), self.several), *ctx.meta[__name__])}
        given = {keys[name]: ctx.params.pop(name) for name in [*ctx.params] if name in keys}
        ctx.obj = self.given(ctx, {key: value for key, value in given.items() if value not in (None, [], ())})
        return super().invoke(ctx)

    def given(self, ctx: Any, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the object that the command finds in `context.obj`. `settings` are those typed."""
        return settings

    def group_names(self, ctx: Any) -> dict[str, str]:
        """Return the sections of the settings by the names of their options."""
        known = (*_options(_settings(), self.several), *ctx.meta.get(__name__, ()))
        return {option.name: setting.section for option, setting in known}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_groups(self, ctx, formatter)


class RunCommand(ScenarioCommand):
    """Command that also has the options of features and finds them in `context.obj` under OPTIONS."""

    @property
    def params(self) -> list[Any]:
        """The parameters of ScenarioCommand, and one option per feature option."""
        new = not self._whole
        found = super().params
        if new:
            found += [option for option, _ in _feature_options()]
        return found

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._params, self._whole = [*own], False

    def invoke(self, ctx: Any) -> Any:
        ctx.meta[OPTIONS] = {name: ctx.params.pop(option.name) for option, name in _feature_options()}
        return super().invoke(ctx)

    def given(self, ctx: Any, settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {OPTIONS: ctx.meta[OPTIONS]}


class ListingCommand(ScenarioCommand):
    """ScenarioCommand whose options take comma-separated lists."""

    several = True


@cache
def _settings() -> tuple[Setting, ...]:
    """Return every setting that is a field of the scenario, and `--set`."""
    from servesim.run.scenario import Scenario

    found = [
        *_of(Scenario),
        Setting("set", "Scenario", SET, list[str], "KEY=VALUE"),
        Setting("serve", "Scenario", SERVE, list[str], "COMMAND"),
        Setting("save_scenario", "Scenario", SAVE, shown="FILE"),
    ]
    sections = ["Scenario", *dict.fromkeys(setting.section for setting in found)]
    return tuple(sorted(found, key=lambda setting: sections.index(setting.section)))


def _settings_of_own(own: tuple[str, ...]) -> tuple[Setting, ...]:
    """Return the settings of the user's own features."""
    from servesim.run.scenario import scenario_class

    known = {setting.key for setting in _settings()}
    return tuple(setting for setting in _of(scenario_class(own)) if setting.key not in known)


def own_features_in(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the user's own features that a command line names."""
    found: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name == "--features":
            found.append(value if equals else following)
    return tuple(dict.fromkeys(found))


def own_features_of_files(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the user's own features named in the scenario files on a command line. Unreadable files are skipped, since
    the command itself reports them. Raise UserError if the features may not run (servesim.plugins.trust)."""
    from servesim.plugins.trust import check_code
    from servesim.run.scenario import own_features
    from servesim.run.setting_names import read_settings

    found: dict[str, None] = {}
    for word in arguments:
        if word.endswith((".yaml", ".yml")) and not word.startswith("-"):
            named: tuple[str, ...] = ()
            with suppress(UserError, OSError):
                if Path(word).is_file() and b"features" in Path(word).read_bytes():
                    named = own_features(read_settings(word).get("features"))
            check_code(named, f"scenario {word}")
            found |= dict.fromkeys(named)
    return tuple(found)


def _of(model: type[BaseModel], section: str = "Scenario", prefix: str = "") -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield from _of(field.annotation, name.capitalize(), f"{name}.")  # type: ignore[arg-type]
        else:
            yield _setting(f"{prefix}{name}", section, field)


def _setting(key: str, section: str, field: FieldInfo) -> Setting:
    """Return a field as an option: its docstring and default give the help, its annotation the type."""
    help = " ".join([*(field.description or "").replace("`", "").split(), *_default(field.default)])
    kinds, setting = _kinds(field.annotation), partial(Setting, key, section, common=COMMON in field.metadata)
    if bool in kinds:
        return setting(help, shown="true|false" if field.default else "", words=BOOLEANS)
    if "none" in kinds:
        return setting(help, words=tuple(kinds), on=kinds[1])
    if list in kinds:
        shown = "FILE.py:CLASS" if key == "features" else "STEP"
        return setting(f"{help} Repeatable.", list[str], shown)
    if dict in kinds:
        return setting(help, shown="<str>", open=True)
    if len(kinds) == 1 and kinds[0] in (int, float) and field.default is None:
        return setting(help, kinds[0], f"<{kinds[0].__name__}>", optional=True)
    shown = "|".join(kind if isinstance(kind, str) else f"<{kind.__name__}>" for kind in kinds)
    return setting(help, kinds[0] if len(kinds) == 1 else str, shown, open=key in ("model", "gpu"))


def _kinds(annotation: Any) -> list[Any]:
    """Return the types and literals of an annotation, without None: [int, "auto"] for `int | Literal["auto"] |
    None`."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for inner in get_args(annotation) for kind in _kinds(inner)]
    return [] if annotation is type(None) else [get_origin(annotation) or annotation]


def type_name(annotation: Any) -> str:
    """Return the name of a field's type, such as `int|auto`."""
    return "|".join(kind if isinstance(kind, str) else kind.__name__ for kind in _kinds(annotation))


def _default(value: Any) -> tuple[str, ...]:
    value = value.get("name") if isinstance(value, dict) else value
    if value is True:
        return ("[default: true]",)
    return (f"[default: {value}]",) if isinstance(value, int | float | str) and value is not False else ()


@cache
def _trust() -> list[Any]:
    option = typer.Option("--trust", help=TRUST)
    kind = inspect.Parameter.KEYWORD_ONLY
    return made([inspect.Parameter("trust", kind, default=False, annotation=Annotated[bool, option])])


@cache
def _feature_options() -> list[tuple[Any, str]]:
    """Return a command-line option for each option of a feature, with its name."""
    from servesim.contracts.feature import installed

    fields = {name: field for feature in installed() for name, field in feature.Options.model_fields.items()}
    parameters = []
    for name, field in fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default, word = extra.get("on_command_line", field.default), name.replace("_", "-")
        typed = f"--{word}/--no-{word}" if default is True else f"--{word}"
        option = typer.Option(typed, help=" ".join((field.description or "").split()))
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[field.annotation, option]
            )
        )
    return list(zip(made(parameters), fields, strict=True))


@cache
def _options(settings: tuple[Setting, ...], several: bool) -> list[tuple[Any, Setting]]:
    """Return a command-line option for each setting."""
    parameters = []
    for i, s in enumerate(settings):
        kind = s.type if s.type == list[str] or not several else str
        shown = s.shown.replace(">", ",...>") if several and s.key not in ("slo", "slo_classes", "columns") else s.shown
        completes = values_of(s.key, [word for word in s.shown.split("|") if "<" not in word and word.islower()])
        option = typer.Option(
            *s.names,
            help=s.help,
            metavar=shown,
            autocompletion=completes,
            rich_help_panel=COMMON if s.common else None,
            parser=partial(_number, s.type) if s.optional and not several else None,
        )
        name = f"{re.sub(r'[^a-z0-9]', '_', s.key.lower())}_{i}"
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
            )
        )

    return list(zip(made(parameters), settings, strict=True))


def _number(kind: Callable[[str], Any], text: str) -> Any:
    """Return text as a number, or unchanged if it is a word such as none, or wrong, which the scenario says."""
    try:
        return kind(text)
    except ValueError:
        return text


def canonical(
    arguments: Sequence[str], own: Collection[str] = (), more: tuple[Setting, ...] = ()
) -> tuple[list[str], tuple[Setting, ...]]:
    """Return the command line's words with options in their declared spelling and a value after each switch, and the
    settings among them that no field declares (parts of policies and limits). Raise UserError for a part that no
    setting has. A part may be given by its bare name (`--max-num-seqs`) if the command has no option (`own`) of that
    name. `more`: settings in addition to those of every scenario."""
    known = {name[2:].replace("-", "_"): s for s in (*_settings(), *more) for name in s.names}
    words, parts, rest = [], {}, list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word[2:].partition("=")
        outer, dot, inner = name.partition(".")
        outer = outer.replace("-", "_")
        setting = known.get(f"{outer}{dot}{inner.replace('-', '_')}")
        if word.startswith("--") and setting is None and not dot and word.partition("=")[0] not in own:
            from servesim.run.part_names import whole_name
            from servesim.run.scenario import Scenario

            outer, dot, inner = (whole_name(name, Scenario) or outer).partition(".")
            setting = known.get(f"{outer}{dot}{inner}")
        if not word.startswith("--") or (setting is None and not dot):
            words.append(word)
            continue
        if setting is None:
            setting = _part(word.partition("=")[0], outer, inner, more)
            parts[setting.key] = setting
        if setting.words and not equals:
            equals, value = "=", rest.pop(0) if rest and _all_of(setting.words, rest[0]) else setting.on
        words.append(f"{setting.names[0]}{equals}{value}")
    return [*words, *rest], tuple(parts.values())


def _all_of(words: Sequence[str], text: str) -> bool:
    return all(part.strip().lower() in words for part in text.split(","))


def _part(option: str, outer: str, inner: str, more: tuple[Setting, ...] = ()) -> Setting:
    """Return a parameter of a policy or a limit. Raise UserError if `outer` has no part of this name."""
    known = (*_settings(), *more)
    opened = [setting.key for setting in known if setting.open]
    if outer in opened and inner:
        return Setting(f"{outer}.{inner if outer == 'slo_classes' else inner.replace('-', '_')}", "", "", shown="<str>")
    dotted = [setting.key.split(".") for setting in known if "." in setting.key]
    if declared := [name for section, name in dotted if section == outer]:
        near = suggest(inner.replace("-", "_"), declared).replace(' "', f' "--{outer}.')
    elif outer in opened:
        near = " (add a parameter name after the dot)"
    else:
        near = (
            suggest(outer, {*opened, *(section for section, _ in dotted)})
            .replace(' "', ' "--')
            .replace('"?', f'.{inner}"?')
        )
    raise UserError(f"no such option: {option}{near.replace('_', '-')}")
