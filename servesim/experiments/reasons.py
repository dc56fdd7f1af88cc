"""Why requests miss a goal, in words: which limit, and of which prompts or when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.goals import Goal
from servesim.experiments.run_metrics import Run
from servesim.metrics.slo import time_text

MOST = 0.9
"""Share of the requests that miss a limit which a group must hold to be named in their stead."""
RARE = 0.5
"""Share of all requests up to which a group explains anything: most of all requests are no group."""


class Misses(NamedTuple):
    """The requests that miss a goal, by the limit that most of them miss."""

    metric: str
    limit: float
    """Milliseconds."""
    share: float
    """Share of all requests."""
    over: int | None
    """Prompts longer than this many tokens are nearly all of them, and rare among all; None: no such length."""
    rejected: bool
    """Most of them did not complete."""

    @property
    def which(self) -> str:
        """The late requests in words, such as "TTFT of prompts over 6,000 tokens"."""
        if self.rejected:
            return "requests that do not complete"
        return self.metric.upper() + (f" of prompts over {self.over:,} tokens" if self.over is not None else "")

    @property
    def sentence(self) -> str:
        """The failure in words, such as "prompts over 6,000 tokens take longer than 1 s to their first token"."""
        if self.rejected:
            return "requests do not complete (longer than the server admits, or timed out)"
        who = f"prompts over {self.over:,} tokens" if self.over is not None else f"{100 * self.share:.2g} % of requests"
        limit = time_text(self.limit)
        return {
            "ttft": f"{who} take longer than {limit} to their first token",
            "tpot": f"tokens of {who} are over {limit} apart",
            "e2el": f"{who} take longer than {limit}",
        }[self.metric]


def misses_of(run: Run, rows: NDArray[np.int64], goal: Goal) -> Misses | None:
    """Return which requests miss a goal; None where none of them does, or classes have limits of their own."""
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
    """Return the length, of two digits, above which nearly all prompts lie that missed, and few of all."""
    if not missed.any():
        return None
    edge = float(np.quantile(prompt[missed], 1 - MOST))
    digits = 10 ** max(len(str(int(edge))) - 2, 0)
    length = int(edge) // digits * digits
    rare = float((prompt > length).mean()) <= RARE and length > 0
    return length if rare else None


def exact_length(run: Run, misses: Misses) -> Misses:
    """Return the misses of a run on an idle server, where length alone decides: with the longest prompt that is within
    the limit in place of a rounded length, if all longer ones miss it."""
    prompt = run.columns["prompt_len"]
    late = ~(np.nan_to_num(run.latency_ms(misses.metric)) <= misses.limit)
    if misses.metric != "ttft" or misses.rejected or late.all() or not late.any():
        return misses
    longest = int(prompt[~late].max())
    return misses._replace(over=longest) if bool((prompt[late] > longest).all()) else misses
