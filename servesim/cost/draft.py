"""Costs of drafting in a step: passes of a draft model after the target's pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servesim.contracts.cost import Batch
from servesim.contracts.speculator import Speculator
from servesim.cost.graph import LayerGraph
from servesim.cost.stage import Operator, Stage


@dataclass(frozen=True)
class Drafting:
    """A speculator and the kernels of its passes: those of the first pass after a target pass, and those of later
    passes."""

    speculator: Speculator
    stages: tuple[Stage, ...]
    """First and later stages; empty if drafting takes no GPU time."""

    def work(self, batch: Batch) -> list[tuple[Stage, Batch]]:
        """Return the passes that a step of this batch runs in addition to the target's, as (stage, batch)."""
        if not self.stages:
            return []
        first, later = self.stages
        passes = self.speculator.passes(batch, batch.draft_k)
        return [(later if i else first, passed) for i, passed in enumerate(passes)]


def drafting(speculator: Speculator, target: LayerGraph) -> Drafting:
    """Return the drafting cost of a speculator for a target. Draft weights are in 16 bits; layers shared with the
    target are in the target's precision."""
    model = speculator.model()
    if model is None:
        return Drafting(speculator, ())
    graph = replace(target, model=model.spec, dtype=target.dtype if model.shares_layers else "bf16")
    layers = range(model.spec.num_layers)
    decoder = graph.per_token(layers) if model.decoder else []
    attention = graph.attention(layers) if model.decoder else []

    def stage(linears: tuple[tuple[int, int], ...]) -> Stage:
        extra = [Operator(f"draft {n} x {k}", target.gemms.curve(n // target.tp, k, "bf16")) for n, k in linears]
        return Stage([*decoder, *extra], graph.per_sample(), attention, target.roofline)

    return Drafting(speculator, (stage((*model.linears, *model.first_linears)), stage(model.linears)))
