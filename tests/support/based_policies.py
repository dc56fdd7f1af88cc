"""Policies as an author writes them on the public bases, named on the command line by this file."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.contracts import Request
from servesim.contracts.scheduler import PREDICTED
from servesim.engine.fast.kv import FastEvicting
from servesim.policies.kv.evicting import CachedBlock, Evicting
from servesim.policies.scheduling.ordered import Ordered, OrderedParams


class ShortestPrompt(Ordered):
    """Shortest prompt first, whatever the time."""

    def rank(self, request: Request, now: int) -> float:
        return request.prompt_len


@dataclass(frozen=True)
class AgingParams(OrderedParams):
    """What waiting is worth."""

    tokens_per_s: float = 10.0


class Aging(Ordered):
    """Shortest predicted answer first; whoever waits moves forward."""

    Params = AgingParams
    needs = frozenset({PREDICTED})
    dynamic = True

    def rank(self, request: Request, now: int) -> float:
        waited_s = (now - request.arrival_ns) / 1e9
        return float(request.predicted_output_len - self.params.tokens_per_s * waited_s)


class AgingPrompt(Ordered):
    """Shortest prompt first; whoever waits moves forward."""

    Params = AgingParams
    dynamic = True

    def rank(self, request: Request, now: int) -> float:
        waited_s = (now - request.arrival_ns) / 1e9
        return float(request.prompt_len - self.params.tokens_per_s * waited_s)


class Displacing(AgingPrompt):
    """The same, and a waiter takes the place of those behind it."""

    preemptive = True


class Arrival(Ordered):
    """By the time it is told, and not dynamic."""

    def rank(self, request: Request, now: int) -> float:
        assert now == request.arrival_ns
        return now


class RanklessOrder(Ordered):
    """Without the one method."""


class Lfu(Evicting):
    """Least frequently hit first, the least recently used of those."""

    def rank(self, block: CachedBlock) -> int:
        return block.hits


class FastLfu(FastEvicting):
    """The same, made fast by its base."""

    def rank(self, block: CachedBlock) -> int:
        return block.hits


class Lru(FastEvicting):
    """All blocks are worth the same."""

    def rank(self, block: CachedBlock) -> int:
        return 0


class Mru(Evicting):
    """Most recently used first."""

    def rank(self, block: CachedBlock) -> int:
        return -block.last_used


class Shallow(Evicting):
    """The ends of long prompts first, then what was used longest ago."""

    def rank(self, block: CachedBlock) -> tuple[int, int]:
        return -block.depth, block.last_used


class RanklessCache(Evicting):
    """Without the one method."""
