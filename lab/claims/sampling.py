"""Speculative sampling on real distributions, exactly as an engine treats drafts.

A draft token x, drawn from the draft distribution q, is accepted with probability min(1, p(x) / q(x)). After a
rejection, the token is drawn from the part of p in excess of q. For any q, the output is distributed as p (Leviathan et
al., ICML 2023; Chen et al., arXiv 2302.01318). Trees try several candidates at a position, each against the remainder
of p after the previous ones (SpecTr, arXiv 2310.15141; EAGLE, arXiv 2401.15077).

Distributions are arrays of shape (vocabulary,) that sum to 1; a chain has one row per position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]


def acceptance_probability(p: Probabilities, q: Probabilities) -> float:
    """Return the probability that p accepts a draft from q: their shared mass."""
    return float(np.minimum(p, q).sum())


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """Return the normalized excess of p over q, from which a rejected draft's replacement is drawn."""
    beyond: Probabilities = np.maximum(p - q, 0.0)
    total = float(beyond.sum())
    return beyond / total if total > 0.0 else p


def verify_chain(p: Probabilities, q: Probabilities, drafts: Sequence[int], uniforms: Sequence[float]) -> list[int]:
    """Return the tokens that a verification delivers: the accepted drafts plus one more.

    `p` has a row for each of the k drafts and one for the token after them, and `q` has one row per draft. `uniforms`
    are k + 1 draws, for the k decisions and for the last token.
    """
    for j, token in enumerate(drafts):
        if uniforms[j] * q[j, token] >= p[j, token]:
            return [*drafts[:j], _draw(residual(p[j], q[j]), uniforms[-1])]
    return [*drafts, _draw(p[len(drafts)], uniforms[-1])]


def verify_siblings(
    p: Probabilities, q: Probabilities, candidates: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """Verify one level of a tree; return (delivered token, index of the accepted candidate or None). The candidates
    were drawn from q one after the other without replacement; `uniforms` has one draw per candidate and one for a
    replacement."""
    p, q = p.copy(), q.copy()
    for i, token in enumerate(candidates):
        if uniforms[i] * q[token] < p[token]:
            return token, i
        p = residual(p, q)
        q = without(q, token)
    return _draw(p, uniforms[-1]), None


def without(q: Probabilities, token: int) -> Probabilities:
    """Return q with a token excluded."""
    rest = q.copy()
    rest[token] = 0.0
    total = float(rest.sum())
    return rest / total if total > 0.0 else rest


def output_distribution(p: Probabilities, q: Probabilities) -> Probabilities:
    """Return the distribution of the first token that a chain delivers, in closed form: it is p."""
    accepted: Probabilities = np.minimum(p, q)
    return accepted + (1.0 - float(accepted.sum())) * residual(p, q)


def sibling_acceptance(p: Probabilities, q: Probabilities, width: int) -> float:
    """Return the probability that one of `width` candidates at a position is accepted, by enumerating the
    candidates."""
    if width == 0 or q.sum() <= 0.0:
        return 0.0
    accepted = np.minimum(p, q)
    chance = float(accepted.sum())
    for token in np.flatnonzero(q > accepted):
        rejected = float(q[token] - accepted[token])
        chance += rejected * sibling_acceptance(residual(p, q), without(q, int(token)), width - 1)
    return chance


def sibling_output(p: Probabilities, q: Probabilities, width: int) -> Probabilities:
    """Return the distribution of the token that a tree level with `width` candidates delivers: it is p."""
    if width == 0 or q.sum() <= 0.0:
        return p
    out = np.minimum(p, q)
    rest = residual(p, q)
    for token in np.flatnonzero(q > out):
        rejected = float(q[token] - min(p[token], q[token]))
        out = out + rejected * sibling_output(rest, without(q, int(token)), width - 1)
    return out


def acceptance_rates(p: Probabilities, q: Probabilities) -> list[float]:
    """Return the marginal acceptance at each position of a chain whose distributions do not depend on earlier tokens,
    for the `positions` acceptance model."""
    rates, whole = [], 1.0
    for target, draft in zip(p, q, strict=False):
        whole *= acceptance_probability(target, draft)
        rates.append(whole)
    return rates


def _draw(p: Probabilities, uniform: float) -> int:
    """Draw by inverse transform."""
    return int(min(np.searchsorted(np.cumsum(p), uniform * p.sum(), side="right"), len(p) - 1))
