"""Bursts that a scenario's shape adds, and their outcome in the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.warn import Warn
from servesim.features.bursts.burst import burst
from servesim.run.scenario import Scenario

MOVING = ("window", "stretch", "ramp", "arrive", "shuffle", "repeat")
"""Trace steps that move requests in time: after such a step, a burst is no longer where it was."""


def bursts_of(scenario: Scenario, table: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the figures of each burst, and notes on the bursts that have none. `table`: the request records."""
    from servesim.traces.shape import parse
    from servesim.traces.what_if import Burst

    found: list[dict[str, Any]] = []
    notes: list[str] = []
    names = [text.partition(":")[0] for text in scenario.shape]
    for i, text in enumerate(scenario.shape):
        step = parse(text)
        if not isinstance(step, Burst):
            continue
        moved = [name for name in names[i + 1 :] if name in MOVING]
        if scenario.rate is not None or scenario.clients.max_concurrency is not None or moved:
            by = f"shape {moved[0]}" if moved else "rate" if scenario.rate is not None else "clients.max_concurrency"
            notes.append(
                Warn(
                    f"shape {text}: {by} moves requests in time, so the effect of the burst is not reported. Remove "
                    "one of them"
                )
            )
        else:
            found.append(burst(table, step.at, step.lasting, step.times))
    return found, notes
