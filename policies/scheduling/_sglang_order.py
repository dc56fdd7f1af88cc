"""Orderings of SGLang's waiting queue (0.5.23: srt/managers/schedule_policy.py, SchedulePolicy)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from servesim import draws
from servesim.contracts import Hit, Request

MATCH_LIMIT = 128
"""Number of waiting requests above which LPM and HRRN skip prefix matching and leave the queue as it is."""
IN_BATCH_CHECK = 32
"""Maximum number of cached tokens at which a waiting request is compared with those before it in the queue."""
IN_BATCH_DEPRIORITIZE = 32
"""Number of shared tokens at which such a request is postponed, since the requests before it will cache them."""
CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
POLICIES = ("fcfs", "lof", "random", *CACHE_AWARE)

Lookup = Callable[[Request], Hit]


def order(
    policy: str,
    waiting: Sequence[Request],
    lookup: Lookup,
    *,
    waited: Callable[[Request], int] = lambda request: 0,
    draw: int = 0,
    priority: Callable[[Request], int] | None = None,
) -> list[Request]:
    """Return the queue in the order of `policy`; ties keep their order. `waited` is the number of prefill tokens
    processed since a request arrived, `draw` selects the shuffle, and `priority` ranks requests, lowest first (with
    fcfs and lof)."""
    first = priority or (lambda request: 0)
    if policy == "lof":
        return sorted(waiting, key=lambda r: (first(r), -r.max_tokens))
    if policy == "random":
        return sorted(waiting, key=lambda r: draws.uniform_one(0, "sglang random order", r.row, draw))
    if policy == "fcfs" or (policy in ("lpm", "hrrn") and len(waiting) > MATCH_LIMIT):
        by_arrival = priority is not None and policy == "fcfs"
        return sorted(waiting, key=first) if by_arrival else list(waiting)
    hits = {r: lookup(r).num_tokens for r in waiting}
    if policy == "dfs-weight":
        return _depth_first(waiting, hits)
    later = _put_off(waiting, hits)
    key: Callable[[Request], Any]
    if policy == "lpm":
        key = lambda r: (r in later, -hits[r] if r not in later else 0)  # noqa: E731
    elif policy == "shortest-prefill-first":
        key = lambda r: (r in later, max(r.num_tokens - hits[r], 1), r.arrival_ns)  # noqa: E731
    else:
        key = lambda r: _response_ratio(r, max(r.prompt_len - hits[r], 0), waited(r), r in later)  # noqa: E731
    return sorted(waiting, key=key)


def _response_ratio(request: Request, uncached: int, waited: int, later: bool) -> tuple[float, str]:
    if later:
        return float("inf"), request.name
    return (-waited / uncached if uncached else -float("inf")), request.name


def _put_off(waiting: Sequence[Request], hits: dict[Request, int]) -> set[Request]:
    """Return the waiting requests that have little in the cache and share their beginning with an earlier one."""
    seen: set[Hashable] = set()
    later = set()
    for request in waiting:
        if hits[request] > IN_BATCH_CHECK or request.num_tokens < IN_BATCH_DEPRIORITIZE or request.content is None:
            continue
        beginning = (request.salt, request.content.prefix_key(IN_BATCH_DEPRIORITIZE))
        if beginning in seen:
            later.add(request)
        seen.add(beginning)
    return later


class _Node:
    """Cached prefix, `length` tokens long, of one or more waiting requests."""

    __slots__ = ("children", "ends", "example", "length", "weight")

    def __init__(self, length: int, example: Request) -> None:
        self.length = length
        self.example = example  # any waiting request with this prefix
        self.children: dict[Hashable, _Node] = {}
        self.ends: list[Request] = []
        self.weight = 0


def _depth_first(waiting: Sequence[Request], hits: dict[Request, int]) -> list[Request]:
    """Return the requests depth first through the tree of matched prefixes, the branch with the most requests first;
    each node's own requests come last."""
    root = _Node(0, waiting[0]) if waiting else None
    if root is None:
        return []
    for request in waiting:
        _insert(root, request, hits[request])
    ordered: list[Request] = []

    def visit(node: _Node) -> None:
        for child in sorted(node.children.values(), key=lambda n: -n.weight):
            visit(child)
        ordered.extend(node.ends)

    visit(root)
    return ordered


def _insert(node: _Node, request: Request, length: int) -> None:
    node.weight += 1
    while node.length < length:
        branch = _key(request, node.length + 1)
        child = node.children.get(branch)
        if child is None:
            child = node.children[branch] = _Node(length, request)
        common = _common(child.example, request, node.length + 1, min(child.length, length))
        if common < child.length:  # they diverge partway along the edge
            upper = node.children[branch] = _Node(common, child.example)
            upper.children[_key(child.example, common + 1)] = child
            upper.weight = child.weight
            child = upper
        child.weight += 1
        node = child
    node.ends.append(request)


def _key(request: Request, stop: int) -> Hashable:
    if request.content is None:
        return (request.row, stop)
    return (request.salt, request.content.prefix_key(stop))


def _common(a: Request, b: Request, low: int, high: int) -> int:
    """Return the length of the longest common prefix, known to be between `low` and `high`."""
    while low < high:
        middle = (low + high + 1) // 2
        if _key(a, middle) == _key(b, middle):
            low = middle
        else:
            high = middle - 1
    return low
