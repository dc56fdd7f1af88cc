"""Replicates of a workload, and the random numbers its policies share.

Synthetic workloads and presets are drawn again from other seeds; a recorded trace is cut into successive windows.
Draws are keyed by (seed, purpose, row), so every policy of a replicate meets the same arrivals, lengths, contents and
acceptance luck, in whatever order it runs things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.errors import UserError
from servesim.run.scenario import Scenario, Settings
from servesim.run.trace_source import open_scenario
from servesim.workload.trace import Trace

WORKLOAD = (
    *("trace", "requests", "skip", "rate", "sort", "timing", "shape", "spread_ticks"),
    *("seed", "clients", "acceptance"),
)
"""Settings that say what is replayed: the same for all that is compared."""

MOST = 10_000
"""Replicates of one question."""


@dataclass(frozen=True)
class Replicates:
    """Repetitions of one workload."""

    kind: str
    """seeds or windows."""
    changes: tuple[Settings, ...]
    """Changes of each one to the scenario: {"seed"}, or {"skip", "requests"} and, where policies draw, {"seed"}."""

    def __len__(self) -> int:
        return len(self.changes)


def counted(replicates: Mapping[str, Any]) -> str:
    """Return a document's replicates in words, such as "1 seed" and "3 windows"."""
    count, kind = replicates["count"], replicates["kind"]
    return f"{count} {kind.removesuffix('s') if count == 1 else kind}"


def check_count(count: int) -> None:
    """Raise UserError for a number of replicates that makes no sense."""
    if not 1 <= count <= MOST:
        raise UserError(f"replicates is {count}, must be from 1 to {MOST:,}")


def replicates_of(
    settings: Mapping[str, Any],
    count: int,
    others: Sequence[Mapping[str, Any]] = (),
    objects: Mapping[str, Trace] | None = None,
) -> Replicates:
    """Return `count` replicates of a scenario's workload, or fewer windows if a recorded trace is shorter than that.

    With `requests` each window has that number; without, the trace is cut into `count` equal ones. `others`: settings
    of what it is compared with; `objects`: traces that are not files, by name.
    """
    check_count(count)
    scenario = Scenario.of(settings)
    if scenario.trace.startswith(("preset:", "synth:")):
        return Replicates("seeds", tuple({"seed": scenario.seed + i} for i in range(count)))
    whole = scenario.model_copy(update={"requests": None, "skip": 0})
    available = len(open_scenario(whole, (objects or {}).get(scenario.trace))) - scenario.skip
    size = scenario.requests or available // count
    if not 1 <= size <= available:
        raise UserError(f"trace {scenario.trace}: {available} requests are too few for {count} windows of {size}")
    changes: list[Settings] = [
        {"skip": scenario.skip + i * size, "requests": size} for i in range(min(count, available // size))
    ]
    if not scenario.shape and any(map(_draws, (settings, *others))):  # shaping draws too, over the whole trace
        changes = [{**change, "seed": scenario.seed + i} for i, change in enumerate(changes)]
    return Replicates("windows", tuple(changes))


def _draws(settings: Mapping[str, Any]) -> bool:
    """Return whether a replay of a recorded trace draws anything: which drafts are accepted, what lengths are
    predicted."""
    try:
        scenario = Scenario.of(settings)
    except UserError:
        return False
    return scenario.speculation["name"] != "none" or scenario.predictor.startswith("random")
