"""Cold starts: the time of a replica's start by its parts, and what it costs under an autoscaler."""

from __future__ import annotations

from servesim.hardware import ModelSpec
from servesim.run.simulate import simulate
from servesim.run.start import start_of

from . import Given, Outcome, Row, amount, experiment
from .outcome import COURSE

PARTS = ("node_s", "pull_s", "boot_s", "compile_s", "graphs_s", "warm_up_s")


@experiment("cold-start", group="time", claim="A cold start takes 60 s, and 28 minutes", source=COURSE)
def cold_start(given: Given) -> Outcome:
    """Add up the parts of starts, and serve a load that comes at once with either start."""
    outcome = Outcome()
    for name, one in given["starts"].items():
        start, weights = start_of(one["start"]), ModelSpec.load(one["model"]).weight_bytes("bf16")
        outcome.near(
            f"start of a replica, {name}",
            one["claimed"],
            start.total_s(weights),
            "s",
            within=0.15,
            note=f"{amount(weights / 1e9, 'GB')} of weights at {start.weights_gb_s:g} GB/s",
            cause="the text names neither the model nor what was cached: download, compilation and graph capture are "
            "as long as a site makes them",
        )
    for seconds in given["served"]["seconds"]:
        _served(outcome, given["served"]["base"], seconds)
    outcome.notes.append("the parts of each start are recorded ones (docs/clusters.md), with this model's weights")
    return outcome


def _served(outcome: Outcome, base: Given, seconds: float) -> None:
    """Add the share of requests that get their first token in time if a start takes that long."""
    start = dict.fromkeys(PARTS, 0.0) | {"boot_s": float(seconds), "weights_gb_s": 1e7}
    summary = simulate({**base, "start": start}).summary
    attained = 100 * summary["goodput"]["slo_attainment"]
    note = f"99 % have their first token within {amount(summary['latency_ms']['ttft']['p99'] / 1e3, 's')}"
    what = f"first tokens within {base['slo']['ttft'] / 1e3:g} s of {base['rate']:g} requests/s, start of {seconds:,} s"
    outcome.add(Row(what, "-", amount(attained, "%"), "shown", note))
