"""A row of the step table while it may still go on."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.engine.step import Step

MOST_TOKEN_NS = 1 << 60
"""Memory times time of a row: sums of two such fit 64 bits."""


@dataclass(slots=True)
class Row:
    """k steps of one composition, from `first` on."""

    first: Step
    k: int
    end_ns: int
    ns: int
    gpu_ns: int
    kv_peak: int
    used_ns: int
    internal_ns: int

    def goes_on(self, step: Step) -> bool:
        """Whether a step is one more of these: decode alone, the same requests, one token later."""
        last, batch, before = self.first, step.batch, self.first.batch
        return (
            batch.decode_context_sum == before.decode_context_sum + self.k * before.decode_count
            and batch.decode_count == before.decode_count
            and batch.linear_tokens == before.linear_tokens == before.decode_count == batch.sampled == before.sampled
            and step.start_ns == self.end_ns
            and step.id == last.id + self.k
            and step.preempted == 0
            and last.preempted == 0
            and step.host_ns == last.host_ns
            and step.usage.external == last.usage.external
            and not (batch.padded_tokens or before.padded_tokens or batch.drafts or before.drafts)
            and not (batch.bytes_moved or before.bytes_moved or batch.bytes_copied or before.bytes_copied)
            and self.used_ns + self.internal_ns < MOST_TOKEN_NS
        )

    def cells(self, replica: int) -> tuple[int, ...]:
        """In the order of `recorder.STEP_COLUMNS`."""
        first = self.first
        batch, usage = first.batch, first.usage
        a, b, c, d = first.shares
        return (
            replica,
            first.id,
            self.k,
            first.planned_ns,
            first.start_ns,
            self.end_ns,
            self.ns,
            sum([new for new, _ in batch.prefill]) if batch.prefill else 0,
            len(batch.prefill),
            sum([past for _, past in batch.prefill]) if batch.prefill else 0,
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
            usage.used,
            usage.internal,
            usage.external,
            self.kv_peak,
            self.used_ns,
            self.internal_ns,
            int(a * 1e6 + 0.5),
            int(b * 1e6 + 0.5),
            int(c * 1e6 + 0.5),
            int(d * 1e6 + 0.5),
        )
