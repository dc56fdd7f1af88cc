"""Contract of acceptance models, which determine which drafts are accepted. They are part of the workload, not of any
policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from servesim.contracts.params import NoParams
from servesim.contracts.request import Request
from servesim.plugins.registry import Registry


class AcceptanceModel(ABC):
    """The ground truth that both sides of a comparison share. The result depends only on (row, position), so two
    policies that draft for the same output token get the same result, regardless of what they did before.

    A position is an output token's index within its request, from 0.
    """

    name: ClassVar[str] = "?"
    Params: ClassVar[type[Any]] = NoParams

    def __init__(self, params: Any, seed: int) -> None:
        self.params = params
        self.seed = seed

    @abstractmethod
    def accepted(self, request: Request, position: int, drafts: int, width: int = 1) -> int:
        """Return how many of the drafts for output tokens `position` to `position + drafts - 1` are accepted: those
        before the first wrong one. `width`: candidates at each position (trees)."""

    @abstractmethod
    def rates(self, k: int) -> list[float]:
        """Return the mean probability that draft positions 1 to k are accepted (marginal: all earlier positions are
        accepted too). Acceptance length is 1 + their sum."""

    def walk(self, request: Request, position: int, until: int, drafts: int, width: int = 1) -> list[int]:
        """Return how many tokens each successive step delivers from `position` on (those of its `drafts` that are
        accepted, plus the target's own token), until `until` is reached or passed. Default: step by step."""
        gains = []
        while position < until:
            gained = 1 + self.accepted(request, position, drafts, width)
            gains.append(gained)
            position += gained
        return gains

    def available(self, request: Request, position: int, k: int) -> int:
        """Return how many drafts can be proposed at a position, at most k. Default: k; n-gram lookup may find none."""
        return k


acceptance_models: Registry[AcceptanceModel] = Registry("acceptance", AcceptanceModel, "servesim.traces.acceptance")
