"""llm-d's routing by predicted latency: the replica where a request would fare best, or just well enough.

Source: llm-d/llm-d-router at 4893230f, pkg/epp: the producer predictedlatency, the scorer latency and the filters
sloheadroomtier and prefixcacheaffinity, with the profiles of llm-d's guide predicted-latency-routing. For each replica,
TTFT and TPOT are predicted (`_latency`); headroom is the limit minus the prediction. Replicas with at least 0.8 of the
prompt in their cache are preferred, unless their best TTFT is 5 s worse. Without limits, which count as 0 there, every
headroom is negative: idle replicas come first, then the smallest deficit. With limits, replicas that meet both come
first (but once in a hundred choices the others), those closest to their limits before the rest, so that others stay
free for requests with more to do. A replica is drawn with its score as weight. Prefixes are approximate, as in `llm-d`,
whose scorers may be added.

Not modeled: limits by request (headers there), admission (latency-slo-admitter), sidecars that answer late or not at
all, two models by whether requests wait, and TPOT samples by metrics at the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, ReplicaView, routers
from servesim.policies.routing._latency import Learned, Oracle, Seen
from servesim.policies.routing._llm_d import Floats
from servesim.policies.routing.llm_d import ApproximateParams, LlmD

SCORERS = tuple(name for name in ApproximateParams.__dataclass_fields__ if name.endswith("_weight"))
"""Weights of the other scorers."""
EPSILON = 1e-12
"""Range of headroom, in seconds, below which all are equal (1e-9 ms there)."""


@dataclass(frozen=True)
class PredictedParams(ApproximateParams):
    """Settings of the predictor, the filters and the scorer, with the values from llm-d's guide."""

    prefix_weight: float = 0
    queue_weight: float = 0
    kv_utilization_weight: float = 0
    latency_weight: float = 1
    """Weight of the latency scorer."""
    predictor: Literal["learned", "oracle"] = "learned"
    """Source of predictions: a regression trained by finished requests, or the scenario's cost model."""
    ttft_slo_ms: float = 0
    """Limit on TTFT; 0: none, so that the least predicted latency is preferred."""
    tpot_slo_ms: float = 0
    """Limit on TPOT; 0: none."""
    ttft_weight: float = 0.8
    """Share of TTFT in the score."""
    tpot_weight: float = 0.2
    """Share of TPOT in the score."""
    headroom_selection_strategy: Literal["least", "most"] = "least"
    """Preference among replicas that meet the limits: the least headroom (best fit) or the most."""
    affinity_threshold: float = 0.8
    """Known share of the prompt from which a replica is preferred; 0: never."""
    strict_affinity_threshold: float = 0.99
    """The same before replicas are told apart by limits; used only if there is a limit."""
    max_ttft_penalty_ms: float = 5000
    """Difference in TTFT above which such replicas are not preferred; 0: they always are."""
    epsilon_explore_neg: float = 0.01
    """Share of choices among the replicas that miss a limit although others meet both."""
    picker: Literal["weighted-random", "max-score"] = "weighted-random"
    """Choice by score: drawn with the scores as weights, or the highest."""
    retrain_s: float = 1.0
    """Seconds between two trainings."""
    min_samples: int = 100
    """Number of samples with which training begins."""
    bucket_size: int = 500
    """Number of the latest samples that are kept of each stratum."""
    margin: float = 1.28
    """Standard deviations of the error added to a prediction: 1.28 for the 90th percentile."""
    ridge: float = 1.0
    """Penalty on the squares of the coefficients, with features scaled to a variance of 1."""

    def __post_init__(self) -> None:
        check_least(self, 0, *(n for n in self.__dataclass_fields__ if not isinstance(getattr(self, n), str)))
        check_least(self, 1, "block_size", "lru_blocks", "longest_prefix", "min_samples", "bucket_size")
        check_most(self, 1, "affinity_filter", "affinity_threshold", "strict_affinity_threshold", "epsilon_explore_neg")
        if self.predictor == "learned" and (self.retrain_s <= 0 or self.ridge <= 0):
            raise ValueError("retrain_s and ridge must be more than 0")


class Expected(NamedTuple):
    """Prediction for one replica, in seconds."""

    seen: Seen
    ttft: float
    ttft_headroom: float
    tpot_headroom: float


@dataclass
class Sent:
    """A request in flight."""

    seen: Seen
    backlog: int
    """Prompt tokens booked until the first token."""
    sent_ns: int
    first_ns: int = -1


