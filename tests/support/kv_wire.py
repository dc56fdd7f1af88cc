"""Subscriber to KV events that knows them only as engines declare them, and what it can tell from them alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq


class VllmEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Events of vLLM 0.33.0 (vllm/distributed/kv_events.py)."""


class BlockStored(VllmEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(VllmEvent):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(VllmEvent):
    pass


class VllmBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class SglangEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Events of SGLang 0.5.23 (srt/disaggregation/kv_events.py)."""


class SglangStored(SglangEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class SglangRemoved(SglangEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class SglangCleared(SglangEvent, tag="AllBlocksCleared"):
    pass


class SglangBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[SglangStored | SglangRemoved | SglangCleared]
    attn_dp_rank: int | None = None


BATCHES: dict[str, Any] = {"vllm": VllmBatch, "sglang": SglangBatch}


class Subscriber:
    """SUB socket. Make it before the publisher, so that no message is missed."""

    def __init__(self, *endpoints: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.set_hwm(0)
        self.socket.subscribe(b"")
        for endpoint in endpoints:
            self.socket.connect(endpoint)

    def frames(self) -> list[list[bytes]]:
        """Return the messages that have come."""
        found = []
        while self.socket.poll(0):
            found.append(self.socket.recv_multipart())
        return found

    def close(self) -> None:
        self.socket.close(linger=0)


class WireIndex:
    """Blocks of one replica, from its batches alone."""

    def __init__(self) -> None:
        self.copies: Counter[int] = Counter()
        self.told = self.removed = 0
        self._after: dict[tuple[int | None, tuple[int, ...]], int] = {}  # (parent, tokens) -> hash
        self._size = 1

    def add(self, batch: VllmBatch | SglangBatch) -> None:
        """Take in a batch. Assert that it agrees with what came before."""
        for event in batch.events:
            self.told += 1
            if isinstance(event, BlockStored | SglangStored):
                self._store(event)
            elif isinstance(event, BlockRemoved | SglangRemoved):
                self.removed += len(event.block_hashes)
                for name in event.block_hashes:
                    assert self.copies[name] > 0, "a block is removed that was not there"
                    self.copies[name] -= 1
            else:
                self.copies.clear()

    def _store(self, event: BlockStored | SglangStored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        self._size = size
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert parent is None or self.copies[parent] > 0, "a block behind one that is not there"
        for at, name in enumerate(event.block_hashes):
            key = (parent, tuple(event.token_ids[at * size : (at + 1) * size]))
            assert self._after.setdefault(key, name) == name, "one prefix has two names"
            self.copies[name] += 1
            parent = name

    def match(self, tokens: Sequence[int]) -> int:
        """Return how many of the first tokens are there."""
        size, parent = self._size, None
        for at in range(0, len(tokens) - size + 1, size):
            name = self._after.get((parent, tuple(tokens[at : at + size])))
            if name is None or not self.copies[name]:
                return at
            parent = name
        return len(tokens) // size * size
