"""Deciders of llm-d's disagg-profile-handler (llm-d/llm-d-router, pkg/epp/framework/plugins/scheduling/profilehandler/
disagg, 2026): the decode replica is chosen first, and its decider says whether a prefill replica is chosen, too."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts.decider import Decider, Outlook, deciders
from servesim.contracts.params import check_least
from servesim.contracts.request import Request


@deciders.register("always")
class Always(Decider):
    """Decider that has every prompt computed apart, by a request whose decode replica is chosen first
    (always-disagg-pd-decider)."""

    def apart(self, request: Request, outlook: Outlook) -> bool:
        return True


@dataclass(frozen=True)
class LlmDParams:
    """Settings of prefix-based-pd-decider."""

    non_cached_tokens: int = 0
    """Number of uncached tokens from which on a prompt is computed apart (nonCachedTokens); 0: none is (in the first
    versions, all were)."""

    def __post_init__(self) -> None:
        check_least(self, 0, "non_cached_tokens")


@deciders.register("llm-d")
class LlmD(Decider):
    """Decider that has prompts of at least `non_cached_tokens` uncached tokens computed apart
    (prefix-based-pd-decider)."""

    Params = LlmDParams

    def apart(self, request: Request, outlook: Outlook) -> bool:
        least: int = self.params.non_cached_tokens
        return 0 < least <= outlook.uncached
