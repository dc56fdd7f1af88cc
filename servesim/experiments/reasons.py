"""Reasons for which requests miss a goal, in words: the limit, and the prompts or the times affected."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.goals import Goal
from servesim.experiments.run_metrics import Run
from servesim.metrics.slo import time_text
from servesim.metrics.words import amount

MOST = 0.9
"""Fraction of the requests missing a limit that a group must contain to be given as the reason."""
RARE = 0.5
"""Maximum fraction of all requests that a group may contain to count as an explanation."""


class Misses(NamedTuple):
    """Requests that miss a goal, described by the limit that most of them miss."""

    metric: str
    limit: float
    """Limit in milliseconds."""
    share: float
    """Share of all requests that miss the goal."""
    over: int | None
    """Prompt length in tokens that nearly all of these requests exceed, but at most half of all requests do. None if
    there is no such length."""
    rejected: bool
    """Whether most of these requests did not complete."""

    @property
    def which(self) -> str:
        """Description of the late requests, such as "TTFT of prompts over 6,000 tokens"."""
        if self.rejected:
            return "requests that do not complete"
        return self.metric.upper() + (f" of prompts over {self.over:,} tokens" if self.over is not None else "")

    @property
    def sentence(self) -> str:
        """Description of the failure, such as "prompts over 6,000 tokens wait longer than 1 s for their first
        token"."""
        if self.rejected:
            return "requests do not complete (longer than the server admits, or timed out)"
        over = self.over
        who = f"prompts over {over:,} tokens" if over is not None else f"{amount(100 * self.share, '%')} of requests"
        limit = time_text(self.limit)
        return {
            "ttft": f"{who} wait longer than {limit} for their first token",
            "tpot": f"tokens of {who} are more than {limit} apart",
            "e2el": f"{who} take longer than {limit}",
        }[self.metric]


def misses_of(run: Run, rows: NDArray[np.int64], goal: Goal) -> Misses | None:
    """Return the requests that miss a goal, or None if there are none or limits apply only to classes."""
    rows = goal.counted(run, rows)
    good = goal.good(run)[rows]
    if not len(rows) or good.all() or not goal.limits:
        return None
    done = run.done[rows]
    late = {name: done & ~(np.nan_to_num(run.latency_ms(name)[rows]) <= limit) for name, limit in goal.limits.items()}
    name = max(late, key=lambda metric: int(late[metric].sum()))
    missed, share = late[name], float((~good).mean())
    rejected = bool(2 * (~done).sum() > (~good).sum())
    prompt = run.columns["prompt_len"][rows]
    return Misses(name, goal.limits[name], share, None if rejected else _longer(prompt, missed), rejected)


def _longer(prompt: NDArray[np.float64], missed: NDArray[np.bool_]) -> int | None:
    """Return the prompt length, rounded down to two significant digits, that is exceeded by nearly all requests that
    miss the limit but by at most half of all requests. Return None if there is no such length."""
    if not missed.any():
        return None
    edge = float(np.quantile(prompt[missed], 1 - MOST))
    digits = 10 ** max(len(str(int(edge))) - 2, 0)
    length = int(edge) // digits * digits
    longer = prompt > length
    rare = float(longer.mean()) <= RARE and length > 0
    return length if rare and float(longer[missed].mean()) >= MOST else None


def exact_length(run: Run, misses: Misses) -> Misses:
    """Return the misses of a run on an idle server, where only the length of a request matters. If all longer prompts
    miss the limit, replace the rounded length with the length of the longest prompt that meets the limit."""
    prompt = run.columns["prompt_len"]
    late = ~(np.nan_to_num(run.latency_ms(misses.metric)) <= misses.limit)
    if misses.metric != "ttft" or misses.rejected or late.all() or not late.any():
        return misses
    longest = int(prompt[~late].max())
    return misses._replace(over=longest) if bool((prompt[late] > longest).all()) else misses
