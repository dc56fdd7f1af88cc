"""Shortest job first: waiting requests in order of predicted output length, without preemption of running ones."""

from __future__ import annotations

from servesim.contracts import Request
from servesim.contracts.scheduler import PREDICTED, schedulers

from .ordered import Ordered


@schedulers.register("sjf")
class Sjf(Ordered):
    """Scheduler that serves the shortest predicted output first."""

    needs = frozenset({PREDICTED})
    paper = "classic policy; for LLM serving with a length predictor, Qiu et al., SSJF, arXiv 2404.08509"

    def rank(self, request: Request, now: int) -> float:
        return request.predicted_output_len
