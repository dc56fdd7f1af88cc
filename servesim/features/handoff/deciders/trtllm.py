"""Conditional disaggregation of TensorRT-LLM (tensorrt_llm/serve/openai_disagg_service.py, 1.2): the generation server
is chosen first, by a router that knows caches."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.decider import Decider, Outlook, deciders
from servesim.contracts.params import check_least
from servesim.contracts.request import Request


@dataclass(frozen=True)
class TrtllmParams:
    """Settings of conditional_disagg_config, with their defaults."""

    max_local_prefill_length: int = 0
    """Largest number of uncached tokens that a generation server computes itself."""

    def __post_init__(self) -> None:
        check_least(self, 0, "max_local_prefill_length")


@deciders.register("trtllm")
class Trtllm(Decider):
    """Decider that has a prompt computed apart if none of it is cached, or if much of it is not."""

    Params = TrtllmParams
    needs_cached = True  # it asserts a KvCacheAwareRouter

    def apart(self, request: Request, outlook: Outlook) -> bool:
        uncached = outlook.uncached
        return uncached >= request.num_tokens or uncached > self.params.max_local_prefill_length
