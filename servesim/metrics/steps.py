"""Metrics of the engine, summed chunk by chunk while the step table is streamed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.distribution import describe_counted
from servesim.metrics.requests import per
from servesim.records.columns import STEP_COLUMNS, Rows
from servesim.records.numbers import counted

KINDS = ("prefill", "decode", "mixed")
ORIGINS = ("measured", "interpolated", "extrapolated", "roofline")
_SUMS = ("k", "gpu_ns", "host_ns", "preempted", "kv_used_ns", "kv_internal_ns")
_PER_STEP_SUMS = ("prefill_tokens", "prefill_context", "sampled", "padded_tokens", "drafts", "bytes_moved")


@dataclass
class StepTotals:
    """Sums over all steps. A row of the table represents k steps; integers stay exact."""

    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*_SUMS, *_PER_STEP_SUMS), 0))
    decode_tokens: int = 0
    decode_context: int = 0
    """Sum of the contexts attended to by decoding sequences over all steps."""
    kv_external_ns: int = 0
    kv_peak: int = 0
    steps_by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    ns_by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    gpu_ns_by_origin: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ORIGINS, 0))
    decode_reach: dict[int, int] = field(default_factory=dict)
    """Maximum total context attended to in a step, by number of decoding sequences."""
    replicas: set[int] = field(default_factory=set)
    _batch: dict[int, int] = field(default_factory=dict)
    _tokens: dict[int, int] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        """Add a chunk of the step table."""
        c = {name: rows[:, i] for i, name in enumerate(STEP_COLUMNS)}
        k = c["k"]
        for name in _SUMS:
            self.sums[name] += exact_sum(c[name])
        for name in _PER_STEP_SUMS:
            self.sums[name] += exact_sum(c[name] * k)
        decode = c["decode_count"] + c["drafts"]
        self.decode_tokens += exact_sum(decode * k)
        self.decode_context += exact_sum(c["decode_context"] * k + c["decode_count"] * (k * (k - 1) // 2))
        self._add_reach(c["decode_count"], c["decode_context"] + c["decode_count"] * (k - 1))
        span = c["elapsed_ns"]
        self.kv_external_ns += exact_sum(c["kv_external"] * span)
        self.kv_peak = max(self.kv_peak, int(c["kv_peak"].max(initial=0)))
        self.replicas.update(np.unique(c["replica"]).tolist())
        self._add_kinds(c["prefill_pieces"] > 0, c["decode_count"] > 0, k, span)
        for origin in ORIGINS:
            self.gpu_ns_by_origin[origin] += exact_sum(c[f"{origin}_ns"])
        _count(self._batch, c["decode_count"] + c["prefill_pieces"], k)
        _count(self._tokens, c["prefill_tokens"] + decode, k)

    def _add_reach(self, count: Rows, contexts: Rows) -> None:
        distinct, where = np.unique(count, return_inverse=True)
        most = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(most, where, contexts)
        for sequences, context in zip(distinct.tolist(), most.tolist(), strict=True):
            self.decode_reach[sequences] = max(self.decode_reach.get(sequences, 0), context)

    def _add_kinds(self, prefill: NDArray[np.bool_], decode: NDArray[np.bool_], k: Rows, span: Rows) -> None:
        for kind, mask in zip(KINDS, (prefill & ~decode, decode & ~prefill, prefill & decode), strict=True):
            self.steps_by_kind[kind] += int(k[mask].sum())
            self.ns_by_kind[kind] += int(span[mask].sum())

    @property
    def steps(self) -> int:
        """Number of number of steps on all replicas."""
        return self.sums["k"]

    def batch_size(self) -> dict[str, float] | None:
        """Return the distribution of sequences per step, over steps."""
        return _described(self._batch)

    def tokens_per_step(self) -> dict[str, float] | None:
        """Return the distribution of tokens computed per step (without padding), over steps."""
        return _described(self._tokens)

    def cost_shares(self) -> dict[str, float | None]:
        """Return the shares of the GPU time by origin: measured kernels, interpolated, extrapolated, formula."""
        total = sum(self.gpu_ns_by_origin.values())
        return {origin: per(ns, total) for origin, ns in self.gpu_ns_by_origin.items()}

    def uncertainty(self, relative_error: float | None) -> float | None:
        """Return the half-width of a 95 % interval on the GPU time, as a fraction of the GPU time, from the standard
        error of one table entry over its repeats; None if that error is unknown.

        Errors of entries are assumed to be correlated (one session, one clock), so they do not average out. Latencies
        without queueing vary by at most as much. Extrapolated and formula times are off by more than the repeats show
        and are not included.
        """
        shares = self.cost_shares()
        if relative_error is None or shares["measured"] is None or shares["interpolated"] is None:
            return None
        return 1.96 * relative_error * (shares["measured"] + shares["interpolated"])


def exact_sum(column: Rows) -> int:
    """Return the sum as a Python integer: token-nanoseconds of a long run exceed 64 bits."""
    return (int((column >> 32).sum()) << 32) + int((column & 0xFFFFFFFF).sum())


def _count(counter: dict[int, int], values: Rows, weights: Rows) -> None:
    distinct, totals = counted(values, weights)
    for value, total in zip(distinct.tolist(), totals.tolist(), strict=True):
        counter[value] = counter.get(value, 0) + total


def _described(counter: dict[int, int]) -> dict[str, float] | None:
    return describe_counted(np.array(list(counter), dtype=np.int64), np.array(list(counter.values()), dtype=np.int64))