@routers.register("predicted-latency")
class PredictedLatency(LlmD):
    """Router that predicts TTFT and TPOT of a request at each replica and prefers those with headroom to its limits."""

    searched = False
    Params = PredictedParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.predictor = Oracle(params) if params.predictor == "oracle" else Learned(params)
        self.backlog = [0] * num_replicas
        """Prompt tokens that each replica has still to compute."""
        self.num_prompts = [0] * num_replicas
        """Requests that have no token yet, by replica."""
        self._scored = any(getattr(params, name) for name in SCORERS)
        self._sent: dict[Request, Sent] = {}
        self._expected: dict[int, Expected] = {}
        self._decided: Request | None = None

    def expected(self, request: Request, views: Sequence[ReplicaView], shares: Floats) -> dict[int, Expected]:
        """Return what a request would get at each replica that may be chosen."""
        params, found, known = self.params, {}, shares.tolist()
        self.predictor.at(self.clock())
        for i in self._kept(views, shares):
            view = views[i]
            seen = Seen(
                request.prompt_len, known[i], view.kv_usage, view.num_waiting, self.load[i], self.tokens[i],
                self.backlog[i], self.num_prompts[i],
            )  # fmt: skip
            ttft, tpot = self.predictor.predict(seen, view)
            found[i] = Expected(
                seen,
                ttft,
                0.0 if self.role == "decode" else params.ttft_slo_ms / 1e3 - ttft,
                0.0 if self.role == "prefill" else params.tpot_slo_ms / 1e3 - tpot,
            )
        return found

    def scores(self, request: Request, views: Sequence[ReplicaView], shares: Floats) -> dict[int, float]:
        self._decided, self._expected = request, self.expected(request, views, shares)
        params, kept = self.params, self._expected
        if params.ttft_slo_ms or params.tpot_slo_ms:
            kept = self._tier(self._sticky(kept, params.strict_affinity_threshold))
        kept = self._sticky(kept, params.affinity_threshold)
        totals = super().scores(request, views, shares) if self._scored else dict.fromkeys(kept, 0.0)
        latency = latency_scores(kept, params)
        return {i: totals[i] + params.latency_weight * min(latency[i], 1.0) for i in kept}

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        if self.params.picker == "max-score":
            return super().route(request, views)
        shares = self.prefix_shares(request)
        self._hit = bool(shares.any())
        totals = self.scores(request, views, shares)
        whole = sum(totals.values())
        if len(totals) == 1 or not whole:
            return self.pick(list(totals))
        left = self.uniform() * whole
        for i, score in totals.items():
            left -= score
            if left < 0:
                return i
        return next(reversed(totals))

    def _sticky(self, kept: dict[int, Expected], threshold: float) -> dict[int, Expected]:
        """Return the replicas that have most of the prompt, or all if there are none or they are much slower."""
        if not threshold:
            return kept
        sticky = {i: each for i, each in kept.items() if each.seen.share >= threshold}
        others = [each.ttft for i, each in kept.items() if i not in sticky]
        if not sticky or not others:
            return kept
        penalty, most = min(each.ttft for each in sticky.values()) - min(others), self.params.max_ttft_penalty_ms
        return kept if most and penalty * 1e3 > most else sticky

    def _tier(self, kept: dict[int, Expected]) -> dict[int, Expected]:
        """Return the replicas that meet the limits, or seldom the others, or all if all are alike."""
        good = {i: each for i, each in kept.items() if each.ttft_headroom >= 0 and each.tpot_headroom >= 0}
        if not good or len(good) == len(kept):
            return kept
        if self.uniform() < self.params.epsilon_explore_neg:
            return {i: each for i, each in kept.items() if i not in good}
        return good

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        if request is not self._decided or replica not in self._expected:
            return  # one more sample of a request, which is not decided by itself
        seen = self._expected[replica].seen
        backlog = max(round(seen.prompt_len * (1 - seen.share)), 1) if self.role != "decode" else 0
        self._sent[request] = Sent(seen, backlog, self.clock())
        self.backlog[replica] += backlog
        self.num_prompts[replica] += 1

    def on_prefill_done(self, request: Request, replica: int) -> None:
        sent = self._sent.get(request)
        if sent is not None and sent.first_ns < 0:
            sent.first_ns = self.clock()
            self._computed(sent, replica)
            self.predictor.first_token(sent.seen, (sent.first_ns - sent.sent_ns) / 1e9)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        super().on_finish(request, replica, status)
        sent = self._sent.pop(request, None)
        if sent is None:
            return
        if sent.first_ns < 0:
            self._computed(sent, replica)
        elif status == "finished":
            output = request.num_tokens - request.prompt_len
            self.predictor.finished(sent.seen, output, (self.clock() - sent.first_ns) / 1e9)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        while len(self.backlog) <= replica:
            self.backlog.append(0)
            self.num_prompts.append(0)

    def _computed(self, sent: Sent, replica: int) -> None:
        self.backlog[replica] -= sent.backlog
        self.num_prompts[replica] -= 1


def latency_scores(kept: dict[int, Expected], params: PredictedParams) -> dict[int, float]:
    """Return a score for each replica: those that meet the limits; otherwise idle ones; otherwise those that miss only
    TPOT, only TTFT, or both. All others get 0."""
    scores = dict.fromkeys(kept, 0.0)
    good = {i: each for i, each in kept.items() if each.ttft_headroom >= 0 and each.tpot_headroom >= 0}
    best = good or {i: each for i, each in kept.items() if not each.seen.num_requests}
    most = bool(good) and params.headroom_selection_strategy == "most"
    for misses in ((False, True), (True, False), (True, True)):
        if not best:
            missed = {i: (each.ttft_headroom < 0, each.tpot_headroom < 0) for i, each in kept.items()}
            best = {i: kept[i] for i, found in missed.items() if found == misses}
    ttft = _relative([abs(each.ttft_headroom) for each in best.values()])
    tpot = _relative([abs(each.tpot_headroom) for each in best.values()])
    whole = params.ttft_weight + params.tpot_weight
    share = params.ttft_weight / whole if whole else 1.0
    if ttft is None or tpot is None:
        share = 1.0 if tpot is None and ttft is not None else 0.0 if ttft is None and tpot is not None else share
    halves = [0.5] * len(best)
    for i, of_ttft, of_tpot in zip(best, ttft or halves, tpot or halves, strict=True):
        combined = share * of_ttft + (1 - share) * of_tpot
        scores[i] = (int((combined if most else 1 - combined) * 100) + 1) / 100
    return scores


def _relative(rooms: list[float]) -> list[float] | None:
    """Return the place of each number between the least (0) and the most (1), or None if all are equal."""
    low, high = min(rooms), max(rooms)
    return [(room - low) / (high - low) for room in rooms] if high - low > EPSILON else None
