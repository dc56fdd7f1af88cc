"""Orca compared with FasterTransformer: the throughput of GPT-3 175B at equal latency."""

from __future__ import annotations

from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, experiment
from .rates import highest

ORCA = "Orca"
PUBLISHED = {ORCA: 6.81, "FasterTransformer": 0.185}
"""Requests/s at the paper's latency level."""


@experiment(
    "orca",
    group="published",
    claim="Orca serves 36.9 times the requests of FasterTransformer at the same median latency (GPT-3 175B)",
    source="Yu et al., Orca, OSDI 2022, figure 10",
)
def orca(given: Given) -> Outcome:
    """Find the highest rates at the published latency per token, and the latency by load."""
    outcome = Outcome()
    rates = {name: _rate(given, scheduler) for name, scheduler in given["systems"].items()}
    ours, fused, single, *batches = rates.values()
    alone = latency(given, given["systems"][ORCA], given["rates"][0])
    level = f"requests/s at {given['level_ms']:g} ms a token"
    slow = (
        f"kernel times alone: an unloaded server takes {alone:.0f} ms a token here, and one that is at 190 ms with "
        "0.185 requests/s takes far longer; host time of 2022 and that between the machines are not in it"
    )
    cause = f"with one attention kernel for all requests {fused:.2f}: the published rate lies between the two"
    outcome.near(f"Orca, {level}", PUBLISHED[ORCA], ours, "/s", within=0.15, cause=cause)
    what = f"FasterTransformer one at a time, {level}"
    outcome.near(what, PUBLISHED["FasterTransformer"], single, "/s", within=0.15, cause=slow)
    cause = f"with one attention kernel {fused / single:.1f} x; the rest is FasterTransformer's rate, see above"
    outcome.near("Orca to FasterTransformer one at a time", 36.9, ours / single, "x", within=0.15, cause=cause)
    cause = (
        f"all requests that wait, padded, as one batch holds up to {max(batches):.2f} requests/s here; the rate of "
        "0.185 in the paper is that of no batching at all"
    )
    outcome.near("Orca to FasterTransformer, best batch", 36.9, ours / max(batches), "x", within=0.15, cause=cause)
    _draw(outcome, given)
    return outcome


def _rate(given: Given, scheduler: str) -> float:
    return highest(lambda rate: latency(given, scheduler, rate) <= given["level_ms"], *given["rates"])


def latency(given: Given, scheduler: str, rate: float) -> float:
    """Return the median over requests of the end-to-end latency per output token, in ms."""
    settings = {**given["base"], "trace": given["trace"], "requests": given["requests"]}
    requests = simulate(settings, scheduler=scheduler, rate=rate).requests
    return float(((requests["finished_ns"] - requests["arrival_ns"]) / requests["output_len"]).median()) / 1e6


def _draw(outcome: Outcome, given: Given) -> None:
    curves = []
    for name, scheduler in given["systems"].items():
        points = [(rate, latency(given, scheduler, rate)) for rate in given["drawn"]]
        shown = [(rate, ms) for rate, ms in points if ms <= 4 * given["level_ms"]]
        curves.append(Curve(name, [rate for rate, _ in shown], [ms for _, ms in shown]))
    said = "; ".join(
        f"{c.label}: " + ", ".join(f"{y:.0f} ms at {x:g}/s" for x, y in zip(c.x, c.y, strict=True)) for c in curves
    )
    outcome.figures.append(
        Lines(
            name="latency",
            title="Median latency per output token",
            alt=f"{said}.",
            x_label="requests/s",
            y_label="ms per output token",
            curves=curves,
            log="x",
            level=(given["level_ms"], "the latency at which the paper compares"),
        )
    )
