"""What a case says, as requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
