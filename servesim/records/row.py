"""A row of the step table that may still grow."""

from __future__ import annotations

from servesim.contracts.cost import Sources
from servesim.records.step import Step

MOST_TOKEN_NS = 1 << 60
"""Maximum memory-time integral of a row: the sum of two such values fits in 64 bits."""


class Row:
    """A row of k steps with one composition, starting with `first`."""

    __slots__ = ("end_ns", "first", "gpu_ns", "internal_ns", "k", "kv_peak", "ns", "sources", "used_ns")

    def __init__(
        self, first: Step, k: int, end_ns: int, ns: int, gpu_ns: int, kv_peak: int, used_ns: int, internal_ns: int,
        sources: Sources,
    ) -> None:  # fmt: skip
        self.first, self.k, self.end_ns = first, k, end_ns
        self.ns, self.gpu_ns, self.kv_peak = ns, gpu_ns, kv_peak
        self.used_ns, self.internal_ns, self.sources = used_ns, internal_ns, sources

    def continues_with(self, step: Step) -> bool:
        """Return whether a step continues this row: it only decodes, for the same requests, one token later."""
        batch, n = step.batch, step.batch.decode_count
        return (
            n == self.first.batch.decode_count
            and batch.linear_tokens == n == batch.sampled
            and not (step.preempted or batch.padded_tokens or batch.drafts or batch.bytes_moved or batch.bytes_copied)
            and self.can_append_decodes(
                step.id, n, batch.decode_context_sum, step.start_ns, step.host_ns, step.usage.external
            )
        )

    def can_append_decodes(
        self, step_id: int, n: int, context: int, start_ns: int, host_ns: int, external: int
    ) -> bool:
        """Return whether this row can absorb a step of n decodes and nothing else."""
        last, before = self.first, self.first.batch
        return (
            n == before.decode_count
            and context == before.decode_context_sum + self.k * n
            and before.linear_tokens == n == before.sampled
            and start_ns == self.end_ns
            and step_id == last.id + self.k
            and last.preempted == 0
            and host_ns == last.host_ns
            and external == last.usage.external
            and not (before.padded_tokens or before.drafts or before.bytes_moved or before.bytes_copied)
            and self.used_ns + self.internal_ns < MOST_TOKEN_NS
        )

    def extend(
        self, k: int, end_ns: int, ns: int, gpu_ns: int, kv_peak: int, used_ns: int, internal_ns: int, sources: Sources
    ) -> None:
        """Add k steps."""
        self.k += k
        self.end_ns = end_ns
        self.ns += ns
        self.gpu_ns += gpu_ns
        if kv_peak > self.kv_peak:
            self.kv_peak = kv_peak
        self.used_ns += used_ns
        self.internal_ns += internal_ns
        a, b, c, d = self.sources
        e, f, g, h = sources
        self.sources = (a + e, b + f, c + g, d + h)

    def cells(self, replica: int) -> tuple[int, ...]:
        """Return the row in the order of `columns.STEP_COLUMNS`."""
        first = self.first
        batch, prefill = first.batch, first.batch.prefill
        new = context = 0
        for tokens, past in prefill:
            new, context = new + tokens, context + past
        used, internal, external, _ = first.usage
        measured, interpolated, extrapolated, formula = self.sources
        return (
            replica,
            first.id,
            self.k,
            first.planned_ns,
            first.start_ns,
            self.end_ns,
            self.ns,
            new,
            len(prefill),
            context,
            batch.decode_count,
            batch.decode_context_sum,
            batch.sampled,
            batch.padded_tokens,
            batch.drafts,
            first.accepted,
            first.preempted,
            batch.bytes_moved,
            self.gpu_ns,
            first.host_ns * self.k,
            used,
            internal,
            external,
            self.kv_peak,
            self.used_ns,
            self.internal_ns,
            measured,
            interpolated,
            extrapolated,
            formula,
        )
