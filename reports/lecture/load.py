"""Load, latency and the price of both."""

from __future__ import annotations

from typing import Any

from servesim.experiments.knee import knee as knee_of
from servesim.reports.figures.kinds import Curve, Lines
from servesim.run.simulate import simulate

TRACE = "synth:rate=1,prompt=lognormal(p50=600,p95=2400),output=lognormal(p50=150,p95=500)"
FIRST, TIMES, MOST = 2.0, 1.35, 24
"""First rate, factor between rates, and maximum number of rates to try until requests queue."""
QUEUED = 60
"""Multiple of an idle server's median latency at which requests count as queued."""
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDE = (1, 2, 4)
REQUESTS = 4
"""Number of requests per user."""


def knee(machine: dict[str, Any]) -> Lines:
    """Raise the rate until requests queue."""
    kept: list[float] = []
    median, tail, stable = [], [], []
    for i in range(MOST):
        rate = round(FIRST * TIMES**i, 1)
        summary = simulate(**machine, trace=TRACE, rate=rate, requests=400, conclude=False).summary
        ttft = summary["latency_ms"]["ttft"]
        kept.append(rate)
        median.append(ttft["p50"] / 1e3)
        tail.append(ttft["p99"] / 1e3)
        stable.append(not summary["stability"]["unstable"])
        if median[-1] > QUEUED * median[0]:
            break
    bend = knee_of(kept, median, stable)
    marks = [(bend, "knee")] if bend is not None else []
    caption = (
        f"From {kept[0]:g} to {kept[-1]:g} requests/s, the median time to first token rises from "
        f"{median[0] * 1000.0:.0f} ms to {median[-1]:.1f} s: below the knee it hardly changes, and beyond the "
        "knee the queue grows for as long as requests arrive."
    )
    curves = [Curve("median", kept, median), Curve("p99", kept, tail)]
    return Lines(
        "knee", "Latency against load", caption, "requests/s", "TTFT, s", curves, "y", marks=marks, caption=caption
    )


def interactivity(machine: dict[str, Any]) -> Lines:
    """Serve more and more concurrent users on one, two and four GPUs."""
    curves = []
    for tp in WIDE:
        fast, full = [], []
        for users in USERS:
            found = _closed(machine, users, tp=tp)
            fast.append(1e3 / found["latency_ms"]["tpot"]["mean"])
            full.append(found["throughput"]["output_throughput"] / tp)
        curves.append(Curve(f"{tp} GPU{'s' * (tp > 1)}", fast, full))
    alone = [max(curve.x) for curve in curves]
    caption = (
        f"The dots show {USERS[0]} to {USERS[-1]} concurrent users. A single user gets {alone[0]:.0f} tokens/s from "
        f"one GPU and {alone[-1]:.0f} from {WIDE[-1]}. The throughput of a GPU is highest where each user gets the "
        "least."
    )
    return Lines(
        "interactivity", "Throughput against interactivity", caption, "tokens/s per user", "tokens/s per GPU", curves,
        caption=caption,
    )  # fmt: skip


def drafts(machine: dict[str, Any]) -> Lines:
    """Compare served tokens with and without drafts, by concurrent users."""
    curves = []
    for label, speculation in (("2 drafts", 2), ("5 drafts", 5)):
        gains = []
        for users in USERS:
            plain = _closed(machine, users)
            drafted = _closed(machine, users, speculation=f"eagle3:k={speculation}")
            rates = [found["throughput"]["output_throughput"] for found in (drafted, plain)]
            gains.append(rates[0] / rates[1])
        curves.append(Curve(label, USERS, gains))
    best, worst = curves[1].y[0], curves[1].y[-1]
    caption = (
        f"EAGLE-3 drafts with measured acceptance. Five drafts give {best:.2f} x the tokens/s to one user and "
        f"{worst:.2f} x to {USERS[-1]}: with many users, the compute that was idle while weights were read is no "
        "longer idle."
    )
    return Lines(
        "drafts", "Speculation and batch size", caption, "users at once", "tokens/s relative to no drafts", curves,
        "x", level=(1.0, "as fast as without drafts"), caption=caption,
    )  # fmt: skip


def _closed(machine: dict[str, Any], users: int, **more: Any) -> dict[str, Any]:
    """Return the summary of a closed-loop run."""
    found: dict[str, Any] = simulate(
        **machine,
        trace="synth:rate=1,prompt=512,output=128",
        rate=float("inf"),
        requests=max(REQUESTS * users, 16),
        clients={"max_concurrency": users},
        conclude=False,
        **more,
    ).summary
    return found
