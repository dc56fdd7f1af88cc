"""Ray Serve's PrefixCacheAffinityRouter (Ray 2.60), as a router of one's own: --router docs/ray_prefix.py:RayPrefix.

A prompt of which too little is known goes to the replica that was sent the least text, any other to those that were
sent its longest known prefix; among them to the one with the fewest requests in flight. Nodes of the tree know their
prefix by its content, not by characters; sizes are in the unit of the prompts.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts import ReplicaView, Request, Router, ready


@dataclass(frozen=True)
class Params:
    """Thresholds, with Ray's defaults."""

    match_rate_threshold: float = 0.1
    eviction_threshold_chars: int | None = None
    """Size of a replica's prompts above which the least recently used go; None: nothing is forgotten."""
    eviction_target_chars: int | None = None
    eviction_interval_s: float = 10


class Node:
    """Positions start to end of the prompt of `origin`, with the time at which each replica was last sent them."""

    def __init__(self, parent: "Node | None", start: int, end: int, origin: Request | None) -> None:
        self.parent, self.start, self.end, self.origin = parent, start, end, origin
        self.children: dict[Hashable, Node] = {}
        self.sent: dict[int, int] = {}


class RayPrefix(Router):
    """The emptiest of the replicas that know most of the prompt, or, where that is little, know least of all."""

    Params = Params

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.load = [0] * num_replicas
        self.sizes = [0] * num_replicas
        self.root = Node(None, 0, 0, None)
        self._now = 0
        self._evict_ns = 0

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> list[int]:
        """Return the replicas of which the emptiest gets the request."""
        choices = ready(views)
        matched, node = self.match(request)
        holders = [i for i in choices if i in node.sent]
        if matched and holders and matched / request.prompt_len >= self.params.match_rate_threshold:
            return holders
        least = min(self.sizes[i] for i in choices)
        return [i for i in choices if self.sizes[i] == least]

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        self._evict_if_due(self.clock())
        return min(self.candidates(request, views), key=lambda i: (self.load[i], i))

    def on_sent(self, request: Request, replica: int) -> None:
        self.load[replica] += 1
        self.insert(request, replica)

    def on_finish(self, request: Request, replica: int, status: str) -> None:
        self.load[replica] -= 1

    def match(self, request: Request) -> tuple[int, Node]:
        """Return how much of a prompt is in the tree, and the node in which that ends."""
        node, length = self.root, 0
        while request.content is not None and length < request.prompt_len:
            child = node.children.get(request.content.prefix_key(length + 1))
            if child is None:
                break
            node, stop = child, min(child.end, request.prompt_len)
            while length < stop:  # bisection: equal up to `length`
                middle = (length + stop + 1) // 2
                if request.content.prefix_key(stop) == prefix(child, stop):
                    length = stop
                elif request.content.prefix_key(middle) == prefix(child, middle):
                    length, stop = middle, stop - 1
                else:
                    stop = middle - 1
            if length < child.end:
                break
        return length, node

    def insert(self, request: Request, replica: int) -> None:
        """Enter a prompt that a replica was sent."""
        length, node = self.match(request)
        if length < node.end:
            node = self._split(node, length)
        if request.content is not None and length < request.prompt_len:
            leaf = Node(node, length, request.prompt_len, request)
            node.children[prefix(leaf, length + 1)] = leaf
            node = leaf
        self._now += 1
        above: Node | None = node
        while above is not None:
            if replica not in above.sent:
                self.sizes[replica] += above.end - above.start
            above.sent[replica] = self._now
            above = above.parent

    def evict(self, replica: int, at_least: int) -> int:
        """Forget what a replica was sent longest ago, and all that was sent it at the same time, until at least so much
        is gone; return how much is."""
        nodes, stack = [], list(self.root.children.values())
        while stack:
            node = stack.pop()
            if replica in node.sent:
                nodes.append(node)
                stack += node.children.values()
        nodes.sort(key=lambda node: (node.sent[replica], -node.end))
        gone, last = 0, 0
        for node in nodes:
            if gone >= at_least and node.sent[replica] != last:
                break
            last = node.sent.pop(replica)
            gone += node.end - node.start
            if not node.sent and not node.children and node.parent is not None:
                del node.parent.children[prefix(node, node.start + 1)]
        self.sizes[replica] -= gone
        return gone

    def _split(self, node: Node, length: int) -> Node:
        assert node.parent is not None
        upper = Node(node.parent, node.start, length, node.origin)
        upper.sent = dict(node.sent)
        node.parent.children[prefix(node, node.start + 1)] = upper
        node.parent, node.start = upper, length
        upper.children[prefix(node, length + 1)] = node
        return upper

    def _evict_if_due(self, now_ns: int) -> None:
        limit, target = self.params.eviction_threshold_chars, self.params.eviction_target_chars
        if limit is None or now_ns < self._evict_ns:
            return
        self._evict_ns = now_ns + round(self.params.eviction_interval_s * 1e9)
        for replica, size in enumerate(self.sizes):
            if size > limit:
                self.evict(replica, size - (limit if target is None else target))


def prefix(node: Node, stop: int) -> Hashable:
    """Return the identity of a node's prompt up to `stop`."""
    assert node.origin is not None
    assert node.origin.content is not None
    return node.origin.content.prefix_key(stop)
