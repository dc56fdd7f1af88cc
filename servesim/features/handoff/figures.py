"""Time that requests spend in each stage when prefill and decode are disaggregated, as columns of requests and as
figures.

Stages until the first token: the prefill queue, the prefill pass(es), the handover (proxy, and the wait for memory on
the decode side), the wire, and the first step on the decode side; then decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.figures import Figure, Group, Rows, Summary
from servesim.contracts.request import Request, State
from servesim.features.handoff.links import Links
from servesim.features.handoff.stages import STAGES, Stages
from servesim.metrics.requests import SECOND, per
from servesim.metrics.words import number, percent
from servesim.schemas import COUNT, DISTRIBUTION, NUMBER, TEXT, an_object

if TYPE_CHECKING:
    from servesim.features.handoff.part import Handoff
    from servesim.features.handoff.passage import Passage

COLUMNS = ("prefill_replica", "prefilled_ns", "sent_ns", "reserved_ns", "received_ns", "kv_bytes")
"""Additional columns of requests.parquet; -1 if the event has not happened. `replica` is the decode replica."""


def stage_columns(handoff: Handoff, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the values of COLUMNS for requests with these row numbers, in the same order."""
    found = {p.request.row: _cells(p) for p in handoff.passages_of(rows)}
    none = (-1,) * (len(COLUMNS) - 1) + (0,)
    table = np.array([found.get(row, none) for row in rows.tolist()], dtype=np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


def _cells(passage: Passage) -> tuple[int, ...]:
    return (
        passage.prefill,
        passage.leg.finished_ns,
        passage.sent_ns,
        passage.reserved_ns,
        passage.received_ns,
        passage.num_bytes,
    )


def served(passages: Sequence[Passage]) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]]:
    """Yield, for each side, the replicas that served requests and the arguments of ReplicaTotals.add_served: for a
    prompt, the time in its prefill queue; for an answer, the time from the proxy to its first step minus the time on
    the wire."""
    yield _sums([(p.prefill, p.leg, p.leg.arrival_ns, 0, 0) for p in passages])
    sent = [p for p in passages if p.sent_ns >= 0]
    wires = [max(p.received_ns, p.reserved_ns) - p.reserved_ns for p in sent]
    yield _sums(
        [(p.decode, p.request, p.sent_ns, p.request.num_output_tokens, w) for p, w in zip(sent, wires, strict=True)]
    )


def _sums(
    requests: Sequence[tuple[int, Request, int, int, int]],
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Return the replicas and the values to be summed for each request, given as (replica, request, start of its wait,
    output tokens, ns of the wait on the wire)."""
    names = ("completed", "prompt_tokens", "hit_tokens", "output_tokens", "queued_ns", "scheduled")
    rows = []
    for _, request, since, answer, wire in requests:
        done, scheduled = request.state is State.FINISHED, request.scheduled_ns >= 0
        prompt, queued = (request.prompt_len, request.scheduled_ns - since - wire) if scheduled else (0, 0)
        rows.append((done, prompt, request.hit_tokens, answer if done else 0, queued, scheduled))
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    replica = np.array([one[0] for one in requests], dtype=np.int64)
    return replica, dict(zip(names, table.T, strict=True))


class Passed(NamedTuple):
    """Transfers from prefill to decode, for the figures."""

    handoff: Handoff
    duration_ns: int

    @property
    def stages(self) -> Stages:
        """Sums over all requests."""
        return self.handoff.stages

    @property
    def decides(self) -> bool:
        """Whether a decider chooses which requests go straight to a decode replica."""
        return self.handoff.straight is not None

    @property
    def busy_share(self) -> float | None:
        """Share of the time during which any transfer was in flight on a shared wire, or None if the wire is not
        shared."""
        wire = self.handoff.wire
        return per(wire.busy_ns, self.duration_ns) if isinstance(wire, Links) else None


def _stages(summary: Summary) -> str:
    spent = summary["disaggregation"]["stages_ms"]
    return ", ".join(f"{name.replace('_', ' ')} {number(ms['mean'])}" for name, ms in spent.items() if ms)


def _rows(summary: Summary) -> Rows:
    found = summary["disaggregation"]
    wire = (
        f"{found['transfers']:,} transfers, {number(found['gigabytes'])} GB, {number(found['gb_s'])} GB/s on average, "
        f"busy {percent(found['wire_busy_share'])}"
    )
    rows = [("stages, mean ms", _stages(summary)), (f"wire, {found['protocol']}", wire)]
    if "straight" in found:
        ttft = found.get("straight_ttft_ms")
        mean = f", first tokens after {number(ttft['mean'])} ms on average" if ttft else ""
        rows.append(("straight to decode", f"{found['straight']:,} ({percent(found['straight_share'])}){mean}"))
    return rows


DISAGGREGATION = Group(
    "disaggregation",
    "separate prefill and decode",
    (
        Figure("protocol", "protocol that moves KV from prefill to decode", lambda p: p.handoff.name, schema=TEXT),
        Figure("stages_ms",
               "time that completed requests spent in each stage: the prefill queue, prefill, the handover (the "
               "proxy and the wait for memory on the decode side), the wire, the first step on the decode side, and "
               "decode",
               lambda p: p.stages.stages_ms(), "ms", an_object(**dict.fromkeys(STAGES, DISTRIBUTION))),
        Figure("transfers", "number of requests whose KV was sent", lambda p: p.stages.transfers, schema=COUNT),
        Figure("gigabytes", "size of all KV sent, in GB", lambda p: float(p.stages.num_bytes) / 1e9, "GB", NUMBER),
        Figure("gb_s", "GB of KV sent, divided by the duration",
               lambda p: per(float(p.stages.num_bytes) / 1e9, p.duration_ns / SECOND), "GB/s"),
        Figure("wire_busy_share", "share of the duration in which KV was on the wire", lambda p: p.busy_share,
               "share"),
        Figure("straight", "number of requests whose prompt a decode replica computed, as decided by `disaggregate`",
               lambda p: p.stages.straight if p.decides else None, schema=COUNT, optional=True),
        Figure("straight_share", "share of these among all requests",
               lambda p: per(p.stages.straight, p.stages.requests) if p.decides else None, "share", optional=True),
        Figure("straight_ttft_ms", "TTFT of these requests, completed ones",
               lambda p: p.stages.straight_ttft_ms() if p.decides else None, "ms",
               DISTRIBUTION, optional=True),
    ),
    doc="Present if separate pools run prefill and decode.",
    rows=_rows,
)  # fmt: skip
