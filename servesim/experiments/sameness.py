"""Detection of variants that have equal results (and why), and of differences between variants other than the
policy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts import schedulers
from servesim.contracts.warn import Warn
from servesim.experiments.axes import Variant
from servesim.experiments.named import ROOM, grouped, several
from servesim.experiments.run_metrics import listed_usd_per_hour
from servesim.experiments.runner import Runner
from servesim.experiments.store import Cell
from servesim.experiments.variants import is_oracle, plans_ahead, price_of
from servesim.run.result_files import REQUESTS, SUMMARY, reading
from servesim.untrusted import read_json

Equal = dict[str, Any]
"""{labels: [in the order of the variants], why: text or null}"""
_IDLE = re.compile(r"(?P<subject>.+?)(?: is never reached: | has no effect: )(?P<why>.+)")


def equal_ones(runner: Runner, variants: Sequence[Variant], cells: Sequence[Sequence[Cell]]) -> list[Equal]:
    """Return the groups of variants whose requests all had the same times, at the same hourly price."""
    ran = [i for i, row in enumerate(cells) if not any(cell.address in runner.errors for cell in row)]
    groups = grouped((_outcome(runner, cells[i]), i) for i in ran)
    return [
        {
            "labels": [variants[i].label for i in group],
            "why": _why(runner, [variants[i] for i in group], [cells[i][0] for i in group]),
        }
        for group in groups.values()
        if len(group) > 1
    ]


def _outcome(runner: Runner, cells: Sequence[Cell]) -> tuple[Any, ...]:
    price, digests = 0.0, []
    for cell in cells:
        folder = runner.folder(cell)
        with reading(folder):
            digests.append(hashlib.sha256((folder / REQUESTS).read_bytes()).digest())
            price = listed_usd_per_hour(read_json(folder / SUMMARY)["scenario"])
    return price, *digests


def _why(runner: Runner, variants: Sequence[Variant], cells: Sequence[Cell]) -> str | None:
    """Return the reason why a setting in which the group's variants differ has no effect, as noted by one of the
    group's runs, or None if not known."""
    differing = {
        part
        for key in variants[0].axes
        if len({str(v.axes.get(key)) for v in variants}) > 1
        for part in (key, key.rpartition(".")[2])
    }
    for cell in cells:
        summary = read_json(runner.folder(cell) / SUMMARY)
        for note in (*summary["warnings"], *summary["notes"]):
            found = _IDLE.fullmatch(note.partition("; ")[0])
            if found and differing & set(re.split(r"[ =:]", found["subject"].replace("clients.", ""))):
                return str(found["why"])
    return None


def equal_text(equal: Equal) -> str:
    """Return a sentence that describes a group."""
    labels = [label or "the run" for label in equal["labels"]]
    short = len("; ".join(labels)) <= ROOM or len(labels) < 4
    said = f"{'; '.join(labels[:-1])} and {labels[-1]}" if short else several(labels)
    return f"{said} are equal in every request, so the difference has no effect" + (
        f": {equal['why']}" if equal["why"] else ""
    )


def budget_of(runner: Runner, cells: Sequence[Cell]) -> int | None:
    """Return the token budget of a step, as resolved by the first run that did not fail, or None if there is no
    limit."""
    for cell in cells:
        if cell.address not in runner.errors:
            given = runner.load(cell).summary["scenario"]["scheduler"]
            scheduler, params = schedulers.configured(given)
            budget = getattr(params, "max_num_batched_tokens", None)
            return int(budget) if budget is not None and scheduler.keeps_budget else None
    return None


def described(runner: Runner, v: Variant, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the entry of a variant in the document of a comparison, without the number of its unstable runs."""
    errors = [runner.errors.get(cell.address) for cell in cells]
    return {
        "label": v.label,
        "axes": v.axes,
        "oracle": is_oracle(v.settings),
        "asynchronous": plans_ahead(v.settings),
        "max_num_batched_tokens": budget_of(runner, cells),
        **price_of(v.settings),
        "error": next((error for error in errors if error is not None), None),
        "cells": [None if error is not None else c.address for c, error in zip(cells, errors, strict=True)],
    }


BUDGETS = ("max_num_batched_tokens", "chunk_size", "prefill_size", "max_prefill_tokens")
"""Names, or name suffixes, of schedulers' token budgets."""


def warnings_of(described: Sequence[Mapping[str, Any]]) -> list[Warn]:
    """Return warnings about unrequested differences between variants: in token budgets, and in the planning of steps.
    Variants that plan a step only after the previous one has ended pay for planning in every step, however good their
    policy is."""
    axes = [f"{key}={value}" for v in described for key, value in v["axes"].items()]
    found = []
    budgets = {v["label"]: v["max_num_batched_tokens"] for v in described if v["max_num_batched_tokens"] is not None}
    if len(set(budgets.values())) > 1 and not any(name in axis for axis in axes for name in BUDGETS):
        said = several([f"{label} {budget:,}" for label, budget in budgets.items()], ", ")
        found.append(
            Warn(
                f"token budgets per step differ ({said}), so part of the difference in results comes from the "
                "budget. Set --scheduler.max-num-batched-tokens to the same value for all variants."
            )
        )
    late = [v["label"] for v in described if v["asynchronous"] is False]
    ahead = any(v["asynchronous"] for v in described)
    if late and ahead and not any("async_scheduling" in axis for axis in axes):
        found.append(
            Warn(
                f"{several(late, ', ')} {'schedules' if len(late) == 1 else 'schedule'} synchronously while the others "
                "schedule one step ahead. Set --engine.async-scheduling false to schedule synchronously in all "
                "variants."
            )
        )
    return found
