"""Prefix cache of Dynamo's simulated SGLang (ai-dynamo-runtime 1.6.1), where it differs from SGLang's
(prefix_radix.py).

Only servesim_lab.dynamo.replay uses it. Its rules were checked against that simulator:

- Generated tokens enter the tree page by page while the request decodes, not when it has finished.
- A leaf that no other request holds grows in place, so a prompt and its output are one leaf.
- Only as many pages as needed are evicted from the least recently used leaf, the last ones first.
- A match that ends within a leaf does not use that leaf.
- Memory is allocated one token ahead: for the token that a step samples.
"""

from __future__ import annotations

import heapq
from typing import Any

from servesim.contracts.kv import Hit, KVMemory
from servesim.contracts.request import PrefixIdentity, Request, State
from servesim.policies.kv._radix import Node, RadixTree
from servesim.policies.kv.prefix_radix import PrefixRadix, _content, _Holding


class MockerTree(RadixTree):
    """Radix tree whose leaves grow in place and lose single pages."""

    def match(self, content: PrefixIdentity, limit: int, salt: str = "") -> Node:
        length, node = self.find(content, limit, salt)
        if node.end == length:
            self.touch(node)
            return node
        if node.parent is not None:
            self.touch(node.parent)
        return self._split_unused(node, length)

    def extend(self, held: Node, content: PrefixIdentity, length: int, salt: str = "") -> tuple[int, Node]:
        """Enter the tokens from the end of a node, which the caller holds, to `length` (whole pages, at least one).
        Return the number of tokens that were already there, and the node at which the tokens end."""
        self.touch(held)
        node, at = held, held.end
        while at < length:
            if node.parent is not None and not node.children and node.locks <= (node is held):
                self._grow(node, content, length)
                return at, node
            child = node.children.get(self._key(content, at, salt))
            if child is None:
                return at, self._append(node, content, at, length, salt)
            if child.end > length or content.prefix_key(child.end) != child.end_key:
                child = self._split_unused(child, self._common(child, content, min(child.end, length)))
            else:
                child.last_access = self._now
                self._note(child)
            node, at = child, child.end
        return at, node

    def trim(self, num_tokens: int) -> int:
        """Drop pages from the ends of leaves until `num_tokens` tokens are dropped or no evictable leaf is left; return
        the number of tokens dropped."""
        dropped = 0
        while dropped < num_tokens and self._leaves:
            rank, _, leaf = heapq.heappop(self._heap)
            if leaf not in self._leaves or rank != self._rank(leaf):
                continue  # stale: reused, locked, extended or dropped since
            parent, size = leaf.parent, leaf.end - leaf.start
            assert parent is not None
            wanted = -(-(num_tokens - dropped) // self.page_size) * self.page_size
            if wanted < size:
                leaf.end -= wanted
                leaf.end_key = leaf.content.prefix_key(leaf.end)
                size = wanted
                self._note(leaf)
            else:
                del self._leaves[leaf]
                del parent.children[leaf.key]
                self._note(parent)
            self.evictable -= size
            dropped += size
        return dropped

    def _split_unused(self, node: Node, at: int) -> Node:
        """Split a node in two that both keep its last access time; return the upper half."""
        upper = self._split(node, at)
        upper.last_access = node.last_access
        return upper

    def _grow(self, leaf: Node, content: PrefixIdentity, length: int) -> None:
        if leaf.locks:
            self.protected += length - leaf.end
        else:
            self.evictable += length - leaf.end
        leaf.content, leaf.end, leaf.end_key = content, length, content.prefix_key(length)
        leaf.last_access = self._now
        self._note(leaf)

    def _append(self, node: Node, content: PrefixIdentity, at: int, length: int, salt: str) -> Node:
        leaf = Node(node, content, at, length, self._tick())
        leaf.key, leaf.end_key, leaf.salt = self._key(content, at, salt), content.prefix_key(length), salt
        node.children[leaf.key] = leaf
        self.evictable += length - at
        self._note(node)
        self._note(leaf)
        return leaf


class MockerRadix(PrefixRadix):
    """Prefix caching by the rules above; the page size is `PrefixRadixParams.page_size`. It emits no events."""

    name = "mocker-radix"
    supports = frozenset()

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.leaves = self.tree = MockerTree(self.block_size)
        self._prefilled: list[Request] = []  # prompts that this step completes: first tokens get memory at its end

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        super().admit(request, hit, num_tokens, lookahead)
        if hit.num_tokens + num_tokens >= request.num_tokens:
            self._prefilled.append(request)

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        prompt_end = self._prefilling.get(request)
        if prompt_end is None:
            return super().grow(request, num_tokens, lookahead + 1) or super().grow(request, num_tokens, lookahead)
        done = super().grow(request, num_tokens, lookahead)
        if done and request.num_computed_tokens + num_tokens >= prompt_end:
            self._prefilled.append(request)
        return done

    def publish(self, request: Request, upto: int) -> None:
        self._reserve_first_tokens()
        held = self._held[request]
        prompt_end = self._prefilling.get(request)
        if prompt_end is None or upto >= prompt_end:
            self._prefilling.pop(request, None)
            upto = min(request.num_tokens, self.slots(request))  # includes the token just sampled
        self._enter(request, held, upto)

    def free(self, request: Request) -> None:
        held = self._held.pop(request)
        self._prefilling.pop(request, None)
        if request.state is State.RUNNING:
            slots = held.node.end + held.own
            self._enter(request, held, min(request.num_tokens, slots))
        self._pool += held.own
        self._own -= held.own
        self._shared -= held.node.end
        self.tree.unlock(held.node)

    def evict(self, num_tokens: int) -> None:
        self._pool += self.leaves.trim(num_tokens)

    def _reserve_first_tokens(self) -> None:
        for request in self._prefilled:
            goes_on = request in self._held and request.max_tokens - request.num_output_tokens > 0
            if goes_on and self._pages(request.num_tokens) - self.slots(request) <= self._free():
                self._take(request, request.num_tokens)
        self._prefilled.clear()

    def _enter(self, request: Request, held: _Holding, upto: int) -> None:
        before = held.node
        start, upto = before.end, upto - upto % self.block_size
        if upto <= start:
            return
        found, node = self.leaves.extend(before, _content(request), upto, request.salt)
        if node is not before:
            self.tree.lock(node)
            self.tree.unlock(before)
        held.node = node
        held.own -= upto - start
        self._own -= upto - start
        self._shared += upto - start
        self._pool += found - start


class MockerSource(MockerRadix):
    """Prefix cache of a prefill worker: a prompt can be found once its KV has been pulled, when its memory is freed."""

    name = "mocker-source"

    def publish(self, request: Request, upto: int) -> None:
        if upto < self._prefilling.get(request, 0):
            super().publish(request, upto)
        else:
            self._reserve_first_tokens()

    def free(self, request: Request) -> None:
        held = self._held[request]
        if self._prefilling.get(request) is not None and request.state is State.FINISHED:
            self._enter(request, held, min(request.num_tokens, self.slots(request)))
        super().free(request)
