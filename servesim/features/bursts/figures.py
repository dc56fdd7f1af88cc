"""Figures of a burst."""

from __future__ import annotations

from operator import itemgetter

from servesim.contracts.figures import Figure, Group
from servesim.schemas import COUNT, FIGURE, NUMBER, TEXT, Schema, a_list, an_object, or_null

HELD = an_object(replicas={"type": ["integer", "null"]}, share=FIGURE, runs=COUNT, says=TEXT)


def _of(name: str, doc: str, unit: str = "", schema: Schema = COUNT) -> Figure:
    return Figure(name, doc, itemgetter(name), unit, schema)


BURSTS = Group(
    "bursts",
    "bursts",
    (
        _of("at_s", "time at which the burst begins", "s", NUMBER),
        _of("for_s", "duration of the burst", "s", NUMBER),
        _of("times", "rate during the burst as a multiple of the usual rate", schema=NUMBER),
        _of("requests", "number of requests that arrived during the burst"),
        _of("most_waiting", "largest number of requests that waited at the same time after the burst began"),
        _of("most_waiting_before", "largest number of requests that waited at the same time before the burst"),
        _of("recovery_s", (
            "time from the end of the burst until the queue has shrunk to at most its maximum before the burst. 0 "
            "if the queue recovers immediately, `null` if it does not recover within the run"
        ), "s", FIGURE),
        _of("waited", (
            "number of requests that arrived between the start of the burst and the recovery, and that waited longer "
            "than any "
            "request before the burst"
        )),
        _of("rows", "first and last row of these requests", schema=or_null(a_list(COUNT))),
        _of("longest_wait_ms", "longest time that one of these requests waited, or 0 if there are none", "ms", NUMBER),
        _of("longest_wait_before_ms", "longest time that a request waited before the burst", "ms", NUMBER),
        Figure("held",
               "result of `--burst-replicas`: the number of `replicas` that would have absorbed the burst (`null` if "
               "even the maximum tried would not have), the `share` of the burst's requests that this number serves "
               "well, and the number of `runs` that the search took", lambda one: one.get("held"), schema=HELD,
               optional=True),
    ),
    doc="Figures for each burst that `--shape burst:...` adds.",
    rows=(),
    many=a_list,
)  # fmt: skip
