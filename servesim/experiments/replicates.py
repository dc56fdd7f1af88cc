"""Replicates of a workload, and the random numbers its policies share.

Synthetic workloads and presets are redrawn with other seeds. A recorded trace is replayed once, whole, at one stretch
factor, so that peaks stay peaks and queues outlast the window they began in; its replicates are successive windows of
that run. Draws are keyed by (seed, purpose, row), so all policies see the same arrivals, lengths, contents and
acceptance draws in a replicate, regardless of the order of execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, mean_rate, open_scenario
from servesim.workload.peak import peak_note
from servesim.workload.trace import Trace

WORKLOAD = (
    *("trace", "requests", "skip", "rate", "sort", "timing", "shape", "spread_ticks"),
    *("seed", "clients", "acceptance"),
)
"""Settings that define the replayed workload, the same for everything that is compared."""

MARGIN = 0.1
"""Share of the arrivals left out at each end of a synthetic workload."""
MOST = 10_000
"""Maximum number of replicates per question."""


@dataclass(frozen=True)
class Replicates:
    """Repetitions of one workload."""

    kind: str
    """Kind of replicates: seeds or windows."""
    changes: tuple[Settings, ...]
    """Settings changed for each replicate: {"seed"}, drawn by a separate run, or {"skip", "requests"}, a window of the
    one run that replays the whole trace."""
    notes: tuple[str, ...] = ()
    """Notes on the workload."""
    recorded: bool = False
    mean_rate: float | None = None
    """Arrivals/s of the unscaled trace, or None if all requests arrive at the start, or if the trace is synthetic and
    its rate was not requested."""

    def __len__(self) -> int:
        return len(self.changes)

    def settings(self, settings: Mapping[str, Any], j: int) -> Settings:
        """Return the settings of the run that contains replicate `j`."""
        return {**settings, **(self.changes[j] if self.kind == "seeds" else {})}

    def fresh(self) -> Replicates:
        """Return as many replicates with the seeds that follow, if each is a seed."""
        return replace(self, changes=tuple({"seed": change["seed"] + len(self)} for change in self.changes))

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """Row range in the run (the first row and one past the last) of each replicate that is a window."""
        skips = [change["skip"] - self.changes[0]["skip"] for change in self.changes if self.recorded]
        return [(skip, skip + self.changes[0]["requests"]) for skip in skips]

    def rows(self, j: int) -> tuple[int, int] | None:
        """Return the row range of replicate `j` in its run, or None for all rows."""
        return self.windows[j] if self.recorded and len(self) > 1 else None

    def margins(self, warmup: float | None, cooldown: float | None) -> tuple[float, float]:
        """Return the shares of the arrivals left out at the start and at the end. The default is a tenth for synthetic
        workloads and nothing for recorded ones, whose ends are as real as their middle."""
        return margins(warmup, cooldown, 0.0 if self.recorded else MARGIN)


def margins(warmup: float | None, cooldown: float | None, default: float = MARGIN) -> tuple[float, float]:
    """Return the shares of the arrivals left out at the start and at the end, each by default `default`."""
    return default if warmup is None else warmup, default if cooldown is None else cooldown


def counted(replicates: Mapping[str, Any]) -> str:
    """Return a document's replicates in words, such as "1 seed" and "3 windows"."""
    count, kind = replicates["count"], replicates["kind"]
    return f"{count} {kind.removesuffix('s') if count == 1 else kind}"


def check_count(count: int) -> None:
    """Raise UserError for an invalid number of replicates."""
    if not 1 <= count <= MOST:
        raise UserError(f"replicates is {count} but must be from 1 to {MOST:,}")


def replicates_of(
    settings: Mapping[str, Any],
    count: int | None,
    objects: Mapping[str, Trace] | None = None,
    window: int | None = None,
    default: int = 1,
) -> Replicates:
    """Return `count` (by default `default`) replicates of a scenario's workload.

    A recorded trace is replayed whole, or its first `requests` rows, and cut into `count` equal windows of successive
    requests, or into at most `count` windows of `window` requests each. By default a trace with fewer requests than
    windows is one window. `objects` holds traces that are not files, by name.
    """
    wanted = default if count is None else count
    check_count(wanted)
    scenario = Scenario.of(settings)
    if scenario.trace.startswith(DRAWN):
        if window is not None:
            raise UserError(
                "window applies only to recorded traces. A trace drawn from seeds is drawn again for each replicate."
            )
        mean = mean_rate(_as_it_is(scenario, objects)) if isinstance(scenario.rate, str) else None
        return Replicates("seeds", tuple({"seed": scenario.seed + i} for i in range(wanted)), mean_rate=mean)
    if window is not None and window < 1:
        raise UserError(f"window is {window} but must be at least 1 request")
    trace = _as_it_is(scenario, objects)
    if count is None and window is None and len(trace) < wanted:
        wanted = 1  # too few requests to cut: one window, which is said to be one
    size = window or len(trace) // wanted
    if not 1 <= size <= len(trace):
        cut = f"a window of {size}" if window is not None else f"{wanted} windows (--replicates 1 uses it as one)"
        raise UserError(f"trace {scenario.trace}: {len(trace)} requests are too few for {cut}")
    fit = len(trace) // size
    windows = fit if window is not None and count is None else min(wanted, fit)
    check_count(windows)
    changes: list[Settings] = [{"skip": scenario.skip + i * size, "requests": size} for i in range(windows)]
    note = peak_note(trace.arrival_ns)
    notes = (note,) if note is not None else ()
    return Replicates("windows", tuple(changes), notes, True, mean_rate(trace))


def _as_it_is(scenario: Scenario, objects: Mapping[str, Trace] | None) -> Trace:
    """Return the trace of a scenario at its original rate."""
    return open_scenario(scenario.model_copy(update={"rate": None}), (objects or {}).get(scenario.trace))
