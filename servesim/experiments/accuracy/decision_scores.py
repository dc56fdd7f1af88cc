"""Shares of correct decisions, compared with those of a naive rule and with the ceiling set by measurement noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from servesim import draws
from servesim.experiments.accuracy.decisions import Choice, Option, Pair, choices, merged, pairs, same_places
from servesim.experiments.accuracy.scores import Estimate, estimate, mean, numbered, resampled
from servesim.experiments.statistics import Floats

REPEATS_NEEDED = 10
"""Minimum number of repeats required to state a ceiling."""
NOISES = 100
"""Number of draws of repeat noise used for the ceiling of choices."""


def repeats(options: Sequence[Option], of: Callable[[Option], tuple[float, ...]]) -> Floats:
    """Return the log ratios (n, figures) between two measurements of the same place, for all pairs whose version is
    stated. `of` returns the figures of a measurement."""
    found = [
        np.log(np.array(of(a)) / np.array(of(b)))
        for same in same_places(options).values()
        for a, b in combinations(same, 2)
        if a.product[1]
    ]
    return np.array(found, dtype=np.float64).reshape(len(found), len(of(options[0])) if options else 1)


def pair_ceiling(found: Sequence[Pair], noise: Floats) -> float | None:
    """Return the mean probability that a pair's measurements are in the true order. Noise reverses a difference d if
    repeats differ by more than d in the other direction. `noise` holds the log ratios (n, 1) of the repeats'
    outputs."""
    if len(noise) < REPEATS_NEEDED or not found:
        return None
    both = np.concatenate([noise, -noise])[:, 0]
    return float(np.mean([(both < abs(pair.measured)).mean() for pair in found]))


def choice_ceiling(found: Sequence[Choice], noise: Floats, seed: int) -> dict[str, float] | None:
    """Return the share of each outcome if choices were based on a second measurement. Each time gets the error of a
    single repeat (the difference of two repeats divided by the square root of 2), from keyed draws."""
    if len(noise) < REPEATS_NEEDED or not found:
        return None
    both = np.vstack([noise, -noise]) / np.sqrt(2.0)
    counts: Counter[str] = Counter()
    for number, choice in enumerate(found):
        u = draws.uniform(seed, f"noise of choice {number}", np.arange(NOISES)[:, None], np.arange(len(choice.options)))
        picked = np.exp(both[np.minimum((u * len(both)).astype(np.int64), len(both) - 1)])
        for factors in picked:
            times = [(o.measured[0] * f[0], o.measured[1] * f[1]) for o, f in zip(choice.options, factors, strict=True)]
            counts[choice.outcome(choice.chosen(times))] += 1
    return {name: count / (NOISES * len(found)) for name, count in sorted(counts.items())}


def share(hits: Sequence[bool], products: Sequence[object], seed: int, purpose: str) -> Estimate:
    """Return a share and its interval, resampling whole products, or an empty estimate if there are no decisions."""
    values = np.array(hits, dtype=np.float64)
    if not hits:
        return estimate(values)
    groups = numbered(products)
    times = resampled(groups, seed, purpose)
    return estimate(mean(values, times if groups.max() else times[:1]))


def decide(options: Sequence[Option], seed: int) -> dict[str, object]:
    """Return the results of all decisions: shares, the naive rule and the ceiling for comparison, and the worst
    misses."""
    noise = repeats(options, lambda one: one.measured)
    e2e = repeats(options, lambda one: one.outputs[:1])
    places = merged(options)
    document: dict[str, object] = {"repeats": len(noise)}
    all_pairs, all_choices = list(pairs(places)), list(choices(places))
    for kind in ("sizes", "engines", "settings"):
        found = [pair for pair in all_pairs if pair.kind == kind]
        wrong = sorted((pair for pair in found if not pair.right), key=lambda pair: -abs(pair.measured))
        document[kind] = {
            **_right(found, e2e, seed, f"pairs of {kind}"),
            "near": share([p.near for p in found], [p.first.product for p in found], seed, f"near pairs of {kind}"),
            "apart": _right([pair for pair in found if pair.apart], e2e, seed, f"pairs of {kind} apart"),
            "misses": [_miss(pair) for pair in wrong],
        }
    outcomes = [choice.outcome(choice.simulated) for choice in all_choices]
    products = [choice.options[0].product for choice in all_choices]
    naive = Counter(choice.outcome(choice.naive) for choice in all_choices)
    document["choices"] = {
        "choices": len(all_choices),
        **{
            name: share([o == name for o in outcomes], products, seed, f"choices {name}")
            for name in ("near", "far", "broken", "declined")
        },
        "naive": {name: count / len(all_choices) for name, count in sorted(naive.items())},
        "ceiling": choice_ceiling(all_choices, noise, seed),
    }
    return document


def _right(found: Sequence[Pair], noise: Floats, seed: int, purpose: str) -> dict[str, object]:
    """Return the number of pairs and the share that is right, with that of the naive rule (None if it applies to no
    pair) and the ceiling."""
    naive = [pair.naive for pair in found if pair.naive is not None]
    return {
        "pairs": len(found),
        "right": share([p.right for p in found], [p.first.product for p in found], seed, purpose),
        "naive": sum(naive) / len(naive) if naive else None,
        "ceiling": pair_ceiling(found, noise),
    }


def _lengths(one: Option) -> str:
    if one.flags is None:
        return "/".join(map(str, one.lengths))
    return f"prompts of {one.lengths[0]}" if one.lengths[0] else "conversations"


def _miss(pair: Pair) -> dict[str, object]:
    def name(one: Option) -> str:
        gpus = f"{one.gpus} GPU{'s' if one.gpus > 1 else ''}"
        flags = " ".join(f"--{name} {value}".strip() for name, value in one.flags or ())
        return " ".join(filter(None, (*one.product[:2], one.product[5], gpus, f"C={one.concurrency}", flags)))

    about = f"{pair.first.product[2]} on {pair.first.product[3]}, {_lengths(pair.first)}"
    return {
        "about": f"{about}{f': {pair.named[0]}' if pair.kind == 'settings' else ''}",
        "first": name(pair.first),
        "second": name(pair.second),
        "measured": float(np.expm1(pair.measured)),
        "simulated": float(np.expm1(pair.simulated)),
    }
