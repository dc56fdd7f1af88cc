"""Synthetic workload from the histograms of prompt and output tokens on a server's /metrics page (in Prometheus' text
format). It has the recorded number of requests in each bucket and the recorded mean.

The histograms are vLLM's request_prompt_tokens and request_generation_tokens, SGLang's prompt_tokens_histogram and
generation_tokens_histogram, and TGI's request_input_length and request_generated_tokens. All series of one histogram
are summed. Within a bucket, lengths are spread between the edges on a logarithmic scale, skewed equally in all buckets
so that the mean matches the file's. A histogram has no rate, so requests arrive at random, one per second on average.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from servesim import draws
from servesim.errors import UserError, shown
from servesim.limits import limits, too_much
from servesim.untrusted import read_text
from servesim.workload.trace import Ints, Trace

NAME = "prometheus"
ABOUT = "Prometheus text: histograms of prompt and output tokens (vLLM, SGLang, TGI)"
PROMPT = ("request_prompt_tokens", "prompt_tokens_histogram", "request_input_length")
OUTPUT = ("request_generation_tokens", "generation_tokens_histogram", "request_generated_tokens")
MOST_REQUESTS = 10_000
"""Maximum number of requests drawn: the histograms of a busy server count millions, but more draws would not change any
percentile."""
SECOND = 1_000_000_000
BEYOND = 2.0
"""Upper end of the lengths in the open-ended bucket, as a multiple of the last finite edge."""
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LE = re.compile(r'(?:^|,)\s*le="([^"]*)"')


def detect(head: bytes) -> bool:
    return b"_bucket{" in head and b'le="' in head


def read(path: Path) -> Trace:
    series = _series(path)
    sides = []
    for side, names in (("prompt", PROMPT), ("output", OUTPUT)):
        name = next((n for n in series if n.rpartition(":")[2].removeprefix("tgi_") in names and series[n][0]), None)
        if name is None:
            found = ", ".join(list(series)[:4]) or "none"
            raise UserError(f"{path}: no histogram of {side} tokens (vllm:{names[0]}_bucket); histograms are {found}")
        sides.append((name, *series[name]))
    counted = min(round(max(buckets.values())) for _, buckets, _ in sides)
    count = min(counted, MOST_REQUESTS, limits().rows)
    if count < 1:
        raise UserError(f"{path}: {sides[0][0]} has counted no requests")
    lengths = [_lengths(path, *side, count) for side in sides]
    rows = np.arange(count, dtype=np.int64)
    orders = [np.argsort(draws.uniform(0, f"prometheus {side}", rows), kind="stable") for side in ("prompt", "output")]
    mixed = [column[order] for column, order in zip(lengths, orders, strict=True)]
    gaps = -np.log1p(-draws.uniform(0, "prometheus arrivals", rows)) * SECOND
    arrival = np.rint(np.cumsum(gaps)).astype(np.int64)
    notes = [
        f"drawn independently from histograms of {counted:,} requests: prompts mean {lengths[0].mean():,.0f}, outputs "
        f"mean {lengths[1].mean():,.0f} tokens",
        "histograms have no rate: requests arrive at random, one per second on average. Set a rate with --rate.",
    ]
    return Trace.from_lengths(path.name.split(".")[0], arrival - arrival[0], *mixed, notes=tuple(notes))


def _series(path: Path) -> dict[str, tuple[dict[float, float], float]]:
    """Return the cumulative counts by upper edge, and the sum, for each histogram in the file."""
    buckets: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        found = _LINE.match(line.strip())
        if found is None or line.startswith("#"):
            continue
        name, labels, text = found.groups()
        edge = _LE.search(labels or "")
        if not name.endswith(("_bucket", "_sum")) or (name.endswith("_bucket") and edge is None):
            continue
        try:
            value = float(text)
            upper = float(edge[1]) if edge is not None and name.endswith("_bucket") else 0.0
            if not math.isfinite(value) or value < 0 or math.isnan(upper):
                raise ValueError
        except ValueError:
            raise UserError(f"{path}: line {number}: {shown(line)[:120]} is not a number of at least 0") from None
        base = name.removesuffix("_bucket").removesuffix("_sum")
        if edge is None:
            sums[base] = sums.get(base, 0.0) + value
        else:
            of = buckets.setdefault(base, {})
            of[upper] = of.get(upper, 0.0) + value
            if len(of) > limits().rows:
                raise too_much(path, "buckets are", "rows")
    return {name: (of, sums.get(name, 0.0)) for name, of in buckets.items()}


def _lengths(path: Path, name: str, buckets: dict[float, float], total: float, count: int) -> Ints:
    """Return `count` lengths in ascending order that match the bucket shares and, if possible, the mean."""
    edges = sorted(buckets)
    cumulative = np.array([buckets[edge] for edge in edges])
    if np.any(np.diff(cumulative) < 0):
        raise UserError(f"{path}: {name}: bucket counts decrease, but they must be cumulative")
    whole = cumulative[-1]
    uppers = [min(edge, BEYOND * max((e for e in edges if math.isfinite(e)), default=1.0), 1 << 40) for edge in edges]
    lowers = [1.0, *uppers[:-1]]
    quantile = (np.arange(count) + 0.5) / count * whole
    bucket = np.searchsorted(cumulative, quantile, side="left")
    before = np.concatenate(([0.0], cumulative))[bucket]
    inside = (quantile - before) / (cumulative[bucket] - before)
    low, high = np.array(lowers)[bucket], np.maximum(np.array(uppers)[bucket], 1.0)

    def at(bend: float) -> np.ndarray:
        return np.asarray(low * (high / low) ** (inside**bend))

    least, most = 0.05, 20.0
    mean = total / whole if total else float(at(1.0).mean())
    for _ in range(60):
        bend = math.sqrt(least * most)
        least, most = (bend, most) if at(bend).mean() > mean else (least, bend)
    smallest = np.where(bucket == 0, 1, np.floor(low) + 1)  # an edge belongs to the bucket below it
    lengths: Ints = np.maximum(np.rint(at(math.sqrt(least * most))), smallest).astype(np.int64)
    return lengths
