"""Page of `servesim policies`: the policies that can be combined, and a description of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.reports.page import Block, Page, Section, Table

Policy = Mapping[str, Any]
"""Policy as `servesim policies --json` describes it."""


def policies_page(policies: Sequence[Policy]) -> Page:
    """Return the page: a table for each kind of policy, then the idea and parameters of each policy."""
    kinds = list(dict.fromkeys(str(one["kind"]) for one in policies))
    by_kind = {kind: [one for one in policies if one["kind"] == kind] for kind in kinds}
    if len(policies) == 1:
        (one,) = policies
        sections = [Section("Idea", [_idea(one)]), Section("Parameters", [_parameters(one)])]
        title, subtitle = f"{one['kind']} {one['name']}", _first(one)
    else:
        sections = [Section(kind, [Block("table", "", _table(found), wide=True)]) for kind, found in by_kind.items()]
        each = [block for one in policies for block in _folded(one)]
        sections.append(Section("Each of them", each))
        title = f"{len(policies)} policies"
        subtitle = ", ".join(f"{len(found)} of {kind}" for kind, found in by_kind.items())
    return Page("experiment", "policies", title, subtitle, values={"tiles": [], "sections": sections})


def _first(one: Policy) -> str:
    return str(one["idea"]).partition("\n")[0]


def _table(policies: Sequence[Policy]) -> Table:
    columns = ("policy", "what it is", "needs", "parameters")
    rows = [
        (
            one["name"],
            _first(one),
            ", ".join(one["needs"]) or "–",
            ", ".join(p["name"] for p in one["parameters"]) or "–",
        )
        for one in policies
    ]
    return Table(policies[0]["kind"], columns, rows, (False,) * 4, "wordy")


def _facts(one: Policy) -> list[tuple[str, str]]:
    facts = [(key, ", ".join(one[key])) for key in ("needs", "supports") if one[key]]
    facts += [("cannot", f"{what} ({reason})") for what, reason in one["cannot"].items()]
    return facts + ([("paper", one["paper"])] if one["paper"] else [])


def _idea(one: Policy) -> Block:
    lines = [" ".join(part.split()) for part in str(one["idea"]).split("\n\n") if part.strip()]
    return Block("list", "", [*lines, *(f"{key}: {value}" for key, value in _facts(one))], wide=True)


def _parameters(one: Policy) -> Block:
    if not one["parameters"]:
        return Block("list", "", ["None."], wide=True)
    rows = [(p["name"], _default(p), p["type"], p["doc"]) for p in one["parameters"]]
    columns = ("parameter", "default", "type", "what it is")
    return Block("table", "", Table("Parameters", columns, rows, (False,) * 4, "wordy"), wide=True)


def _default(parameter: Mapping[str, Any]) -> str:
    if parameter["required"]:
        return "required"
    return "by GPU and model" if parameter["default"] is None else str(parameter["default"])


def _folded(one: Policy) -> list[Block]:
    """Return a policy as text collapsed under its name."""
    parameters = [f"  {p['name']} = {_default(p)}\n      {p['doc']}".rstrip() for p in one["parameters"]]
    facts = [f"{key}: {value}" for key, value in _facts(one)]
    text = "\n".join([str(one["idea"]), "", *facts, "parameters:" if parameters else "parameters: none", *parameters])
    return [Block("text", f"{one['kind']} {one['name']}", text, wide=True)]
