"""Agreement of two runs to the nanosecond, in every request, step, delivery and gap between tokens, and agreement of
both modes on the first requests of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError
from servesim.records.columns import LATE_COLUMNS, REQUEST_COLUMNS, STEP_COLUMNS, Rows
from servesim.records.recorder import Recorder
from servesim.records.spec_stats import SpecStats
from servesim.run.records import clients_of
from servesim.run.setup import Setup, set_up
from servesim.workload.workload import TraceWorkload

_STEP = {name: i for i, name in enumerate(STEP_COLUMNS)}
COMPOSITION = (
    "prefill_tokens", "prefill_pieces", "prefill_context", "decode_count", "decode_context", "sampled", "padded_tokens",
)  # fmt: skip
"""Columns whose values apply to each step of a row; decode contexts grow by `decode_count` per step."""
FIRST = ("planned_ns", "start_ns", "kv_used", "kv_internal", "kv_external")
"""Columns whose values apply to the first step of a row."""
SUMMED = (
    "elapsed_ns", "gpu_ns", "host_ns", "kv_used_ns", "kv_internal_ns", "preempted", "drafts", "accepted", "bytes_moved",
    "measured_ns", "interpolated_ns", "extrapolated_ns", "roofline_ns",
)  # fmt: skip
"""Columns with sums over the steps of a row."""


@dataclass(frozen=True)
class Outcome:
    """The records of a run, in an order that does not depend on the mode it was run in."""

    requests: Rows
    reasons: dict[int, str]
    steps: Rows
    deliveries: Rows
    gaps: tuple[Rows, Rows]
    drafts: list[SpecStats]

    @classmethod
    def of(cls, cluster: Cluster) -> Outcome:
        """Return the outcome of a run that has ended."""
        recorder = cluster.recorder
        return cls(
            _sorted(recorder.requests.array(), [0]),
            dict(recorder.reasons),
            _sorted(recorder.steps.array(), [_STEP["replica"], _STEP["step"]]),
            _sorted(recorder.deliveries.array(), range(len(LATE_COLUMNS))),
            recorder.itl(),
            [replica.core.spec_stats for replica in cluster.replicas],
        )


def difference(run: Outcome, plain: Outcome, elsewhere: str = "in reference mode") -> str:
    """Return one line that describes the first difference, or an empty string if everything agrees. Each row of steps
    in `plain` is one step; a row in `run` may represent several. `elsewhere`: words that say which run `plain` is."""
    told = [*_requests(run, plain, elsewhere), *_steps(run.steps, plain.steps, elsewhere)]
    if not told:
        if not np.array_equal(run.deliveries, plain.deliveries):
            told = [f"deliveries differ from the deliveries {elsewhere}"]
        elif not all(map(np.array_equal, run.gaps, plain.gaps)):
            told = [f"gaps between tokens differ from the gaps {elsewhere}"]
        elif run.drafts != plain.drafts:
            told = [f"counts of drafts differ from the counts {elsewhere}"]
    return "; ".join(told)


def _sorted(rows: Rows, by: Sequence[int]) -> Rows:
    return rows[np.lexsort([rows[:, column] for column in reversed(by)])]


def _requests(run: Outcome, plain: Outcome, elsewhere: str) -> list[str]:
    """Return a line about the first request that differs."""
    a, b = run.requests, plain.requests
    if not np.array_equal(a[:, 0], b[:, 0]):
        row = int(np.setxor1d(a[:, 0], b[:, 0])[0])
        left = row in a[:, 0]
        return [f"request {row} {'has' if left else 'has not'} left, {elsewhere} it {'has not' if left else 'has'}"]
    differ = np.argwhere(a != b)
    if len(differ):
        i, column = differ[0].tolist()
        return [f"request {a[i, 0]}: {REQUEST_COLUMNS[column]} is {a[i, column]}, {elsewhere} {b[i, column]}"]
    for row in sorted(run.reasons):
        if run.reasons[row] != plain.reasons[row]:
            return [f"request {row} ends with {run.reasons[row]!r}, {elsewhere} with {plain.reasons[row]!r}"]
    return []


def _steps(run: Rows, plain: Rows, elsewhere: str) -> list[str]:
    """Return a line about the earliest step that differs, over all replicas."""
    found = []
    for replica in np.union1d(run[:, 0], plain[:, 0]).tolist():
        first = _first_step(run[run[:, 0] == replica], plain[plain[:, 0] == replica], elsewhere)
        if first is not None:
            found.append((first[0], f"step {first[1]} of replica {replica}: {first[2]}"))
    return [min(found)[1]] if found else []


def _first_step(run: Rows, plain: Rows, elsewhere: str) -> tuple[int, int, str] | None:
    """Return the start and the id of the first step that differs on one replica, and the difference."""
    k = run[:, _STEP["k"]]
    at, starts = np.repeat(np.arange(len(run)), k), np.cumsum(k) - k
    behind = np.arange(len(at)) - starts[at]
    each = run[at]
    each[:, _STEP["decode_context"]] += behind * each[:, _STEP["decode_count"]]
    n = min(len(each), len(plain))
    differs = {name: each[:n, _STEP[name]] != plain[:n, _STEP[name]] for name in COMPOSITION}
    opens, closes = behind[:n] == 0, behind[:n] == k[at[:n]] - 1
    differs |= {name: opens & (each[:n, _STEP[name]] != plain[:n, _STEP[name]]) for name in FIRST}
    differs["end_ns"] = closes & (each[:n, _STEP["end_ns"]] != plain[:n, _STEP["end_ns"]])
    wrong = [(int(np.argmax(found)), name) for name, found in differs.items() if found.any()]
    if wrong:
        i, name = min(wrong, key=lambda found: found[0])
        ours, theirs = each[i, _STEP[name]], plain[i, _STEP[name]]
        return int(plain[i, _STEP["start_ns"]]), i, f"{name} is {ours}, {elsewhere} {theirs}"
    if len(each) != len(plain):
        extra = each[n] if len(each) > n else plain[n]
        return int(extra[_STEP["start_ns"]]), n, f"{len(each)} steps in all, {elsewhere} {len(plain)}"
    return _sums(run, plain, starts, elsewhere)


def _sums(run: Rows, plain: Rows, starts: Rows, elsewhere: str) -> tuple[int, int, str] | None:
    """Compare like `_first_step`, but by the sums over steps that rows hold."""
    if not len(run):
        return None
    parts = {name: np.add.reduceat(plain[:, _STEP[name]], starts) for name in SUMMED}
    parts["kv_peak"] = np.maximum.reduceat(plain[:, _STEP["kv_peak"]], starts)
    for name, theirs in parts.items():
        wrong = np.flatnonzero(run[:, _STEP[name]] != theirs)
        if len(wrong):
            i = int(wrong[0])
            row, steps = run[i], f"of {run[i, _STEP['k']]} steps"
            told = f"{name} {steps} is {row[_STEP[name]]}, {elsewhere} {theirs[i]}"
            return int(row[_STEP["start_ns"]]), int(row[_STEP["step"]]), told
    return None


REQUESTS = 300
"""Maximum number of requests compared; a run may have fewer."""


def check_beginning(setup: Setup, requests: int = REQUESTS) -> None:
    """Compare both modes on the first requests of a run. Raise a PolicyError that names the first request and step to
    differ."""
    fast, plain = (_outcome(setup, mode, requests) for mode in ("fast", "reference"))
    if isinstance(fast, Outcome) and isinstance(plain, Outcome):
        told = difference(fast, plain)
    elif str(fast) == str(plain):
        return  # the policy may wait for more requests; the full run will show
    else:
        errors = [str(each) if isinstance(each, PolicyError) else "all is served" for each in (fast, plain)]
        told = f"{errors[0]}; in reference mode {errors[1]}"
    if told:
        name = setup.cores[0].scheduler.name
        count = min(requests, len(setup.trace))
        raise PolicyError(f"{name}: fast mode differs from reference mode in the first {count} requests: {told}")


def _outcome(setup: Setup, mode: str, requests: int) -> Outcome | PolicyError:
    """Serve the first requests and return their outcome."""
    trace = setup.trace.take(np.arange(min(requests, len(setup.trace))))
    whole: dict[str, Any] = {
        "requests": None,
        "skip": 0,
        "rate": None,
        "shape": [],
        "stream": False,
    }  # already applied to the trace
    part = set_up(setup.scenario.model_copy(update={**whole, "mode": mode, "check": False}), trace)
    clients, form = clients_of(part.scenario), part.cores[0].scheduler.samples
    cluster = part.cluster(TraceWorkload(trace, part.predicted, clients, form), Recorder(out_ns=part.out_ns))
    try:
        cluster.run()
    except PolicyError as error:
        return error
    return Outcome.of(cluster)
