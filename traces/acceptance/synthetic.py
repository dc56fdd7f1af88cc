"""A chosen mean acceptance length, as engines offer for benchmarking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from servesim.contracts import Request, acceptance_models
from servesim.contracts.speculator import MOST_DRAFTS

from . import ByPosition, running_product


@dataclass(frozen=True)
class SyntheticParams:
    """Chosen acceptance length."""

    length: float = 2.5
    """Mean number of tokens per step, including the target's own token (vLLM synthetic_acceptance_length, SGLang
    SGLANG_SIMULATE_ACC_LEN; TensorRT-LLM's TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS is one less)."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length is {self.length}: every step delivers at least the target's own token")
        if self.length > MOST_DRAFTS + 1:
            raise ValueError(f"length is {self.length:g}: at most {MOST_DRAFTS:,} drafts are verified in a step")


def acceptance_rates(length: float, k: int) -> list[float]:
    """Return the marginal rates of k positions that give the stated mean length with the least variance: 1 at the first
    positions, then the fractional remainder, then 0 (vllm/config/speculative.py)."""
    accepted = min(length - 1.0, float(k))
    whole = floor(accepted + 1e-9)
    return [1.0 if j < whole else round(accepted - whole, 12) if j == whole else 0.0 for j in range(k)]


@acceptance_models.register("synthetic")
class Synthetic(ByPosition):
    """vLLM's synthetic rejection sampler."""

    Params = SyntheticParams
    params: SyntheticParams

    def __init__(self, params: SyntheticParams, seed: int) -> None:
        super().__init__(params, seed)
        self._chances = [*acceptance_rates(params.length, floor(params.length)), 0.0]

    def conditional(self, request: Request) -> Sequence[float]:
        return self._chances

    def rates(self, k: int) -> list[float]:
        return running_product(self._chances, k)
