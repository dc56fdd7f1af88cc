"""Identities of the blocks that requests fill, for memory that looks up KV by its content."""

from __future__ import annotations

from collections.abc import Hashable

from servesim.contracts.kv_events import key_of
from servesim.contracts.request import Request, State
from servesim.workload.content import RunContent


class ContentKeys:
    """Identities of requests' blocks of `block_tokens` tokens, in order. If the trace does not give a request's
    content, only the request itself can find its blocks."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._keys: dict[Request, list[Hashable]] = {}
        self._forget_at = 256

    def of(self, request: Request, count: int) -> list[Hashable]:
        """Return the identities of at least the first `count` blocks of a request."""
        keys = self._keys.setdefault(request, [])
        if len(keys) >= count:
            return keys
        size, content = self.block_tokens, request.content
        ends = range((len(keys) + 1) * size, count * size + 1, size)
        if content is None:
            # Numbers below those of a trace's content, because tuples would cost the garbage collector a visit each.
            own = -((request.row << 20 | request.sample + 1) << 32)
            keys.extend(range(own - ends.start, own - ends.stop, -size))
        elif isinstance(content, RunContent) and not request.salt:
            keys += content.prefix_keys(ends)
        else:
            keys += [key_of(content.prefix_key(end), request.salt) for end in ends]
        return keys

    def gone(self) -> list[Request]:
        """Forget and return the requests that have left. This is done only when many are kept; otherwise, return an
        empty list."""
        if len(self._keys) < self._forget_at:
            return []
        left = [request for request in self._keys if request.state >= State.FINISHED]
        for request in left:
            del self._keys[request]
        self._forget_at = 2 * len(self._keys) + 256
        return left

    def requests(self) -> list[Request]:
        """Return the requests whose identities are kept."""
        return list(self._keys)
