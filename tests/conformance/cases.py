"""What a case says, as requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from servesim.contracts import Request

Case = dict[str, Any]


def expand(spec: dict[str, Any]) -> list[int]:
    if "repeat" in spec:
        return [t for t, n in spec["repeat"] for _ in range(n)]
    if "range" in spec:
        return list(range(*spec["range"]))
    return list(spec["list"])


class Tokens:
    """Content that is what it says: token ids, prompt and output."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def prefix_key(self, stop: int) -> tuple[int, ...]:
        assert stop <= len(self.ids)
        return tuple(self.ids[:stop])


def perform(run: object, number: int, op: Case) -> dict[str, Any]:
    """Perform one operation of a script; return what can be expected of it. Fail in one line if it is of a kind that
    the runner does not know."""
    method = getattr(run, f"op_{op.get('op')}", None)
    if method is None:
        known = (name.removeprefix("op_") for name in dir(run) if name.startswith("op_"))
        pytest.fail(f"op {number}: unknown kind {op.get('op')!r}, must be one of {', '.join(known)}", pytrace=False)
    seen: dict[str, Any] = method(op)
    return seen


def value_of(seen: Mapping[str, Any], key: str, number: int, op: Case) -> Any:
    """Return the value of a key that is expected. Fail in one line if the runner does not know it."""
    if key not in seen:
        known = ", ".join(sorted(seen))
        pytest.fail(f"op {number} ({op['op']}): unknown key {key!r} in expect, must be one of {known}", pytrace=False)
    return seen[key]


def make_requests(specs: Iterable[dict[str, Any]]) -> dict[str, Request]:
    requests = {}
    for row, spec in enumerate(specs):
        ids = expand(spec["tokens"])
        requests[spec["id"]] = Request(
            row=row,
            name=spec["id"],
            prompt_len=len(ids),
            max_tokens=spec.get("max_tokens", 16),
            arrival_ns=int(spec.get("arrival", 0) * 1e9),
            priority=spec.get("priority", 0),
            salt=spec.get("salt", ""),
            content=Tokens(ids),
        )
    return requests
