"""Steps that take longer than larger ones because the kernel tables say so: a library's choice of kernel by size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from servesim.contracts.cost import Batch
from servesim.cost.curves import total
from servesim.cost.model import TableCostModel
from servesim.cost.stage import Stage

NOTED = 1.1
"""Ratio of the time of a step to that of a larger one from which it is reported."""
_NEAR = 1.05
"""Ratio to the least time of any larger step up to which a step is named as the faster one; the smallest counts."""
_NAMED = 3
"""Number of operators that a line names."""


class Fall(NamedTuple):
    """A step that takes longer than a larger one, in its operators other than attention and sampling."""

    ratio: float
    tokens: int
    larger: int
    operators: list[str]
    """The operators that are faster in the larger step, by time gained."""


def worst_fall(stage: Stage, sizes: Iterable[int]) -> Fall | None:
    """Return the largest fall (at least `NOTED`) of a stage's time from a step of one of `sizes` tokens to any larger
    measured one, or None if there is none."""
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
    """Yield a line on each stage in which steps of some of `sizes` tokens (of each of `ranks` data-parallel ranks) take
    much longer than larger ones."""
    tokens = [cost._tokens(Batch(size)) for size in sizes]
    stages = [(stage, tokens) for stage in cost._stages]
    stages += [(stage, [ranks * n for n in tokens]) for stage in dict.fromkeys(cost._mixture or ())]
    for stage, passed in stages:
        fall = worst_fall(stage, passed)
        if fall is not None:
            yield (
                f"{', '.join(fall.operators[:_NAMED])}: by the tables a step over {_tokens(fall.tokens)} takes "
                f"{fall.ratio:.1f} times as long as one over {_tokens(fall.larger)} (attention and sampling aside), as "
                "libraries choose kernels by size"
            )


def _tokens(count: int) -> str:
    return f"{count:,} token" + "s" * (count > 1)
