"""The approximate prefix tree of SGLang's routers: which text was sent to which replica, as far as a router can know.

A radix tree over prompts (sglang-router 0.3.2, src/tree.rs, and its successors). The original compares characters;
nodes here store the content identity of every prefix (`PrefixIdentity.prefix_key`) instead, so that a step down the
tree is one comparison, and the point at which two prompts diverge is found by bisection. Lengths are in the unit of the
prompts.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable

from servesim.contracts.kv_events import key_of
from servesim.contracts.request import PrefixIdentity, Request

REFRESH_EVERY = 8
"""Interval, in epochs, at which a match refreshes the last use of the node it found."""


class Node:
    """The part of prompts from `start` to `end`, and the tenants that received it."""

    __slots__ = ("children", "content", "creator", "end", "end_key", "key", "parent", "salt", "start", "tenants")

    def __init__(
        self, parent: Node | None, start: int, end: int, content: PrefixIdentity | None, salt: str, creator: int | None
    ) -> None:
        self.parent = parent
        self.start = start
        self.end = end
        self.content, self.salt = content, salt
        """Content and salt of the request for which it was first inserted."""
        self.key: Hashable = _prefix(content, salt, start + 1) if content is not None else None
        """Key under which the parent stores this node: the prefix up to the node's first token."""
        self.end_key: Hashable = _prefix(content, salt, end) if content is not None else None
        """Key of the prefix up to the node's end."""
        self.creator = creator
        """Tenant that owns the node: its creator, as long as the creator is among its tenants."""
        self.children: dict[Hashable, Node] = {}
        self.tenants: dict[int, int] = {}
        """Tenants with the epoch of their last use."""


class Match:
    """The longest prefix of a prompt in the tree."""

    __slots__ = ("inserts", "length", "node", "request")

    def __init__(self, request: Request, node: Node, length: int, inserts: int) -> None:
        self.request = request
        self.node = node
        """Node in which the match ends; the node's end may lie beyond it."""
        self.length = length
        self.inserts = inserts
        """Number of insertions before the match; later ones may have invalidated it."""


class TenantTree:
    """Prefixes with the tenants that received them; a tenant of a node is also a tenant of all its ancestors."""

    def __init__(self, tenants: int) -> None:
        self.root = Node(None, 0, 0, None, "", None)
        self.sizes: dict[int, int] = {}
        """Total length of each tenant's nodes."""
        self._epoch = 0
        self._inserts = 0
        for tenant in range(tenants):
            self.add(tenant)

    def add(self, tenant: int) -> None:
        """Add a tenant that has received nothing yet."""
        self.sizes.setdefault(tenant, 0)
        self.root.tenants[tenant] = self._tick()

    def match(self, request: Request) -> Match:
        """Return the longest prefix of a prompt in the tree. This counts as a use."""
        found = self._find(request)
        tenant = self.owner(found.node)
        epoch = self._tick()
        if tenant is not None and epoch % REFRESH_EVERY == 0:
            found.node.tenants[tenant] = epoch
        return found

    def owner(self, node: Node) -> int | None:
        """Return the tenant that owns a node, or None if it has no tenants."""
        if node.creator is None or node.creator not in node.tenants:
            node.creator = next(iter(node.tenants), None)
        return node.creator

    def insert(self, request: Request, tenant: int, found: Match | None = None) -> None:
        """Insert a prompt for a tenant. `found` is an earlier match of the prompt, which saves the search."""
        if found is None or found.request is not request or found.inserts != self._inserts:
            found = self._find(request)
        self._inserts += 1
        node = found.node
        if node.end > found.length:
            node = self._split(node, found.length)
        if request.content is not None and found.length < request.prompt_len:
            leaf = Node(node, found.length, request.prompt_len, request.content, request.salt, tenant)
            node.children[leaf.key] = leaf
            node = leaf
        above: Node | None = node
        while above is not None and tenant not in above.tenants:
            above.tenants[tenant] = 0
            self.sizes[tenant] = self.sizes.get(tenant, 0) + above.end - above.start
            above = above.parent
        node.tenants[tenant] = self._tick()

    def evict(self, limit: int) -> None:
        """Drop the least recently used leaves of each tenant whose size exceeds `limit`, until it no longer does."""
        for tenant, size in self.sizes.items():
            if size > limit:
                self._evict(tenant, limit)

    def remove(self, tenant: int) -> None:
        """Remove a tenant."""
        if tenant in self.sizes:
            self._evict(tenant, -1)
            del self.sizes[tenant]
            self.root.tenants.pop(tenant, None)

    def _evict(self, tenant: int, limit: int) -> None:
        heap: list[tuple[int, int, Node]] = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            below = [child for child in node.children.values() if tenant in child.tenants]
            stack += below
            if not below and node is not self.root:
                heap.append((node.tenants[tenant], len(heap), node))
        heapq.heapify(heap)
        order = len(heap)
        while heap and self.sizes[tenant] > limit:
            _, _, node = heapq.heappop(heap)
            parent = node.parent
            assert parent is not None
            del node.tenants[tenant]
            self.sizes[tenant] -= node.end - node.start
            if not node.tenants:
                del parent.children[node.key]
            if parent is not self.root and not any(tenant in child.tenants for child in parent.children.values()):
                heapq.heappush(heap, (parent.tenants[tenant], order, parent))
                order += 1
        self._inserts += 1  # invalidates earlier matches

    def _find(self, request: Request) -> Match:
        node, length = self.root, 0
        while request.content is not None and length < request.prompt_len:
            child = node.children.get(_prefix(request.content, request.salt, length + 1))
            if child is None:
                break
            node = child
            if child.end > request.prompt_len or _prefix(request.content, request.salt, child.end) != child.end_key:
                length = _common(child, request)
                break
            length = child.end
        return Match(request, node, length, self._inserts)

    def _split(self, node: Node, length: int) -> Node:
        """Split a node where a prompt diverges from it after `length` tokens; return the upper one."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.start, length, node.content, node.salt, node.creator)
        upper.tenants = dict(node.tenants)
        parent.children[node.key] = upper
        node.parent, node.start = upper, length
        node.key = _prefix(node.content, node.salt, length + 1)
        upper.children[node.key] = node
        return upper

    def _tick(self) -> int:
        self._epoch += 1
        return self._epoch - 1


def _prefix(content: PrefixIdentity | None, salt: str, stop: int) -> Hashable:
    """Return the identity of a prompt's first `stop` tokens."""
    assert content is not None
    return key_of(content.prefix_key(stop), salt)


def _common(node: Node, request: Request) -> int:
    """Return the position up to which a prompt agrees with a node that has the same token at `node.start`."""
    low, high = node.start + 1, min(node.end, request.prompt_len)
    while low < high:
        middle = (low + high + 1) // 2
        if _prefix(request.content, request.salt, middle) == _prefix(node.content, node.salt, middle):
            low = middle
        else:
            high = middle - 1
    return low
