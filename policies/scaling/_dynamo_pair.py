"""Dynamo's planner for prefill and decode replicas (ai-dynamo 1.6.1, dynamo/planner/core): rate of one replica,
decisions of the load loop, and the GPU budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

from servesim.contracts.profile import Profile
from servesim.contracts.router import Report

MOST_CANDIDATES = 128
"""Maximum number of batch sizes for which a replica's rate is evaluated (MAX_CAPACITY_SEARCH_CANDIDATES)."""


class Sides(NamedTuple):
    """A number for each role, such as replicas."""

    prefill: int
    decode: int


def batch_sizes(most: int) -> list[int]:
    """Return the batch sizes to evaluate: all up to `most`, or evenly spaced ones."""
    if most <= MOST_CANDIDATES:
        return list(range(1, most + 1))
    return [1 + i * (most - 1) // (MOST_CANDIDATES - 1) for i in range(MOST_CANDIDATES)]


def prompt_s(profile: Profile, tokens: int) -> float:
    """Return the time to compute a number of prompt tokens in steps of at most max_num_batched_tokens."""
    full, rest = divmod(tokens, profile.max_num_batched_tokens)
    whole = full * profile.prefill_s(profile.max_num_batched_tokens) if full else 0.0
    return whole + (profile.prefill_s(rest) if rest else 0.0)


def prefill_rate(profile: Profile, isl: int, ttft_s: float) -> float:
    """Return the maximum prompts/s of a replica: the best batch whose time is within the limit, or the best batch if
    none is."""
    most = min(profile.max_num_seqs, max(profile.max_num_batched_tokens // isl, 1))
    found = ((count / seconds, seconds) for count in batch_sizes(most) if (seconds := prompt_s(profile, count * isl)))
    return _best(found, ttft_s)


def decode_rate(profile: Profile, isl: int, osl: int, itl_s: float) -> float:
    """Return the maximum answers/s of a replica: by Little's law, a batch of n answers n / (osl x step time)
    requests/s."""
    context = isl + osl // 2
    most = max(min(profile.max_num_seqs, profile.kv_tokens // context), 1)
    steps = ((count, profile.decode_s(count, context)) for count in batch_sizes(most))
    return _best(((count / (osl * step), step) for count, step in steps), itl_s)


def _best(found: Iterable[tuple[float, float]], limit_s: float) -> float:
    """Return the highest rate among (rate, latency) pairs within the limit, or of all pairs if none is."""
    return max((latency <= limit_s, rate) for rate, latency in found)[1]


def prefill_step(params: Any, profile: Profile, ready: Mapping[int, Report], isl: int) -> int:
    """Return the load loop's change in prefill replicas: 1 if the next prompt would miss the TTFT limit everywhere, -1
    if the queues, spread over one replica fewer, would take less than `sensitivity` of what the limit leaves."""
    limit, own = params.ttft_ms / 1e3, prompt_s(profile, isl)
    queued = [report.num_waiting * isl for report in ready.values()]
    if all(prompt_s(profile, tokens + isl) > limit for tokens in queued):
        return 1
    spare = (limit - own) * params.sensitivity
    if len(ready) < 2 or spare <= 0:
        return 0
    more = len(ready) / (len(ready) - 1)
    return -all(prompt_s(profile, round(tokens * more) + isl) - own < spare for tokens in queued)


def decode_step(params: Any, profile: Profile, ready: Mapping[int, Report], context: int) -> int:
    """Return the load loop's change in decode replicas: 1 if the next request would miss the ITL limit everywhere, -1
    if the requests, spread over one fewer, would fit into memory and take less than `sensitivity` of the limit."""
    limit = params.itl_ms / 1e3
    counts = [report.num_running + report.num_waiting for report in ready.values()]
    if all(profile.decode_s(count + 1, context) > limit for count in counts):
        return 1
    if len(ready) < 2:
        return 0
    after = [round(count * len(ready) / (len(ready) - 1)) for count in counts]
    return -all(
        count * context < profile.kv_tokens and profile.decode_s(count + 1, context) < limit * params.sensitivity
        for count in after
    )


def fitted(now: Sides, wanted: Sides, gpus: Sides, budget: int, least: int) -> Sides:
    """Return the pair between the present and the wanted one that is closest to the wanted one within a GPU budget; if
    one side is to grow and the other to shrink, both move or neither (fit_directional_budget_pair)."""
    if _cost(wanted, gpus) <= budget:
        return wanted
    opposite = (wanted.prefill - now.prefill) * (wanted.decode - now.decode) < 0
    ranges = [range(max(min(pair), least), max(pair) + 1) for pair in zip(now, wanted, strict=True)]
    pairs = [Sides(*pair) for pair in product(*ranges)]
    fitting = [
        pair
        for pair in pairs
        if _cost(pair, gpus) <= budget
        and not (opposite and (pair.prefill == now.prefill) != (pair.decode == now.decode))
    ]
    asked = [abs(a - b) for a, b in zip(wanted, now, strict=True)]

    def score(pair: Sides) -> tuple[int, ...]:
        moved = [abs(a - b) for a, b in zip(pair, now, strict=True)]
        distance = sum(abs(a - b) for a, b in zip(wanted, pair, strict=True))
        return distance, abs(moved[0] * asked[1] - moved[1] * asked[0]), -sum(moved), *pair

    return min(fitting, key=score, default=now)


def within_budget(now: Sides, wanted: Sides, gpus: Sides, budget: int, least: int) -> Sides:
    """Return the pair that a GPU budget allows: in proportion if the wanted one exceeds it; the present one if that
    would turn a direction around, or if all GPUs are in use and no side gives up any (guard_disagg_scaling_budget)."""
    if _cost(now, gpus) > budget:
        return _shrunk(now, gpus, budget, least)
    grows = wanted.prefill > now.prefill or wanted.decode > now.decode
    if _cost(now, gpus) == budget and grows:
        shrinks = wanted.prefill < now.prefill or wanted.decode < now.decode
        return fitted(now, wanted, gpus, budget, least) if shrinks else now
    found = _shrunk(wanted, gpus, budget, least)
    keeps = all(min(a, b) <= c <= max(a, b) for a, b, c in zip(now, wanted, found, strict=True))
    return found if keeps else now


def _shrunk(pair: Sides, gpus: Sides, budget: int, least: int) -> Sides:
    """Return a pair within the budget, in proportion; the decode side gets what rounding leaves
    (proportional_clamp_pair)."""
    total = _cost(pair, gpus)
    if total <= budget:
        return pair
    if not gpus.prefill or not gpus.decode:  # one side alone
        return Sides(*(max(least, budget // gpu) if gpu else n for n, gpu in zip(pair, gpus, strict=True)))
    most = (budget - least * gpus.decode) // gpus.prefill
    prefill = max(least, min(most, pair.prefill * budget // total))
    return Sides(prefill, max(least, (budget - prefill * gpus.prefill) // gpus.decode))


def _cost(pair: Sides, gpus: Sides) -> int:
    return pair.prefill * gpus.prefill + pair.decode * gpus.decode
