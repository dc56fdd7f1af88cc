"""Self-drafting by the target's first layers and LM head (LayerSkip, arXiv 2404.16710; Draft & Verify)."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts import Batch, speculators
from servesim.contracts.params import check_least
from servesim.contracts.speculator import one_token_each
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.hardware.draft import DraftModel, early_exit

from ._drafter import Drafter, DrafterParams


@dataclass(frozen=True)
class EarlyExitParams(DrafterParams):
    """Layer at which drafting exits."""

    layers: int = 8
    """Number of the target's first layers that generate drafts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "layers")


@speculators.register("early-exit")
class EarlyExit(Drafter):
    """Drafter without weights or KV of its own: the target reuses the first layers' KV of accepted drafts. It makes k
    passes of one token per sequence."""

    Params = EarlyExitParams
    params: EarlyExitParams
    acceptance = "independent:alpha=0.6"

    def __init__(self, params: EarlyExitParams, target: ModelSpec) -> None:
        super().__init__(params, target)
        if not 1 <= params.layers < target.num_layers:
            raise UserError(f"speculation early-exit: layers is {params.layers} but must be below {target.num_layers}")
        self.lookahead = params.k
        self._model = early_exit(target, params.layers)

    def model(self) -> DraftModel:
        return self._model

    def passes(self, batch: Batch, k: int) -> list[Batch]:
        return [one_token_each(batch, j) for j in range(1, k + 1)] if batch.sampled else []

    def follows(self) -> bool:
        return type(self).passes is EarlyExit.passes
