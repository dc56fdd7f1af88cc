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
        _of("times", "how many times the usual rate it is", schema=NUMBER),
        _of("requests", "requests that came in it"),
        _of("most_waiting", "the most that waited at once since it began"),
        _of("most_waiting_before", "the most that waited at once before it"),
        _of("recovery_s", "from its end until no more requests wait than at most before it: 0 at once, `null` not "
            "within the run", "s", FIGURE),
        _of("waited", "requests that came from its beginning until then, and waited longer than any before it"),
        _of("rows", "first and last row of those requests", schema=or_null(a_list(COUNT))),
        _of("longest_wait_ms", "longest wait of a request of the burst", "ms", NUMBER),
        _of("longest_wait_before_ms", "longest wait of a request before it", "ms", NUMBER),
        Figure("held", "with `--burst-replicas`: `replicas` that would have absorbed it (`null`: not even the most), "
               "the `share` of its requests that fare well with them, the `runs` it took", lambda one: one.get("held"),
               schema=HELD, optional=True),
    ),
    doc="Of each burst that the shape adds (`--shape burst:...`).",
    rows=(),
    many=a_list,
)  # fmt: skip
