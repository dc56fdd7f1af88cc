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
        _of("at_s", "when it begins", "s", NUMBER),
        _of("for_s", "how long it lasts", "s", NUMBER),
        _of("times", "its rate as a multiple of the usual rate", schema=NUMBER),
        _of("requests", "requests that arrived during it"),
        _of("most_waiting", "largest number of requests waiting at once since it began"),
        _of("most_waiting_before", "largest number of requests waiting at once before it"),
        _of("recovery_s", (
            "from its end until no more requests wait than the maximum before it: 0 if immediately, `null` if not "
            "within the run"
        ), "s", FIGURE),
        _of("waited", (
            "requests that arrived from its beginning until that recovery, and waited longer than any before the "
            "burst"
        )),
        _of("rows", "first and last row of those requests", schema=or_null(a_list(COUNT))),
        _of("longest_wait_ms", "longest wait of a request of the burst", "ms", NUMBER),
        _of("longest_wait_before_ms", "longest wait of a request before the burst", "ms", NUMBER),
        Figure("held",
               "with `--burst-replicas`: `replicas` that would have absorbed it (`null`: not even the maximum tried), "
               "the `share` of its requests that are then served well, the `runs` it took", lambda one: one.get("held"),
               schema=HELD, optional=True),
    ),
    doc="Figures of each burst that the shape adds (`--shape burst:...`).",
    rows=(),
    many=a_list,
)  # fmt: skip
