"""Costs of drafting in a step: passes of a draft model after the target's pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servesim.contracts.cost import Batch
from servesim.contracts.speculator import Speculator
from servesim.cost.data_parallel import Mixture, mixture
from servesim.cost.graph import LayerGraph
from servesim.cost.stage import Operator, Stage


@dataclass(frozen=True)
class Drafting:
    """A speculator and the kernels of its passes: those of the first pass after a target pass, and those of later
    passes."""

    speculator: Speculator
    stages: tuple[Stage, ...]
    """First and later stages; empty if drafting takes no GPU time."""
    mixture: Mixture | None = None
    """Work of a pass that data-parallel ranks do together, as a function of the tokens of all ranks; None if the draft
    model has no experts."""

    def work(self, batch: Batch) -> list[tuple[Stage, Batch]]:
        """Return the passes that a step of this batch runs in addition to the target's, as (stage, batch)."""
        if not self.stages:
            return []
        first, later = self.stages
        passes = self.speculator.passes(batch, batch.draft_k)
        return [(later if i else first, passed) for i, passed in enumerate(passes)]


def drafting(speculator: Speculator, target: LayerGraph, all2all: str = "auto") -> Drafting:
    """Return the drafting cost of a speculator for a target. Draft weights are in 16 bits; layers shared with the
    target are in the target's precision. `all2all`: how the tokens of data-parallel ranks reach the experts."""
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

    mixed = target.dp > 1 and model.decoder and any(layer.experts for layer in model.spec.layers)
    shared = mixture(graph, all2all, layers) if mixed else None
    return Drafting(speculator, (stage((*model.linears, *model.first_linears)), stage(model.linears)), shared)
