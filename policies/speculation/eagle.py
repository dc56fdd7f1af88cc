"""Draft heads on the target's hidden states: EAGLE (arXiv 2401.15077), EAGLE-3 (2503.01840), MTP (2412.19437).

As in vLLM 0.33, the head makes one pass over all tokens of the target's batch, which keeps its KV up to date (also
after prefill chunks and without drafts), then k - 1 passes of one token per sequence. Drafts form chains.
"""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts import speculators
from servesim.contracts.params import check_least
from servesim.hardware import ModelSpec
from servesim.hardware.draft import DraftModel, eagle3_head, eagle_head, mtp_head

from ._drafter import Drafter, DrafterParams


class _Head(Drafter):
    """A layer on top of the target, with its KV next to the target's."""

    hash_lookahead = 1

    def __init__(self, params: DrafterParams, target: ModelSpec) -> None:
        super().__init__(params, target)
        self.lookahead = params.k


@speculators.register("eagle")
class Eagle(_Head):
    """One decoder layer that predicts the next hidden state; embedding and LM head are the target's."""

    # EAGLE with chains of three, on code edits (vLLM PR 24344)
    acceptance = "positions:marginal=0.77/0.45/0.24"

    def model(self) -> DraftModel:
        return eagle_head(self.target)


@dataclass(frozen=True)
class Eagle3Params(DrafterParams):
    """Settings of the draft head."""

    draft_vocab: int = 32000
    """Size of the LM head's reduced vocabulary (most published heads: 32000)."""
    mlp_width: int = 0
    """Width of the head's MLP; 0: the target's, or 6 times the hidden size if the target is a mixture of experts (17280
    in the head published for gpt-oss-120b)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "draft_vocab")
        check_least(self, 0, "mlp_width")


@speculators.register("eagle3")
class Eagle3(_Head):
    """One decoder layer with a reduced vocabulary that takes three of the target's hidden states as input."""

    Params = Eagle3Params
    params: Eagle3Params
    # Llama-3.1-8B with RedHatAI's head on MT-bench, temperature 0 (vLLM tests/v1/spec_decode/test_acceptance_length.py)
    acceptance = "positions:marginal=0.730/0.521/0.355"

    def model(self) -> DraftModel:
        target = self.target
        width = self.params.mlp_width or (6 * target.hidden_size if target.experts else target.intermediate_size)
        return eagle3_head(target, self.params.draft_vocab, width)


@speculators.register("mtp")
class Mtp(_Head):
    """Multi-token prediction: an extra layer of the same kind as the target's last layer, trained with it; embedding
    and LM head are the target's. The layer is applied again for each further draft."""

    # Qwen3.5-397B, SPEED-Bench coding (InferenceX golden acceptance lengths 1.92, 2.70, 3.33)
    acceptance = "positions:marginal=0.92/0.78/0.63"

    def model(self) -> DraftModel:
        return mtp_head(self.target)
