"""Contiguous KV memory, reserved at admission for the maximum length of a request.

This models engines before PagedAttention: the baselines Orca (Max), Orca (Pow2), and Orca (Oracle) of the
PagedAttention paper (SOSP'23, section 6.1). Orca itself is from OSDI'22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servesim.contracts.kv import Hit, KVAllocator, KVMemory, Usage, kv_allocators
from servesim.contracts.request import Request
from servesim.errors import UserError

from ._address_space import AddressSpace, Buddies, Stretches


@dataclass(frozen=True)
class ContiguousParams:
    """Size and placement of reservations."""

    reservation: Literal["max", "pow2", "oracle"] = "max"
    """Size reserved for each request: max_model_len tokens; its prompt plus its true output length rounded up to a
    power of two; or exactly its prompt and output. The last two are oracles (and leave room for drafts that overrun the
    end)."""
    fit: Literal["buddy", "first", "best"] = "buddy"
    """Chunk placement: powers of two (buddy system), or chunks of the exact size in the first or smallest hole that
    fits."""
    compaction: bool = False
    """Whether to compact held memory if no single hole is large enough but all holes together are; the copy is charged
    to the step."""


@kv_allocators.register("contiguous")
class Contiguous(KVAllocator):
    """Contiguous reservations. Growth within a reservation never fails; growth beyond it fails for lack of memory. Free
    memory in holes too small for the mean chunk allocated so far counts as external waste. (Under "max" all chunks are
    the same size, so this is exactly the memory that no request can ever use.)"""

    Params = ContiguousParams
    params: ContiguousParams
    reserves = True

    def __init__(self, params: ContiguousParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.num_blocks, self.block_size = self.capacity_tokens, 1
        if params.reservation != "max":
            self.needs = frozenset({"output_len"})  # type: ignore[misc]
        size = self.capacity_tokens
        self.space: AddressSpace = Buddies(size) if params.fit == "buddy" else Stretches(size, params.fit == "best")
        chunk = self.space.chunk(self.max_model_len)
        if params.reservation == "max" and chunk > self.space.largest:
            raise UserError(
                f"kv {self.name}: reservation=max needs {chunk} contiguous tokens for max_model_len "
                f"{self.max_model_len}, but fit={params.fit} finds at most {self.space.largest} of the {size} tokens. "
                f"Set engine.max_model_len to {self.space.largest}."
            )
        self.chunks: dict[Request, tuple[int, int]] = {}  # start and size
        self._allocated = 0
        self._granted = self._grants = 0  # tokens and count of all chunks ever allocated
        self._external: int | None = None  # None: must be recounted

    def reservation(self, request: Request) -> int:
        """Return how many tokens are reserved for a request."""
        if self.params.reservation == "max":
            return self.max_model_len
        output = self.output_len(request)
        if self.params.reservation == "pow2":
            output = 1 << (output - 1).bit_length()
        return min(request.prompt_len + output + self.memory.overrun_tokens, self.max_model_len)

    def fits(self, request: Request) -> bool:
        return self.space.chunk(self.reservation(request)) <= self.space.largest

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        chunk = self._chunk(request, max(now_tokens, full_tokens))
        if chunk > self.capacity_tokens - self._allocated - reserve:
            return False
        if self.space.find(chunk) is not None:
            return True
        return self.params.compaction and self.space.compacted(self.chunks)[0].find(chunk) is not None

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        chunk = self._chunk(request, num_tokens + lookahead)
        if self.space.find(chunk) is None:
            self._compact()
        self.chunks[request] = self.space.take(chunk), chunk
        self._allocated += chunk
        self._granted += chunk
        self._grants += 1
        self._external = None

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        return request.num_computed_tokens + num_tokens <= self.chunks[request][1]

    def free(self, request: Request) -> None:
        start, chunk = self.chunks.pop(request)
        self.space.give(start, chunk)
        self._allocated -= chunk
        self._external = None

    @property
    def tables(self) -> dict[Request, list[int]]:
        """Addresses of each request that holds memory."""
        return {request: list(range(start, start + chunk)) for request, (start, chunk) in self.chunks.items()}

    def slots(self, request: Request) -> int:
        chunk = self.chunks.get(request)
        return chunk[1] if chunk is not None else 0

    def usage(self) -> Usage:
        if self._external is None:
            self._external = self.space.unusable(self._typical_chunk())
        internal = self._allocated - self.held_tokens
        free = self.capacity_tokens - self._allocated - self._external
        return Usage(self.held_tokens, internal, self._external, free)

    def check_integrity(self) -> None:
        super().check_integrity()
        pieces = sorted([*self.chunks.values(), *self.space.holes()])
        end = 0
        for start, size in pieces:
            assert start == end, "memory is lost, or in use twice"
            end += size
        assert end == self.capacity_tokens, "memory is lost at the end"
        assert self._allocated == sum(size for _, size in self.chunks.values()), "allocated memory miscounted"

    def _chunk(self, request: Request, at_least: int) -> int:
        return self.space.chunk(max(self.reservation(request), min(at_least, self.max_model_len)))

    def _typical_chunk(self) -> int:
        if self.params.reservation == "max":
            return self.space.chunk(self.max_model_len)
        return -(-self._granted // self._grants) if self._grants else 0

    def _compact(self) -> None:
        self.space, starts = self.space.compacted(self.chunks)
        for request, start in starts.items():
            if start != self.chunks[request][0]:
                self.copied_tokens += request.num_computed_tokens
                self.chunks[request] = start, self.chunks[request][1]
