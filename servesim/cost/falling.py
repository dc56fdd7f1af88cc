"""Steps that take longer than larger ones according to the kernel tables, because a library chooses its kernels by
size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from servesim.contracts.cost import Batch
from servesim.cost.curves import total
from servesim.cost.model import TableCostModel
from servesim.cost.stage import Stage

NOTED = 1.1
"""Minimum ratio of a step's time to that of a larger step at which it is reported."""
_NEAR = 1.05
"""Maximum time of the larger step named in a report, relative to the shortest time of any larger step; the smallest
step within this ratio is named."""
_NAMED = 3
"""Maximum number of operators named in a line."""


class Fall(NamedTuple):
    """A step that takes longer than a larger one, not counting attention and sampling."""

    ratio: float
    tokens: int
    larger: int
    operators: list[str]
    """Operators that are faster in the larger step, largest gain first."""


def worst_fall(stage: Stage, sizes: Iterable[int]) -> Fall | None:
    """Return the largest ratio (at least `NOTED`) of a stage's time for a step of one of `sizes` tokens to that of a
    larger measured step, or None if there is none."""
    operators, worst, most = stage._per_token, None, NOTED
    curve = total([operator.curve for operator in operators])
    for tokens in sorted({*sizes}):
        ns, later = curve.at(tokens), [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if x > tokens]
        least = min((y for _, y in later), default=ns)
        if ns < most * least:
            continue
        most = ns / least
        larger, its = next((x, y) for x, y in later if y <= _NEAR * least)
        gains = sorted((o.curve.at(larger) - o.curve.at(tokens), o.name) for o in operators)
        worst = Fall(ns / its, tokens, int(larger), list(dict.fromkeys(name for gain, name in gains if gain < 0.0)))
    return worst


def falling(cost: TableCostModel, sizes: Iterable[int], ranks: int = 1) -> Iterator[str]:
    """Yield a line for each stage in which steps of some of `sizes` tokens (on each of `ranks` data-parallel ranks)
    take much longer than larger ones."""
    tokens = [cost._tokens(Batch(size)) for size in sizes]
    stages = [(stage, tokens) for stage in cost._stages]
    joint = dict.fromkeys(stage for mixture in cost._mixtures for stage in mixture)
    stages += [(stage, [ranks * n for n in tokens]) for stage in joint]
    for stage, passed in stages:
        fall = worst_fall(stage, passed)
        if fall is not None:
            yield (
                f"{', '.join(fall.operators[:_NAMED])}: according to the tables, a step with {_tokens(fall.tokens)} "
                f"takes {fall.ratio:.1f} times as long as one with {_tokens(fall.larger)} (not counting attention and "
                "sampling), because libraries choose kernels by size"
            )


def _tokens(count: int) -> str:
    return f"{count:,} token" + "s" * (count > 1)
