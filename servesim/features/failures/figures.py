"""Figures of the summary's `upgrades`: what rolling upgrades cost the requests that arrived meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.figures import Figure, Group, Rows, Summary
from servesim.engine.fleet import Fleet
from servesim.features.failures.upgrade import Rollout
from servesim.metrics.requests import MS, SECOND, RequestColumns, per
from servesim.metrics.words import number, percent
from servesim.schemas import COUNT, NUMBER


class Upgraded(NamedTuple):
    """A run with upgrades."""

    replaced: int
    """Replicas that are gone and whose successor is ready."""
    lost: int
    periods: list[tuple[int, int]]
    """Beginning and end of each upgrade."""
    requests: RequestColumns

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], fleet: Fleet, requests: RequestColumns, now_ns: int) -> Upgraded:
        """Return the input of the figures. An upgrade that has come to nothing further lasts until the end of the
        run."""
        at = {(index, state): ns for ns, index, state in fleet.history}
        periods = []
        for rollout in rollouts:
            ends = [at.get((index, "gone"), now_ns) for index in rollout.replaced]
            ends += [at.get((index, "ready"), at.get((index, "gone"), now_ns)) for index in rollout.successors]
            periods.append((rollout.begun_ns, max(ends, default=rollout.begun_ns)))
        replaced = sum((index, "gone") in at for rollout in rollouts for index in rollout.replaced)
        return cls(replaced, sum(rollout.lost for rollout in rollouts), periods, requests)

    @property
    def seconds(self) -> float:
        """Duration of the upgrades, one after the other."""
        return sum(end - begin for begin, end in self.periods) / SECOND

    def ttft_p99_ms(self, during: bool) -> float | None:
        """Return the TTFT of completed requests that arrived during the upgrades, or of the others."""
        ttft = self.requests.ttft[self._mask(during)]
        return float(np.percentile(ttft, 99)) / MS if len(ttft) else None

    def hit_rate(self, during: bool) -> float | None:
        """Return the share of their prompt tokens that was found in a prefix cache."""
        mask = self._mask(during)
        hits, prompts = (self.requests.completed(name)[mask].sum() for name in ("hit_tokens", "prompt_len"))
        return per(float(hits), float(prompts))

    def _mask(self, during: bool) -> NDArray[np.bool_]:
        arrival = self.requests.completed("arrival_ns")
        inside = np.zeros(len(arrival), dtype=bool)
        for begin, end in self.periods:
            inside |= (arrival >= begin) & (arrival < end)
        return inside if during else ~inside


def _rows(summary: Summary) -> Rows:
    found = summary["upgrades"]
    during = (
        f"TTFT p99 {number(found['ttft_p99_ms'])} ms (otherwise {number(found['other_ttft_p99_ms'])} ms), "
        f"hit rate {percent(found['hit_rate'])} ({percent(found['other_hit_rate'])})"
    )
    came = f"{found['replaced']} replicas in {number(found['seconds'])} s, {found['lost']} requests lost"
    return [("rolling upgrades", came), ("during upgrades", during)]


UPGRADES = Group(
    "upgrades",
    "rolling upgrades",
    (
        Figure("replaced", "number of replicas that were replaced", lambda u: u.replaced, schema=COUNT),
        Figure("seconds", "time from the beginning of each upgrade until its last old replica is gone and its last new "
               "one is ready, in total", lambda u: u.seconds, "s", NUMBER),
        Figure("lost", "number of times that a request was lost because the grace period of its replica had ended; "
               "those before their first token are sent again", lambda u: u.lost, schema=COUNT),
        Figure("ttft_p99_ms", "99th percentile of the TTFT of completed requests that arrived during an upgrade",
               lambda u: u.ttft_p99_ms(True), "ms"),
        Figure("other_ttft_p99_ms", "the same for all other completed requests", lambda u: u.ttft_p99_ms(False), "ms"),
        Figure("hit_rate", "share of the prompt tokens of completed requests that arrived during an upgrade which were "
               "found in the prefix cache", lambda u: u.hit_rate(True), "share"),
        Figure("other_hit_rate", "the same for all other completed requests", lambda u: u.hit_rate(False), "share"),
    ),
    doc="Present if replicas were replaced by an `upgrade` of `cluster.failures`.",
    rows=_rows,
)  # fmt: skip
