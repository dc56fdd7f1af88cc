"""More concurrent requests: throughput and latency both rise, and latency bends."""

from __future__ import annotations

from itertools import pairwise

from servesim.experiments.knee import knee
from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, experiment


@experiment(
    "knee",
    group="batching",
    claim="Batching raises throughput and latency; beyond a knee latency alone",
    source="lecture on batching",
)
def latency_throughput(given: Given) -> Outcome:
    """Run closed loops with increasing numbers of users, and arrivals at increasing numbers of requests per second."""
    outcome = Outcome()
    _users(outcome, given)
    _rates(outcome, given)
    return outcome


def _users(outcome: Outcome, given: Given) -> None:
    flows, times = [], []
    for users in given["users"]:
        summary = simulate(
            given["base"],
            trace=given["trace"],
            requests=max(200, given["requests_per_user"] * users),
            rate=float("inf"),
            clients={"max_concurrency": users},
        ).summary
        flows.append(summary["throughput"]["output_throughput"])
        times.append(summary["latency_ms"]["tpot"]["mean"])
    rising = all(a < b for curve in (flows, times) for a, b in pairwise(curve))
    first, last = given["users"][0], given["users"][-1]
    more, slower = flows[-1] / flows[0], times[-1] / times[0]
    outcome.holds(
        "throughput and latency with more users",
        "both rise",
        f"from {first} to {last} users {more:.0f} x the tokens/s, {slower:.1f} x the TPOT",
        rising,
        cause="not at every step",
    )
    outcome.figures.append(
        Lines(
            name="users",
            title="Throughput against latency",
            alt=f"At {', '.join(map(str, given['users']))} users: "
            + "; ".join(f"{t:.1f} ms and {f:,.0f} tokens/s" for t, f in zip(times, flows, strict=True))
            + ".",
            x_label="mean time per output token, ms",
            y_label="output tokens/s",
            curves=[Curve("users", times, flows)],
            caption=f"Dots: {', '.join(map(str, given['users']))} users.",
        )
    )


def _rates(outcome: Outcome, given: Given) -> None:
    rates, latencies, flows, stable = given["rates"], [], [], []
    for rate in rates:
        summary = simulate(given["base"], trace=given["trace"], requests=given["requests"], rate=rate).summary
        latencies.append(summary["latency_ms"]["e2el"]["mean"] / 1e3)
        flows.append(summary["throughput"]["output_throughput"])
        stable.append(not summary["stability"]["unstable"])
    bend = knee(rates, latencies, stable)
    if bend is None:
        simulated = "none"
    else:
        at, light, heavy = latencies[rates.index(bend)], latencies[0], latencies[-1]
        simulated = f"at {bend:g} requests/s: {at:.1f} s; {light:.1f} s at {rates[0]:g}, {heavy:.1f} s at {rates[-1]:g}"
    outcome.holds("knee of mean end-to-end latency", "there is one", simulated, bend is not None)
    most = f"{max(flows):,.0f} output tokens/s"
    outcome.add(Row("highest throughput of these rates", "-", most, "shown"))
    outcome.notes.append(
        "knee: the stable rate farthest below the line from the curve's first point to its last (Kneedle)"
    )
    outcome.figures.append(
        Lines(
            name="rates",
            title="Latency against load",
            alt="Mean end-to-end latency: "
            + ", ".join(f"{t:.1f} s at {r:g} requests/s" for r, t in zip(rates, latencies, strict=True))
            + ".",
            x_label="requests/s",
            y_label="mean end-to-end latency, s",
            curves=[Curve("latency", rates, latencies)],
            marks=((bend, "knee"),) if bend is not None else (),
        )
    )
