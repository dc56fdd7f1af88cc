"""Speculative sampling on real distributions: the engine's treatment of drafts, exactly.

A draft token x, drawn from the draft distribution q, is accepted with min(1, p(x) / q(x)); after a rejection the token
is drawn from what p has beyond q. Whatever q is, the output is distributed as p (Leviathan et al., ICML 2023; Chen et
al., arXiv 2302.01318). Trees try several candidates at a position, each against what the ones before left of p (SpecTr,
arXiv 2310.15141; EAGLE, arXiv 2401.15077).

Distributions are arrays of shape (vocabulary,) that sum to 1; a chain has one row per position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]


def acceptance_probability(p: Probabilities, q: Probabilities) -> float:
    """Return the chance that a draft from q is accepted by p: the mass they share."""
    return float(np.minimum(p, q).sum())


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """Return what p has beyond q, normalised: where a rejected draft's replacement is drawn from."""
    beyond: Probabilities = np.maximum(p - q, 0.0)
    total = float(beyond.sum())
    return beyond / total if total > 0.0 else p


def verify_chain(p: Probabilities, q: Probabilities, drafts: Sequence[int], uniforms: Sequence[float]) -> list[int]:
    """Tokens a verification delivers: the drafts accepted, and one more.

    `p` has a row for each of the k drafts and one for the token after them, `q` one row per draft; `uniforms` are k + 1
    draws, for the k decisions and for the last token.
    """
    for j, token in enumerate(drafts):
        if uniforms[j] * q[j, token] >= p[j, token]:
            return [*drafts[:j], _draw(residual(p[j], q[j]), uniforms[-1])]
    return [*drafts, _draw(p[len(drafts)], uniforms[-1])]


def verify_siblings(
    p: Probabilities, q: Probabilities, candidates: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """Verify one level of a tree; return (token delivered, index of the candidate accepted or None). The candidates
    were drawn from q one after the other without replacement; `uniforms`: one per candidate and one for a replacement.
    """
    p, q = p.copy(), q.copy()
    for i, token in enumerate(candidates):
        if uniforms[i] * q[token] < p[token]:
            return token, i
        p = residual(p, q)
        q = without(q, token)
    return _draw(p, uniforms[-1]), None


def without(q: Probabilities, token: int) -> Probabilities:
    """Return q once a token is excluded."""
    rest = q.copy()
    rest[token] = 0.0
    total = float(rest.sum())
    return rest / total if total > 0.0 else rest


def output_distribution(p: Probabilities, q: Probabilities) -> Probabilities:
    """Return the distribution of the first token a chain delivers, in closed form: it is p."""
    accepted: Probabilities = np.minimum(p, q)
    return accepted + (1.0 - float(accepted.sum())) * residual(p, q)


def sibling_acceptance(p: Probabilities, q: Probabilities, width: int) -> float:
    """Return the chance that one of `width` candidates at a position is accepted, by enumeration of what they can
    be."""
    if width == 0 or q.sum() <= 0.0:
        return 0.0
    accepted = np.minimum(p, q)
    chance = float(accepted.sum())
    for token in np.flatnonzero(q > accepted):
        rejected = float(q[token] - accepted[token])
        chance += rejected * sibling_acceptance(residual(p, q), without(q, int(token)), width - 1)
    return chance


def sibling_output(p: Probabilities, q: Probabilities, width: int) -> Probabilities:
    """Return the distribution of the token a level of a tree with `width` candidates delivers: it is p."""
    if width == 0 or q.sum() <= 0.0:
        return p
    out = np.minimum(p, q)
    rest = residual(p, q)
    for token in np.flatnonzero(q > out):
        rejected = float(q[token] - min(p[token], q[token]))
        out = out + rejected * sibling_output(rest, without(q, int(token)), width - 1)
    return out


def acceptance_rates(p: Probabilities, q: Probabilities) -> list[float]:
    """Return the marginal acceptance of each position of a chain with distributions that do not depend on the tokens
    before: for the `positions` acceptance model."""
    rates, whole = [], 1.0
    for target, draft in zip(p, q, strict=False):
        whole *= acceptance_probability(target, draft)
        rates.append(whole)
    return rates


def _draw(p: Probabilities, uniform: float) -> int:
    """Draw by inverse transform."""
    return int(min(np.searchsorted(np.cumsum(p), uniform * p.sum(), side="right"), len(p) - 1))
