"""JSON schemas in short form: for the output of commands, and for the sections that features add to a summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
FIGURE: Schema = {"type": ["number", "null"]}
"""Schema of a number, or null if it is undefined."""
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def an_object(may: Mapping[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    """Return the schema of an object with these keys, and possibly more. `may`: optional keys."""
    return {"type": "object", "properties": {**fields, **(may or {})}, "required": sorted(fields)}


def a_map(values: Schema) -> Schema:
    """Return the schema of an object whose keys are names."""
    return {"type": "object", "additionalProperties": values}


def a_list(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def or_null(one: Schema) -> Schema:
    """Return a schema that also allows null."""
    return {"anyOf": [one, {"type": "null"}]}


def figures(names: str) -> Schema:
    """Return the schema of an object with figures of these names."""
    return an_object(**dict.fromkeys(names.split(), FIGURE))


DISTRIBUTION = or_null(figures("count mean std min max p50 p90 p95 p99"))
"""Schema of the result of servesim.metrics.distribution.describe."""
