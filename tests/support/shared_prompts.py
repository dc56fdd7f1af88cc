"""Prompts of groups with a common head, asked for again and again: the workload of published router benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servesim.checking.world import toy_trace
from servesim.workload.trace import Trace

IDLE_S = 400.0
"""Between two stages: longer than any queue of the stage before lasts."""


def ladder(
    stages: Sequence[tuple[float, float]],
    *,
    groups: int,
    each: int,
    head: int,
    tail: int,
    output: int,
    seed: int = 0,
) -> tuple[Trace, NDArray[np.int64]]:
    """Poisson arrivals of (rate, seconds) stages, and the stage of each request.

    `groups` of `each` prompts have a head of `head` tokens in common and a tail of their own; all are asked for in one
    shuffled order, over and over."""
    draws = np.random.default_rng(seed)
    order = draws.permutation(groups * each)
    arrivals: list[int] = []
    of_stage: list[int] = []
    now = 0.0
    for stage, (rate, seconds) in enumerate(stages):
        count = round(rate * seconds)
        times = now + np.cumsum(draws.exponential(1 / rate, count))
        arrivals += (times * 1e9).astype(np.int64).tolist()
        of_stage += [stage] * count
        now = float(times[-1]) + IDLE_S
    return _prompts(arrivals, order, each, head, tail, output), np.array(of_stage)


def at_once(*, groups: int, each: int, head: int, tail: int, output: int, seed: int = 0) -> Trace:
    """All prompts of all groups in shuffled order, at one instant."""
    order = np.random.default_rng(seed).permutation(groups * each)
    return _prompts([0] * len(order), order, each, head, tail, output)


def _prompts(arrivals: list[int], order: NDArray[np.int64], each: int, head: int, tail: int, output: int) -> Trace:
    asked = [int(order[i % len(order)]) for i in range(len(arrivals))]
    runs = [[(1 + prompt // each, head), (1_000_000 + prompt, tail)] for prompt in asked]
    return toy_trace(arrivals, [head + tail] * len(asked), [output] * len(asked), runs=runs)
