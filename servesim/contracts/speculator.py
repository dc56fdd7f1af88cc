"""Contract of speculators: drafts proposed after a step, and the cost of drafting."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from servesim.contracts.cost import Batch
from servesim.hardware.draft import DraftModel
from servesim.hardware.model import ModelSpec
from servesim.plugins.registry import Registry

MOST_DRAFTS = 1024
"""Maximum number of drafts of a sequence in a step, far more than any method drafts."""


@dataclass(frozen=True)
class SpeculatorParams:
    """Parameters common to nearly every method."""

    k: int = 3
    """Draft tokens per step (num_speculative_tokens); for trees, their depth."""

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MOST_DRAFTS:
            raise ValueError(f"k is {self.k} but must be from 1 to {MOST_DRAFTS:,}")


class Speculator(ABC):
    """Method that proposes drafts for the sequences that sample in a step; the next step verifies them.

    It determines only how many tokens are drafted and what that costs. Which drafts turn out right is part of the
    workload (see AcceptanceModel). A minimal speculator overrides `model` and, if it does not draft pass by pass,
    `passes`. Methods may be called at any time and change nothing, except for `observe` and `limit`, which are called
    once a step. Whatever a speculator raises ends the run with a PolicyError that names its class and line.
    """

    name: ClassVar[str] = "?"
    Params: ClassVar[type[Any]] = SpeculatorParams
    needs: frozenset[str] = frozenset()
    """{"acceptance"} marks an oracle, which calls `self.rates`."""
    supports: ClassVar[frozenset[str]] = frozenset({"async"})
    """"async": the number of drafts is known before the step in flight is done."""
    acceptance: ClassVar[str] = "independent:alpha=0.7"
    """Acceptance model assumed if the scenario specifies none."""

    max_drafts: int
    """Maximum number of draft tokens per sequence in a step."""
    lookahead: int = 0
    """KV slots reserved per request for drafts."""
    slots_per_request: int = 0
    """Input slots that its passes need per scheduled request beyond the target's tokens."""
    hash_lookahead: int = 0
    """Number of tokens after a block that its prefix hash covers, too, if drafters need the next one's KV (vLLM)."""
    width: int = 1
    """Candidates per draft position: siblings in a tree."""
    expands: bool = False
    """Whether every draft is verified as a separate sequence, which reads the whole context again (vLLM before
    0.6.4)."""
    price: Callable[[Batch], int]
    """Function that returns the price of a step in ns, drafting included; set by the engine. Used by methods that weigh
    cost against gain."""
    rates: Callable[[int], list[float]]
    """Function that returns the mean acceptance probability of draft positions 1 to k; set by the engine for declared
    oracles only."""

    def __init__(self, params: Any, target: ModelSpec) -> None:
        self.params = params
        self.target = target
        self.max_drafts = params.k

    def model(self) -> DraftModel | None:
        """Return the model that drafting passes run through. Default: None; drafts take no GPU time."""
        return None

    def limit(self, batch: Batch) -> int:
        """Return the draft tokens per sequence proposed after this step, from 0 to `max_drafts` (else the engine raises
        PolicyError). Default: always `max_drafts`."""
        return self.max_drafts

    def verified(self, depth: int) -> int:
        """Return the number of draft tokens that the target verifies for drafts `depth` deep; more than `depth` for
        trees. Default: equal to it, as for a chain."""
        return depth

    def depth(self, drafts: int) -> int:
        """Return the depth that `drafts` verified draft tokens reach (a plan may have trimmed them): the inverse of
        `verified`."""
        return drafts

    def passes(self, batch: Batch, k: int) -> list[Batch]:
        """Return the batches of the draft passes through `model()`, if it has one, after the target's pass over
        `batch`. Default: one pass over all its tokens, which keeps the draft KV up to date even if nothing is drafted
        (k = 0), then k - 1 passes with one token per sequence."""
        return [all_tokens(batch)] + [one_token_each(batch, j) for j in range(1, k)]

    def follows(self) -> bool:
        """Return whether, for each of `passes` with attention, the context sum is the batch's plus a constant, and
        nothing else in them depends on contexts, so that the steps of a run can be priced together. Default: only if
        `passes` is not overridden."""
        return type(self).passes is Speculator.passes

    def host_ns(self, batch: Batch, k: int) -> int:
        """Return the host time in ns that the GPU waits for during drafting. Default: none beyond the engine's own."""
        return 0

    def observe(self, verified: Sequence[tuple[int, int]]) -> None:
        """Learn from the drafts that a step verified: (depth, accepted) for each request with any. Default: nothing."""
        return None

    def steady(self) -> bool:
        """Return whether `limit` depends only on the number of sequences in the batch, so that runs of equal steps can
        be fast-forwarded. Default: only if it is not overridden."""
        return type(self).limit is Speculator.limit


def all_tokens(batch: Batch) -> Batch:
    """Return a draft pass over all tokens of the target's batch; only the sequences that sample propose drafts."""
    return Batch(
        batch.linear_tokens,
        batch.prefill,
        decode_count=batch.decode_count,
        decode_context_sum=batch.decode_context_sum,
        decode_context_sumsq=batch.decode_context_sumsq,
        decode_context_max=batch.decode_context_max,
        queries_per_sequence=batch.queries_per_sequence,
        sampled=batch.sampled,
        padded_tokens=batch.padded_tokens,
        sampled_context=batch.sampled_context,
    )


def one_token_each(batch: Batch, j: int) -> Batch:
    """Return the j-th additional draft pass: one token for each sequence that sampled."""
    n = batch.sampled
    return Batch.decodes(n, batch.sampled_context + j * n, longest=batch.decode_context_max + j)


speculators: Registry[Speculator] = Registry("speculation", Speculator, "servesim.policies.speculation")
