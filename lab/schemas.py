"""JSON schemas of the laboratory commands' output."""

from __future__ import annotations

from servesim.schemas import TEXT, Schema, a_list, an_object


def reproduce() -> Schema:
    """Return the schema of `servesim reproduce --json`: with --list, the experiments; otherwise, their results."""
    row = an_object(what=TEXT, published=TEXT, simulated=TEXT, verdict=TEXT, note=TEXT)
    document = an_object(
        name=TEXT, claim=TEXT, rows=a_list(row), notes=a_list(TEXT), figures=a_list(an_object(kind=TEXT))
    )
    known = an_object(name=TEXT, about=TEXT, claim=TEXT, source=TEXT)
    return {"anyOf": [an_object(experiments=a_list(known)), an_object(documents=a_list(document))]}
