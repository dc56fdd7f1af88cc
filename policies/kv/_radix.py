"""The radix tree of SGLang 0.5.23 (srt/mem_cache/unified_radix_cache.py): cached prefixes as runs of tokens.

SGLang compares token by token. Nodes here instead store the content identity of every prefix
(`PrefixIdentity.prefix_key`): a step down the tree is one comparison, and the point at which two runs diverge is found
by bisection.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from servesim.contracts.request import PrefixIdentity


class Node:
    """A run of tokens that follows its parent's run: positions start to end of `content`."""

    __slots__ = (
        "children", "content", "created", "end", "end_key", "history", "hits", "key", "last_access", "locks",
        "parent", "priority", "salt", "start",
    )  # fmt: skip

    def __init__(self, parent: Node | None, content: PrefixIdentity, start: int, end: int, now: int) -> None:
        self.parent = parent
        self.children: dict[Hashable, Node] = {}
        self.content = content
        self.start = start
        self.end = end
        self.key: Hashable = None
        """Key under which the parent stores this node: the prefix up to the end of the node's first page."""
        self.end_key: Hashable = None
        """Key of the prefix up to the node's end."""
        self.locks = 0
        """Number of requests that hold the node or one below it."""
        self.created = self.last_access = now
        self.hits = 0
        self.history = end
        """Length in tokens of the longest prefix that ever passed through the node, evicted or not: the history of a
        conversation."""
        self.priority = 0
        """Highest priority among the requests that inserted tokens at or below the node."""
        self.salt = ""
        """Salt of the requests that share it."""

    def path(self) -> Iterator[Node]:
        """Yield this node and its ancestors, excluding the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


Rank = Callable[[Node], tuple[int, int]]


def tail_optimized(threshold: int, next_prompt_estimate: int) -> Rank:
    """Return a function that ranks leaves by T-LRU (Zhang et al., Tail-Optimized Caching for LLM Inference, NeurIPS
    2025, arXiv 2510.15152; SGLang's TLRUStrategy). In a conversation of L tokens whose next prompt adds Q, L + Q -
    threshold tokens must stay cached so that no more than `threshold` tokens of that prompt are computed. Tokens beyond
    those are evicted first, then the least recently used."""

    def rank(node: Node) -> tuple[int, int]:
        spare = node.start >= max(node.history + next_prompt_estimate - threshold, 0)
        return (-spare, node.last_access)

    return rank


STRATEGIES: dict[str, Rank] = {
    "lru": lambda node: (0, node.last_access),
    "lfu": lambda node: (node.hits, node.last_access),
    "slru": lambda node: (node.hits >= 2, node.last_access),  # found again after insertion: protected
    "priority": lambda node: (node.priority, node.last_access),
    "tlru": tail_optimized(0, 0),
}
"""Eviction strategies; the leaf with the lowest rank is evicted first."""


class _Nothing:
    """Content of the root."""

    def prefix_key(self, stop: int) -> Hashable:
        return ()


class RadixTree:
    """Tree of prefixes in whole pages. Only leaves that no request holds are evicted, each as a whole; sizes are in
    tokens.

    Time is a counter; like SGLang's clock, it never returns the same time twice.
    """

    def __init__(self, page_size: int = 1, eviction_policy: str | Rank = "lru") -> None:
        """Start with an empty tree. `eviction_policy` is one of STRATEGIES, or a function that ranks leaves."""
        self.page_size = page_size
        self._rank = STRATEGIES[eviction_policy] if isinstance(eviction_policy, str) else eviction_policy
        self.reset()

    def reset(self) -> None:
        """Clear the tree."""
        self._now = 0
        self.root = Node(None, _Nothing(), 0, 0, 0)
        self.evictable = 0
        """Tokens that no request holds."""
        self.protected = 0
        """Tokens of nodes that are held or have a held descendant."""
        self._leaves: dict[Node, None] = {}  # evictable leaves
        self._heap: list[tuple[tuple[int, int], int, Node]] = []  # may include outdated entries

    @property
    def total(self) -> int:
        """Tokens in the tree."""
        return self.evictable + self.protected

    def find(self, content: PrefixIdentity, limit: int, salt: str = "") -> tuple[int, Node]:
        """Return how many of the first `limit` tokens are in the tree, in whole pages, and the node in which they end
        (its end may lie beyond them). This changes nothing."""
        limit -= limit % self.page_size
        node, length = self.root, 0
        while length < limit:
            child = node.children.get(self._key(content, length, salt))
            if child is None:
                break
            node = child
            if child.end > limit or content.prefix_key(child.end) != child.end_key:
                return self._common(child, content, min(child.end, limit)), child
            length = child.end
        return length, node

    def match(self, content: PrefixIdentity, limit: int, salt: str = "") -> Node:
        """Return the node at which the longest match of the first `limit` tokens ends, splitting a node if needed. This
        counts as a use of the prefix."""
        length, node = self.find(content, limit, salt)
        self.touch(node)
        return node if node.end == length else self._split(node, length)

    def insert(
        self, content: PrefixIdentity, length: int, salt: str = "", priority: int = 0, *, inserted_len: int = 0
    ) -> tuple[int, Node]:
        """Insert the first `length` tokens, in whole pages; return how many of them were already there, and the node at
        which they end. Tokens before `inserted_len` were inserted earlier by the same request, and do not count as a
        hit again."""
        length -= length % self.page_size
        found, node = self.find(content, length, salt)
        self.touch(node)
        if node.end > found:
            node = self._split(node, found)
        if length > found:
            leaf = Node(node, content, found, length, self._tick())
            leaf.key, leaf.end_key = self._key(content, found, salt), content.prefix_key(length)
            leaf.priority, leaf.salt = priority, salt
            node.children[leaf.key] = leaf
            self.evictable += length - found
            self._note(node)
            node = leaf
        for each in node.path():
            each.priority = max(each.priority, priority)
            each.history = max(each.history, length)
            each.hits += each.end > inserted_len
        self._note(node)
        return found, node

    def touch(self, node: Node) -> None:
        """Record a use of the prefix that ends at a node."""
        now = self._tick()
        for each in node.path():
            each.last_access = now
        self._note(node)

    def lock(self, node: Node) -> None:
        """Protect a node and its ancestors from eviction."""
        for each in node.path():
            if each.locks == 0:
                self.evictable -= each.end - each.start
                self.protected += each.end - each.start
            each.locks += 1
        self._note(node)

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        for each in node.path():
            each.locks -= 1
            if each.locks == 0:
                self.evictable += each.end - each.start
                self.protected -= each.end - each.start
        self._note(node)

    def idle_tokens(self, length: int, node: Node) -> int:
        """Return how many of the first `length` tokens, which end in `node`, are not held by any request."""
        idle = 0
        for each in node.path():
            if each.locks:
                break
            idle += max(min(each.end, length) - each.start, 0)
        return idle

    def evict(self, num_tokens: int) -> list[Node]:
        """Evict leaves until `num_tokens` tokens are freed or no evictable leaf is left; return the evicted leaves."""
        evicted: list[Node] = []
        while num_tokens > 0 and self._leaves:
            rank, _, leaf = heapq.heappop(self._heap)
            if leaf not in self._leaves or rank != self._rank(leaf):
                continue  # stale: the leaf has since been used, locked, extended or dropped
            parent = leaf.parent
            assert parent is not None
            del self._leaves[leaf]
            del parent.children[leaf.key]
            self.evictable -= leaf.end - leaf.start
            num_tokens -= leaf.end - leaf.start
            evicted.append(leaf)
            self._note(parent)
        return evicted

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes except the root, parents first."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield from node.children.values()
            stack.extend(node.children.values())

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        sizes = {True: 0, False: 0}
        for node in self.nodes():
            parent: Any = node.parent
            assert node.start == parent.end, "a node does not continue its parent"
            assert node.end > node.start, "an empty node"
            assert node.end % self.page_size == 0, "a node ends within a page"
            assert node.end_key == node.content.prefix_key(node.end), "the end_key of a node does not match its end"
            assert parent.children[node.key] is node, "a node cannot be found"
            assert node.locks >= sum(child.locks for child in node.children.values()), (
                "a node has fewer holders than its children"
            )
            assert (node in self._leaves) == (not node.locks and not node.children), "leaves miscounted"
            sizes[node.locks > 0] += node.end - node.start
        assert (sizes[False], sizes[True]) == (self.evictable, self.protected), "tokens miscounted"
        entries = {(rank, leaf) for rank, _, leaf in self._heap}
        assert all((self._rank(leaf), leaf) in entries for leaf in self._leaves), "a leaf cannot be evicted"

    def _key(self, content: PrefixIdentity, start: int, salt: str) -> Hashable:
        """Return the identity of the first page after `start`; prompts with different salts diverge at the root."""
        key = content.prefix_key(start + self.page_size)
        return (salt, key) if salt and not start else key

    def _common(self, node: Node, content: PrefixIdentity, most: int) -> int:
        """Return how many tokens some content shares with a node that has the same first page."""
        page = self.page_size
        low, high = node.start // page + 1, most // page
        while low < high:
            middle = (low + high + 1) // 2
            if content.prefix_key(middle * page) == node.content.prefix_key(middle * page):
                low = middle
            else:
                high = middle - 1
        return low * page

    def _split(self, node: Node, at: int) -> Node:
        """Split a node in two and return the upper half, which copies its locks and hits."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.content, node.start, at, self._tick())
        upper.key, upper.end_key = node.key, node.content.prefix_key(at)
        upper.locks, upper.hits, upper.priority = node.locks, node.hits, node.priority
        upper.history, upper.salt = node.history, node.salt
        parent.children[upper.key] = upper
        node.parent, node.start = upper, at
        node.key = node.content.prefix_key(at + self.page_size)
        upper.children[node.key] = node
        self._note(node)
        return upper

    def _note(self, node: Node) -> None:
        """Record a change to a node that affects whether and when it is evicted."""
        if node.locks or node.children or node.parent is None:
            self._leaves.pop(node, None)
            return
        self._leaves[node] = None
        if len(self._heap) > 4 * len(self._leaves) + 64:
            self._heap = [(self._rank(leaf), leaf.created, leaf) for leaf in self._leaves]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (self._rank(node), node.created, node))

    def _tick(self) -> int:
        self._now += 1
        return self._now
