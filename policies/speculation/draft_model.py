"""A small language model drafts token by token (Leviathan et al., ICML 2023; vLLM 0.33 method "draft_model")."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts import speculators
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.hardware.draft import DraftModel

from ._drafter import Drafter, DrafterParams


@dataclass(frozen=True)
class DraftModelParams(DrafterParams):
    """Settings of the drafter."""

    model: str = ""
    """Name of a bundled model, or path of a config.json."""


@speculators.register("draft-model")
class DraftModelSpeculator(Drafter):
    """Draft model with its own weights and KV. It makes k sequential passes, the first over all tokens of the target's
    batch plus one per sequence. Both models must share a vocabulary."""

    Params = DraftModelParams
    params: DraftModelParams
    acceptance = "independent:alpha=0.7"
    slots_per_request = 1

    def __init__(self, params: DraftModelParams, target: ModelSpec) -> None:
        super().__init__(params, target)
        if not params.model:
            raise UserError("speculation draft-model: specify the drafter, such as draft-model:model=llama-3.2-1b")
        self.lookahead = params.k
        self._model = DraftModel(ModelSpec.load(params.model))

    def model(self) -> DraftModel:
        return self._model
