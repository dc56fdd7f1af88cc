"""Section of a capacity page for a recommendation: what to run, against what, why, and how to start it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from servesim.experiments.metrics import metric_label
from servesim.experiments.recommend.front import front_words, shown
from servesim.experiments.store import DEPLOY
from servesim.reports.experiment import amount
from servesim.reports.page import Block, Section, Table
from servesim.reports.words import gpu_of, number

RIVALS = {
    "runner_up": "runner-up",
    "published": "published formats",
    "miss": "cheaper, but misses the SLO",
}
"""Words for each deployment that the first is compared with, by key of a recommendation."""


def recommended(found: Mapping[str, Any]) -> list[Section]:
    """Return the sections of a recommendation: the command first, then the reasons."""
    lists: dict[str, list[str]] = {
        "Check first": found["needs"],
        "What would change the answer": found["changes"],
        "To be surer": found["measure"],
        "Not searched": [one["says"] for one in found["not_searched"]],
    }
    titles = [title for title, lines in lists.items() if lines]
    why = [Block("pairs", "Against the next best", _rivals(found), wide=True)] if _against(found) else []
    if found["knobs"]:
        why.append(Block("table", "What each setting is worth", _knobs(found["knobs"]), wide=True, text=WORTH))
    for i, title in enumerate(titles):
        alone = i == len(titles) - 1 and i % 2 == 0
        why.append(Block("list", title, [_marked(line) for line in lists[title]], wide=alone))
    sections = [Section("What to run", _how_to_start(found["run"]), "run"), Section("Why this one", why, "why")]
    if (front := found.get("front")) is not None:
        sections.append(Section("Front", [Block("table", "", _front(front), wide=True, text=FRONT)], "front"))
    return sections


WORTH = (
    "Prices are per unit of the aim, from short runs. Without a setting, the best other deployment found is compared. "
    "Shares are of all gains, in logarithms."
)
"""How to read the table of settings."""


FRONT = (
    "Finalists at the loads that they carried at full length, where no other of these is at least as good in price, "
    "latency and headroom, and better in one. Headroom: by how much the load may at least grow until the SLO is missed."
)
"""How to read the table of the front."""


def _front(front: Mapping[str, Any]) -> Table:
    latency = metric_label(front["latency"])
    columns = ("deployment", "GPUs", "requests/s", "$ an hour", "$ per M tokens", latency, "headroom")
    rows = [
        (
            p["label"] or "this",
            f"{p['gpus']} × {gpu_of(p['gpu'])}",
            number(p["rate"]),
            *(amount(p[key], "$") for key in ("usd_per_hour", "usd_per_million_tokens")),
            amount(p["ms"], "ms"),
            amount(p["headroom"], "share"),
        )
        for p in shown(front["points"])
    ]
    return Table(front_words(front), columns, rows, (False, False, *[True] * 5))


def _how_to_start(run: Mapping[str, Any]) -> list[Block]:
    """Return the command and the other files, each to copy."""
    files = {name: text for name, text in run["files"].items() if text.strip() != (run["command"] or "").strip()}
    several = int(run["lost"].get("replicas", 1))
    lost = [f"{key}={value}" for key, value in run["lost"].items() if key != "replicas"]
    said = [] if run["command"] else ["No single command starts this deployment. The files below do."]
    said += [f"The command starts one of {several} replicas."] if several > 1 else []
    said += [f"The command does not hold {', '.join(lost)}."] if lost else []
    more = [form for form in run["forms"] if form != "command"]
    forms = f"--form {','.join(more)} writes the same deployment in other forms." if more else ""
    blocks = [Block("command", "Command", run["command"], wide=True)] if run["command"] else []
    if said or forms:
        blocks.append(Block("list", "", [*said, *filter(None, [forms])], wide=True))
    return blocks + [Block("text", f"{DEPLOY}/{name}", text, wide=True) for name, text in files.items()]


def _marked(line: str) -> Markup:
    """Return a sentence with its commands, which stand between backticks, as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(line))))


def _against(found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(words, found[key]) for key, words in RIVALS.items() if found[key] is not None]


def _rivals(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    first = f"{found['first']} ({found['aim']})"
    return [("recommended", first), *((words, one["says"]) for words, one in _against(found))]


def _knobs(knobs: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            f"{one['key'].removeprefix('scheduler.')} = {'default' if one['value'] is None else one['value']}",
            one["without"],
            _bar(one["share"]),
        )
        for one in knobs
    ]
    return Table("What each setting is worth", ("setting", "without it", "share of the gain"), rows)


def _bar(share: float | None) -> Any:
    if share is None:
        return "–"
    return Markup('{} % <span class="gauge"><i style="width: {}%"></i></span>').format(
        f"{100 * share:.0f}", f"{100 * share:.1f}"
    )
