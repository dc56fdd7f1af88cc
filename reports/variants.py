"""Variants of an experiment in its figures: those that a figure does not show, and new names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from servesim.errors import UserError
from servesim.reports.experiment import Experiment

OTHER = "not shown"
"""Reason for which a figure lacks a variant that did not fail."""
Legend = tuple[tuple[str, str], ...]
ABSENT = "rule"
"""Color of a legend's entry on what is not drawn."""
NAMED = 6
"""Maximum number of variants that such an entry names."""


def states(document: Mapping[str, Any]) -> dict[str, str]:
    """Return by variant why a figure may lack it: unstable, failed, or else not shown."""
    kind = Experiment(document, None).kind
    if kind == "capacity":
        return {r["label"]: "never within the limits" if r["verdict"] == "never" else OTHER for r in document["rows"]}
    if kind == "sweep":
        unstable = [v["label"] for v in document["variants"] if v["status"] == "ok" and v["stability"] == "unstable"]
        failed = [v["label"] for v in document["variants"] if v["status"] != "ok"]
    else:
        unstable, failed = document["ranking"]["unstable"], document["ranking"]["failed"]
    found = dict.fromkeys((v["label"] for v in document["variants"]), OTHER)
    return found | dict.fromkeys(unstable, "unstable") | dict.fromkeys(failed, "failed")


def absent(document: Mapping[str, Any], shown: Collection[str], known: Mapping[str, str] | None = None) -> Legend:
    """Return entries of a legend that name the variants (or what else is `known`, with reasons) that are not shown."""
    left: dict[str, list[str]] = {"unstable": [], "failed": []}
    for label, reason in (states(document) if known is None else known).items():
        if label not in shown:
            left.setdefault(reason, []).append(label)
    return tuple(
        (ABSENT, f"{reason}: {', '.join(labels[:NAMED])}" + f" and {len(labels) - NAMED} more" * (len(labels) > NAMED))
        for reason, labels in left.items()
        if labels
    )


def group_of(variant: Mapping[str, Any]) -> str:
    """Return the label of a sweep's variant without its rate, or all if nothing else is in it."""
    rate = f"rate={variant['axes'].get('rate')}"
    return str(variant.get("group") or " / ".join(p for p in variant["label"].split(" / ") if p != rate) or "all")


LABELS = ("label", "group", "variant", "baseline", "order", "unstable", "failed")
"""Keys of documents whose values are labels of variants."""


def renamed(experiment: Experiment, names: Mapping[str, str]) -> tuple[Experiment, dict[str, str]]:
    """Return an experiment whose variants have other names, and those by label. `names` are of whole labels or of parts
    between slashes; raise UserError for one that no label has, and if two variants would have the same."""
    document, used = experiment.document, set[str]()
    variants = document["rows" if experiment.kind == "capacity" else "variants"]

    def name_of(label: str) -> str:
        parts, found = label.split(" / "), []
        while parts:
            ends = range(len(parts), 0, -1)
            end = next((end for end in ends if " / ".join(parts[:end]) in names), 0)
            old = " / ".join(parts[: end or 1])
            used.update([old] * bool(end))
            found.append(names.get(old, old))
            parts = parts[end or 1 :]
        return " / ".join(found)

    by_label = {v["label"]: name_of(v["label"]) for v in variants}
    if unknown := [old for old in names if old not in used]:
        raise UserError(f"names: no variant {unknown[0]!r}: rename one of {'; '.join(by_label)}, or a part of one")
    if len(twice := sorted(by_label.values())) > len(set(twice)):
        same = next(name for name in twice if twice.count(name) > 1)
        raise UserError(f"names: {' and '.join(o for o, n in by_label.items() if n == same)} would both be {same}")
    if experiment.kind == "sweep":
        groups = {v["label"]: group_of(v) for v in variants}
        document = {**document, "variants": [v | {"group": groups[v["label"]]} for v in variants]}
        by_label = {group: name_of(group) for group in groups.values()} | by_label

    def in_place(value: Any, labels: bool) -> Any:
        if isinstance(value, Mapping):
            return {key: in_place(inner, key in LABELS) for key, inner in value.items()}
        if isinstance(value, list):
            return [in_place(inner, labels) for inner in value]
        return by_label.get(value, value) if labels and isinstance(value, str) else value

    return replace(experiment, document=in_place(document, False)), by_label
