"""Draft lengths: fixed, by batch size, by acceptance, or by expected throughput."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from servesim.contracts import Batch

if TYPE_CHECKING:
    from ._drafter import Drafter


class DraftLength:
    """Policy that chooses k after each step."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.most = drafter.max_drafts

    def limit(self, batch: Batch) -> int:
        """Return the number of drafts per sequence after a step."""
        raise NotImplementedError

    def observe(self, verified: Sequence[tuple[int, int]]) -> None:
        """Update from the (depth, accepted) pairs of the requests whose drafts a step verified."""


class Fixed(DraftLength):
    """A constant draft length."""

    def limit(self, batch: Batch) -> int:
        return self.most


def parse_table(text: str) -> list[tuple[int, int, int]]:
    """Parse from-to:k parts into (from, to, k) rows, which must be ascending and disjoint."""
    rows: list[tuple[int, int, int]] = []
    for part in text.split("/"):
        sizes, _, k = part.partition(":")
        low, _, high = sizes.partition("-")
        try:
            row = int(low), int(high or low), int(k)
        except ValueError:
            raise ValueError(f"table: {part!r} must have the form from-to:k") from None
        if row[0] > row[1] or row[2] < 0 or row[0] <= (rows[-1][1] if rows else 0):
            raise ValueError(f"table: {part!r}: ranges of batch sizes must ascend from 1, and k must be at least 0")
        rows.append(row)
    return rows


def by_batch_size(table: Sequence[Sequence[int]], batch: int, most: int) -> int:
    """Return k for a number of sequences from (from, to, k) rows. Between rows, the previous row applies; before the
    first row, the first one does (vllm/v1/spec_decode/dynamic)."""
    row = max(0, bisect_right([row[0] for row in table], batch) - 1)
    return min(table[row][2], most)


class Table(DraftLength):
    """Draft length by the number of requests scheduled in the step (vLLM 0.33, dynamic speculative decoding)."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._table = parse_table(drafter.params.table)

    def limit(self, batch: Batch) -> int:
        return by_batch_size(self._table, batch.decode_count + len(batch.prefill), self.most)


class SglangAdaptive(DraftLength):
    """Draft length of SGLang 0.5.23: each batch size allows certain values of k; acceptance moves k up and down.

    The mean number of accepted drafts is an exponential moving average over batches (weight 0.2), checked every fifth
    batch after the first ten.
    """

    SLOTS = ((1, (1, 3, 5, 7)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,)))
    WEIGHT, WARM_UP, EVERY = 0.2, 10, 5

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._mean = 0.0
        self._seen = 0
        self._k: dict[int, int] = {}  # current k by slot
        self._slot = 1

    def _allowed(self, slot: int) -> list[int]:
        return [k for k in dict(self.SLOTS)[slot] if k <= self.most] or [self.most]

    def limit(self, batch: Batch) -> int:
        size = batch.sampled
        self._slot = max(low for low, _ in self.SLOTS if low <= max(size, 1))
        allowed = self._allowed(self._slot)
        if self._slot not in self._k:
            self._k[self._slot] = max([k for k in allowed if k <= 3], default=allowed[0])
        elif self._k[self._slot] == 0 and len(allowed) > 1:
            self._k[self._slot] = allowed[1]  # without drafts there are no observations: try again
        return self._k[self._slot]

    def observe(self, verified: Sequence[tuple[int, int]]) -> None:
        mean = sum(accepted for _, accepted in verified) / len(verified)
        self._mean = mean if not self._seen else (1 - self.WEIGHT) * self._mean + self.WEIGHT * mean
        self._seen += 1
        if self._seen < self.WARM_UP or self._seen % self.EVERY:
            return
        allowed = self._allowed(self._slot)
        current = self._k.get(self._slot, allowed[0])
        if current not in allowed:
            return
        at = allowed.index(current)
        if at and self._mean <= allowed[at - 1] - 0.5 + self._down(allowed[at - 1]):
            self._k[self._slot] = allowed[at - 1]
        elif at + 1 < len(allowed) and self._mean > current - 0.5:
            self._k[self._slot] = allowed[at + 1]

    def _down(self, lower: int) -> float:
        """Return the hysteresis applied when stepping down to `lower`."""
        return 1.0 if lower == 0 else -0.25 if self._slot == 1 else 0.0


class Goodput(DraftLength):
    """Draft length with the most expected tokens per second: mean accepted drafts plus the target's token, divided by
    the cost of verifying and drafting them. Acceptance rates are observed and averaged, for each position, over its
    latest verifications (about a hundred batches); an oracle uses the true rates."""

    PRIOR, WEIGHT = 0.7, 0.01

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._true = drafter.rates(self.most) if "acceptance" in drafter.needs else None
        self._chance = [self.PRIOR] * self.most  # conditional

    def limit(self, batch: Batch) -> int:
        if not batch.sampled:
            return 0
        rates = self._true or self._marginal()
        best, most = 0, 0.0
        tokens = 1.0
        for k in range(self.most + 1):
            tokens += rates[k - 1] if k else 0.0
            rate = tokens / self.drafter.price(verification(batch, k, self.drafter))
            if rate > most:
                best, most = k, rate
        return best

    def observe(self, verified: Sequence[tuple[int, int]]) -> None:
        for j in range(self.most):
            tried = sum(1 for depth, accepted in verified if depth > j and accepted >= j)
            if tried:
                right = sum(1 for depth, accepted in verified if depth > j and accepted > j)
                weight = min(1.0, self.WEIGHT * tried)
                self._chance[j] += weight * (right / tried - self._chance[j])

    def _marginal(self) -> list[float]:
        rates, whole = [], 1.0
        for chance in self._chance:
            whole *= chance
            rates.append(whole)
        return rates


def verification(batch: Batch, k: int, drafter: Any) -> Batch:
    """Return the step that verifies k drafts for each sampling sequence in `batch`, and drafts k more."""
    n = batch.sampled
    nodes = drafter.verified(k)
    contexts = batch.sampled_context + n * (1 + nodes)
    sequences = 1 + nodes if drafter.expands else 1
    return Batch(
        linear_tokens=n * (1 + nodes),
        decode_count=n * sequences,
        decode_context_sum=contexts * sequences - n * (sequences * (sequences - 1) // 2),
        decode_context_max=batch.decode_context_max + 1 + nodes,
        queries_per_sequence=(1 + nodes) // sequences,
        sampled=n,
        drafts=n * nodes,
        draft_k=k,
        sampled_context=contexts,
    )
