"""All figures of a run: the groups of every run, the groups of its features, and their texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from servesim.contracts.figures import Figure, Group, Rows, Summary, Words
from servesim.errors import PolicyError, shown
from servesim.metrics.engine_figures import COST_SHARES, ENGINE, KV, PREFIX_CACHE, PRICE, SPECULATION, UNCERTAINTY
from servesim.metrics.measured import Measured
from servesim.metrics.replicas import POOLS, REPLICAS
from servesim.metrics.request_figures import DURATION, GOODPUT, LATENCY, REQUESTS, THROUGHPUT
from servesim.metrics.stability import STABILITY
from servesim.metrics.words import number, percent
from servesim.schemas import COUNT, FIGURE, NUMBER

OF_A_RUN = (
    REQUESTS, DURATION, LATENCY, THROUGHPUT, GOODPUT, ENGINE, KV, PREFIX_CACHE, SPECULATION, PRICE, COST_SHARES,
    UNCERTAINTY, STABILITY,
)  # fmt: skip
"""Groups that every run has."""
GROUPS = (*OF_A_RUN, REPLICAS, POOLS)
"""Groups of every run, plus the groups that only runs with several replicas have."""
_FIELD = re.compile(r"{{|}}|{([\w.]+)}")
"""Regular expression that matches a doubled brace or a figure in braces."""


def summarize(measured: Measured) -> dict[str, Any]:
    """Return the sections of a finished run. Latencies are in ms, durations in s, and shares between 0 and 1."""
    found: dict[str, Any] = {}
    for group in OF_A_RUN:
        section = group.of(measured)
        found |= {group.section: section} if group.section else section or {}
    return found


def text_of(figure: Figure | None, value: Any) -> str:
    """Return a value as text, without its unit: a share as a percentage, a count in full."""
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, dict):
        if figure is not None and figure.distributed:
            return f"mean {number(value['mean'])}, p99 {number(value['p99'])}"
        return ", ".join(f"{name} {text_of(figure, inner)}" for name, inner in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(text_of(figure, inner) for inner in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if figure is not None and figure.unit == "share":
        return percent(value)
    return f"{value:,}" if isinstance(value, int) and abs(value) < 1e15 else number(value)


def with_unit(figure: Figure, value: Any) -> str:
    """Return a value as text with its unit."""
    text = text_of(figure, value)
    if figure.unit in ("", "share") or text == "-":
        return text
    return f"${text}" if figure.unit == "$" else f"{text} {figure.unit}"


def said(
    words: Words,
    group: Group,
    summary: Summary,
    groups: Sequence[Group] = GROUPS,
    text: Callable[[Figure | None, Any], str] = text_of,
) -> str | None:
    """Return a text of a group with its figures filled in, or None if the text is not to be shown. `text`: function
    that formats a figure. Fields that are not figures are kept as they are."""
    template = words(summary) if callable(words) else words
    if template is None:
        return None

    def filled(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        path = found[1].split(".")
        for of, rest in _places(path, group, groups):
            figure = next((each for each in of.figures if each.name == rest[0]), None)
            if figure is not None:
                value: Any = of.within(summary)
                for name in rest:
                    value = (value or {}).get(name)
                return text(None if rest[-1] == "count" else figure, value)
        return found[0]

    return _FIELD.sub(filled, template)


def _places(path: list[str], group: Group, groups: Sequence[Group]) -> Iterator[tuple[Group, list[str]]]:
    """Yield the groups in which a path may be found, and the path within each: the group itself, groups whose section
    is the first name of the path, and top-level groups."""
    yield group, path
    if len(path) > 1:
        yield from ((each, path[1:]) for each in groups if each.section == path[0])
    yield from ((each, path) for each in groups if not each.section)


def unknown_fields(group: Group, groups: Sequence[Group]) -> list[str]:
    """Return the fields in a group's static texts that are not figures."""
    rows = [words for _, words in group.rows] if isinstance(group.rows, tuple) else []
    texts = [text for text in (*rows, *(words for tile in group.tiles for words in tile[1:3])) if isinstance(text, str)]
    fields = [found[1] for text in texts for found in _FIELD.finditer(text) if found[1] is not None]
    return [field for field in fields if not _is_figure(field.split("."), group, groups)]


def _is_figure(path: list[str], group: Group, groups: Sequence[Group]) -> bool:
    return any(rest[0] == each.name for of, rest in _places(path, group, groups) for each in of.figures)


def plain_sections(groups: Sequence[Group], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections made by a user's feature, with numpy numbers converted to Python numbers. Raise PolicyError
    for a value that JSON does not support, for a figure that is declared in the groups but missing, and for a value
    that is not a number although its figure is declared as one."""
    found = {name: _plain(section, name) for name, section in sections.items()}
    for group in groups:
        section = found.get(group.section)
        if section is None or group.many:
            continue
        for figure in group.figures:
            name = f"{group.section}.{figure.name}"
            if not isinstance(section, dict) or not (figure.name in section or figure.optional):
                raise PolicyError(f"figure {name} is declared but missing")
            value = section.get(figure.name)
            if figure.schema in (None, FIGURE, COUNT, NUMBER) and isinstance(value, str | bool | dict | list):
                raise _no_number(name, value)
    return found


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{name}[{i}]") for i, inner in enumerate(value)]
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str | bool) or (isinstance(value, int | float) and _finite(value)):
        return value
    raise _no_number(name, value)


def _no_number(name: str, value: Any) -> PolicyError:
    return PolicyError(f"figure {name} is {shown(value)}, not a finite number")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # larger than any float
        return False


def rows_of(groups: Sequence[Group], summary: Summary) -> Rows:
    """Return the rows of a run's table in the order of the groups; the rows of groups with `after` follow the rows with
    those labels."""
    found: Rows = []
    for group in groups:
        labels = [label for label, _ in found]
        at = next((labels.index(label) + 1 for label in group.after if label in labels), len(found))
        found[at:at] = _rows(group, summary, groups)
    return found


def _rows(group: Group, summary: Summary, groups: Sequence[Group]) -> Rows:
    if group.within(summary) is None:
        there = group.section in summary
        return [(group.words, group.if_null)] if there and group.if_null else []
    if callable(group.rows):
        return group.rows(summary)
    if group.rows is not None:
        texts = [(label, said(words, group, summary, groups)) for label, words in group.rows]
        return [(label, text) for label, text in texts if text is not None]
    section = group.within(summary)
    if not isinstance(section, dict):
        return []
    known = [figure for figure in group.figures if section.get(figure.name) is not None]
    each = [f"{figure.words} {with_unit(figure, section[figure.name])}" for figure in known]
    return [(group.words, ", ".join(each))] if each else []
