"""Figures of requests: their number, their latencies, and their goodput."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servesim.contracts.figures import Figure, Group, Summary, Tile, literal
from servesim.contracts.request import State
from servesim.metrics.measured import Good
from servesim.metrics.requests import per
from servesim.metrics.slo import SLO_METRICS
from servesim.schemas import COUNT, DISTRIBUTION, FIGURE, NUMBER, a_map

REASONS = a_map(COUNT)


def _total(name: str, doc: str) -> Figure:
    return Figure(name, doc, lambda m: m.total(name), schema=COUNT)


def _why(name: str, doc: str, state: State) -> Figure:
    return Figure(name, doc, lambda m: m.requests.why(state), schema=REASONS)


def _requests(summary: Summary) -> str:
    counts = summary["requests"]
    others = [f", {counts[name]:,} {name}" for name in ("rejected", "aborted", "retries") if counts[name]]
    return f"{{completed}} completed of {{arrived}}{''.join(others)}"


REQUESTS = Group(
    "requests",
    "requests",
    (
        _total("arrived", "number of requests that arrived"),
        _total("completed", "number of requests that received all their tokens"),
        _total("rejected", "number of requests that were never admitted, because they were too long for the model or "
            "the memory, the "
            "queue was full, or the router refused them"),
        _total("aborted", "number of requests that ended before they received all their tokens, because the client "
            "gave up, or the replica "
            "or the KV was lost"),
        Figure("unsent", "number of requests that were never sent, because the run ended first (closed loop) or an "
            "earlier turn failed",
               lambda m: m.unsent, schema=COUNT),
        Figure("retries", "number of attempts that follow a failed attempt", lambda m: m.retries, schema=COUNT),
        _total("input_tokens", "prompt tokens of the completed requests"),
        _total("output_tokens", "output tokens of the completed requests"),
        _total("output_sequences", "number of output sequences of the completed requests"),
        _why("finish_reasons", "number of completed requests by finish reason", State.FINISHED),
        _why("rejection_reasons", "number of rejected requests by reason", State.REJECTED),
        _why("abort_reasons", "number of aborted requests by reason", State.ABORTED),
        Figure("max_concurrency",
               "maximum number of completed requests that were in the system at the same time",
               lambda m: m.requests.max_concurrency(), schema=COUNT),
    ),
    rows=(
        ("requests", _requests),
        ("duration", "{duration_s} s, at most {requests.max_concurrency} requests at once"),
    ),
    tiles=(
        Tile("Requests completed", "{completed}", "of {arrived} in {duration_s}",
             lambda summary: summary["requests"]["completed"] < summary["requests"]["arrived"]),
    ),
)  # fmt: skip


DURATION = Group(
    "",
    "duration",
    (
        Figure("duration_s", "time from the first arrival to the last token, including the drain at the end",
               lambda m: m.seconds, "s"),
    ),
    rows=(),
)  # fmt: skip


def _flow(name: str, doc: str, amount: Callable[[Any], float]) -> Figure:
    unit = "requests/s" if name.startswith("request") else "tokens/s"
    rate = f"{doc} divided by `duration_s`"
    return Figure(name, rate, lambda m: per(amount(m), m.seconds), unit, better="higher", stretched="rarer")


THROUGHPUT = Group(
    "throughput",
    "throughput",
    (
        _flow("request_throughput", "completed requests", lambda m: m.ended("completed")),
        _flow("output_throughput", "output tokens of completed requests", lambda m: m.ended("output_tokens")),
        _flow("total_token_throughput", "input and output tokens of completed requests",
              lambda m: m.ended("input_tokens") + m.ended("output_tokens")),
    ),
    rows=(
        ("throughput", (
            "{request_throughput} requests/s, {output_throughput} output tokens/s, {total_token_throughput} tokens/s "
            "in total"
        )),
    ),
    tiles=(Tile("Throughput", "{request_throughput} requests/s", "{output_throughput} output tokens/s"),),
    windowed=True,
)  # fmt: skip

LATENCY_LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2E",
    "ntpot": "latency per token",
    "queue_time": "queue time",
}
"""Names of latencies in tables and sentences."""
SHOWN = ("ttft", "tpot", "itl", "e2el", "queue_time")
"""Latencies shown in the tables of the terminal and the page."""


def _latency(name: str, doc: str) -> Figure:
    def of(measured: Any) -> Any:
        return measured.latency_ms(name)

    return Figure(name, doc, of, "ms", DISTRIBUTION, "lower", label=LATENCY_LABELS[name], latency=True)


def _latency_tile(key: str, name: str, shown: Callable[[Summary], bool]) -> Tile:
    """Return the tile for a 99th percentile, with a warning if the percentile is above its limit."""

    def value(summary: Summary) -> str | None:
        if not shown(summary):
            return None
        return f"{{latency_ms.{key}.p99}}" if summary["latency_ms"][key] else "–"

    def note(summary: Summary) -> str:
        return f"median {{latency_ms.{key}.p50}}" if summary["latency_ms"][key] else "nothing completed"

    def missed(summary: Summary) -> bool:
        stats, limit = summary["latency_ms"][key], summary["scenario"]["slo"].get(key)
        return bool(stats and limit is not None and stats["p99"] > limit)

    return Tile(name, value, note, missed)


LATENCY = Group(
    "latency_ms",
    "latency",
    (
        _latency("ttft", "time to first token: from the arrival to the first output token, t_1 - t_s"),
        _latency(
            "tpot",
            "time per output token after the first, for each request: (t_n - t_1) / (n - 1). Requests with one "
            "output token are excluded. Limits treat their value as 0",
        ),
        Figure(
            "itl",
            "gaps between successive tokens, pooled over all requests, so long answers have more weight. Tokens from "
            "one verification of drafts arrive together, so the first token has the whole gap and the others have a "
            "gap of 0",
            lambda m: m.itl,
            "ms",
            DISTRIBUTION,
            label=LATENCY_LABELS["itl"],
        ),
        _latency("e2el", "end-to-end latency: from the arrival to the last output token, t_n - t_s"),
        _latency("ntpot", "end-to-end latency divided by the number of output tokens, (t_n - t_s) / n"),
        _latency(
            "queue_time",
            ("time from the arrival until the request is first scheduled, including time in the front end"),
        ),
    ),
    doc=(
        "Only completed requests have latencies. Each has `count`, `mean`, `std`, `min`, `max` and the percentiles "
        "`p1` to `p99.9`, interpolated linearly as in `numpy.percentile`. With speculation, use `tpot`, because "
        "percentiles of `itl` then describe verifications, not tokens. With static batching, the time of a token is "
        "the time at which the token is computed. The answer is returned when the batch ends (`finished_ns` in "
        "`requests.parquet`)."
    ),
    rows=(),
    tiles=(
        _latency_tile("ttft", "First token, p99", lambda summary: True),
        _latency_tile("tpot", "Per output token, p99", lambda summary: True),
        _latency_tile("e2el", "End to end, p99", lambda summary: not summary["goodput"]),
    ),
    windowed=True,
)


def limits_text(slo: Mapping[str, float]) -> str:
    """Return limits as text, in the order of SLO_METRICS."""
    return ", ".join(f"{name} <= {slo[name]:g} ms" for name in SLO_METRICS if name in slo)


def limits_of(goodput: Mapping[str, Any]) -> str:
    """Return the limits in words, those of classes with their names."""
    own = [f"{name} {limits_text(slo)}" for name, slo in goodput.get("slo_classes_ms", {}).items()]
    return "; ".join(filter(None, (limits_text(goodput["slo_ms"]), *own)))


def _goodput(summary: Summary) -> str:
    limits = literal(limits_of(summary["goodput"]))
    return f"{{request_goodput}} requests/s, {{slo_attainment}} of arrivals within {limits}"


def _attainment(good: Good) -> dict[str, float | None]:
    return {name: per(met, good.arrived) for name, met in good.within.items()}


GOODPUT = Group(
    "goodput",
    "goodput",
    (
        Figure("slo_ms", "limits in ms, by metric", lambda g: dict(g.slo_ms), schema=a_map(NUMBER)),
        Figure("slo_classes_ms", "limits in ms of the classes that have their own limits, by class and metric",
               lambda g: g.slo_classes_ms, schema=a_map(a_map(NUMBER)), optional=True),
        Figure("good_requests", "completed requests that meet every limit (value <= limit)",
               lambda g: g.ended, schema=COUNT),
        Figure("request_goodput",
               "good requests divided by `duration_s`", lambda g: per(g.ended, g.seconds), "requests/s",
               better="higher", scale="difference", label="goodput", stretched="rarer"),
        Figure("slo_attainment",
               "good requests divided by all requests that arrived, including rejected and aborted requests",
               lambda g: per(g.arrived_good, g.arrived), "share", better="higher", scale="difference",
               label="SLO attainment", stretched="same"),
        Figure("attainment_by_metric",
               "requests that meet each limit, regardless of other limits, divided by all requests that arrived",
               _attainment, "share",
               a_map(FIGURE)),
    ),
    doc="`null` without limits (`slo`).",
    rows=(("goodput", _goodput),),
    tiles=(
        Tile("Within all limits", "{slo_attainment}", "{request_goodput} requests/s of goodput",
             lambda summary: (summary["goodput"]["slo_attainment"] or 0) < 0.9),
    ),
    source=lambda m: m.good,
    null=True,
    windowed=True,
)  # fmt: skip
