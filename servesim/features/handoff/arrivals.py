"""KV that comes from prefill replicas, as seen by a decode replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.connector import LATER, Connector
from servesim.contracts.request import Request

if TYPE_CHECKING:
    from servesim.features.handoff.part import Handoff


class Arrivals(Connector):
    """The connector of a decode replica."""

    def __init__(self, handoff: Handoff) -> None:
        self._handoff, self.brings_token = handoff, handoff.brings_token

    def available(self, request: Request, num_tokens: int) -> int:
        return request.num_tokens - num_tokens if self._handoff.available(request) else 0

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        self._handoff.reserve(request, start, stop)
        return LATER

    def passed_over(self, request: Request) -> None:
        self._handoff.passed_over(request)
