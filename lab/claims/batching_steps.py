"""Static and continuous batching, step by step: A, B, C and D in a batch of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servesim.run.simulate import simulate
from servesim.workload.trace import Trace

from . import Given, Outcome, Row, Spans, experiment


@dataclass(frozen=True)
class Stay:
    """Steps of one request, counted from 1, both ends included."""

    first: int
    last: int
    """Step that produces the request's last token."""
    back: int
    """Step after which the client has the complete output."""


@dataclass(frozen=True)
class Played:
    """Steps of the requests under one scheduler."""

    stays: dict[str, Stay]
    steps: int
    wasted: int
    """Number of step rows that produced no token: finished requests kept as padding, or empty slots."""
    seconds: float


@experiment(
    "batching-steps",
    group="batching",
    claim="In a static batch the long answer runs on alone; continuous batching lets the next request in at once",
    source="lecture on batching: A of 500 tokens, B of 10, then C and D",
)
def batching_steps(given: Given) -> Outcome:
    """Run the example under both schedulers, and under asynchronous scheduling."""
    outcome = Outcome()
    static, continuous = play(given, given["static"]), play(given, given["continuous"])
    ahead = play(given, given["continuous"], asynchronous=True)
    a, b = static.stays["A"], static.stays["B"]
    alone = f"{b.last + 1} to {a.last}"
    outcome.holds("static: A runs alone from step", "11", alone, b.last + 1 == 11)
    outcome.add(Row("static: B's answer is back after step", "-", f"{b.back}", "shown", "the batch returns as one"))
    c, d = continuous.stays["C"], continuous.stays["D"]
    outcome.holds("continuous: C joins at step", "11", f"{c.first}", c.first == 11)
    outcome.holds("continuous: D joins when C leaves, at step", "101", f"{d.first}", d.first == 101 == c.last + 1)
    text = f"{static.steps} static, {continuous.steps} continuous"
    outcome.add(Row("steps for all four", "-", text, "shown"))
    shares = [1 - one.wasted / (2 * one.steps) for one in (static, continuous)]
    text = f"{100 * shares[0]:.0f} % static, {100 * shares[1]:.0f} % continuous"
    outcome.add(Row("places in the batch that make a token", "-", text, "shown"))
    late = f"C at step {ahead.stays['C'].first + 1}, D at {ahead.stays['D'].first + 1}"
    note = "the next step is planned while the one before runs, so that an end is known one step later"
    outcome.add(Row("asynchronous scheduling, first token of", "-", late, "shown", note))
    outcome.notes.append("a step makes one token of each request in the batch; the prompt is part of the first")
    longest = max(static.steps, continuous.steps)
    outcome.figures += [_figure("static", static, longest), _figure("continuous", continuous, longest)]
    return outcome


def play(given: Given, scheduler: str, asynchronous: bool = False) -> Played:
    """Serve the requests, which are all present at the start."""
    names, outputs = list(given["outputs"]), list(given["outputs"].values())
    n = len(names)
    trace = Trace.from_lengths(
        "".join(names), np.zeros(n, dtype=np.int64), np.full(n, given["prompt"]), np.array(outputs)
    )
    engine = {**given["base"]["engine"], "async_scheduling": asynchronous}
    result = simulate({**given["base"], "engine": engine}, scheduler=scheduler, trace=trace)
    start, end = result.steps["start_ns"].to_numpy(), result.steps["end_ns"].to_numpy()
    stays = {}
    for name, (_, row) in zip(names, result.requests.iterrows(), strict=True):
        first = int(np.searchsorted(start, row["scheduled_ns"], side="right"))
        last, back = (int(np.searchsorted(end, row[column])) + 1 for column in ("last_token_ns", "finished_ns"))
        stays[name] = Stay(first, last, back)
    steps = len(start)
    return Played(stays, steps, 2 * steps - sum(outputs), result.summary["duration_s"])


def _figure(name: str, played: Played, until: int) -> Spans:
    """Return a figure with a line for each batch slot: the requests in it, over `until` steps."""
    places: dict[str, list[tuple[float, float, str]]] = {"place 1": [], "place 2": []}
    for who, stay in played.stays.items():
        free = next((spans for spans in places.values() if not spans or spans[-1][1] < stay.first), None)
        if free is not None:
            free.append((stay.first - 1, stay.last, who))
    said = "; ".join(f"{who} in steps {stay.first} to {stay.last}" for who, stay in played.stays.items())
    return Spans(
        name=name,
        title=f"{name.capitalize()} batching, places of the batch",
        alt=f"{said}; {played.steps} steps in all.",
        x_label="step",
        rows=places,
        series=tuple(played.stays),
        until=until,
    )
