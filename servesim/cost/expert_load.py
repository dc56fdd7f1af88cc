"""Imbalance of expert loads, and the load of the most loaded GPU: a power law, with or without balancing.

Expert loads follow a power law: the share of the i-th most loaded expert is proportional to the quantile of a density
x^-skew between 1 and 1,000, the distribution from which the routing of the measured kernels was drawn
(aiconfigurator-core 0.12.0: 1.2). No expert gets more than one copy of each token. Without balancing, experts are
placed on GPUs in an order unrelated to their loads (a keyed shuffle); EPLB replicates the most loaded experts one by
one and packs the heaviest first onto the least loaded GPU with room (the greedy rule of DeepSeek's EPLB).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servesim import draws

_RANGE = 1000.0
"""Ratio of the largest to the smallest load in the power law."""
MEASURED_SKEW = 1.2
"""Exponent of the load distribution used in the measured tables."""
MEASURED_OVER = 8
"""Maximum number of GPUs that experts were distributed over in the measurements; beyond it, the load follows from this
module's power law."""

ROUTED_SKEW = {"minimax_m2": 0.8}
"""Exponent of the loads that a model's own router makes, by the family in its config.json, where it is known to differ
from the measured tables'. A compromise, fitted to TPOT of the 200 given cells of MiniMax-M2.5 under vLLM (InferenceX:
H100, H200, B200, B300), which are 7.3 % off with the tables' exponent: FP8 on B200 is best at 0.65, and expert
parallelism on H100 at 1.0."""


def touched(count: int, per_token: int, tokens: float, skew: float) -> float:
    """Return the mean number of experts that get at least one of `tokens` tokens."""
    chosen = np.minimum(loads(count, per_token, skew) * per_token, 1.0)
    return float((1.0 - (1.0 - chosen) ** tokens).sum())


def loads(count: int, per_token: int, skew: float) -> NDArray[np.float64]:
    """Return the share of all routed token copies that each of `count` experts gets, largest first; the shares sum to
    1."""
    at = (np.arange(count) + 0.5) / count
    if abs(skew - 1.0) < 1e-9:
        values = _RANGE**at
    else:
        power = 1.0 - skew
        values = ((_RANGE**power - 1.0) * at + 1.0) ** (1.0 / power)
    values = values if skew else np.ones(count)
    shares: NDArray[np.float64] = np.sort(values / values.sum())[::-1]
    most = 1.0 / per_token
    for _ in range(count):  # the excess of a capped expert goes to others
        over = shares > most + 1e-12
        if not over.any():
            break
        rest = shares[~over].sum()
        shares = np.where(over, most, shares * ((1.0 - most * over.sum()) / rest if rest else 1.0))
    return shares


def most_loaded(
    count: int, per_token: int, gpus: int, skew: float, redundant: int = 0, balanced: bool = False
) -> float:
    """Return the load of the most loaded of `gpus` GPUs relative to the mean load (at least 1)."""
    shares = loads(count, per_token, skew)
    if not balanced:
        order = np.argsort(draws.uniform(0, "place of experts", np.arange(count)), kind="stable")
        return float(max(part.sum() for part in np.array_split(shares[order], gpus)) * gpus)
    copies = [1] * count
    for _ in range(redundant):
        copies[max(range(count), key=lambda i: (shares[i] / copies[i], -i))] += 1
    pieces = sorted((shares[i] / n for i, n in enumerate(copies) for _ in range(n)), reverse=True)
    room = -(-len(pieces) // gpus)
    held, many = [0.0] * gpus, [0] * gpus
    for piece in pieces:
        g = min((g for g in range(gpus) if many[g] < room), key=lambda g: (held[g], g))
        held[g], many[g] = held[g] + piece, many[g] + 1
    return max(held) * gpus
