"""KV events as engines encode them: msgpack of a batch [time in s, events, rank], whose events are maps.

vLLM 0.33.0: vllm/distributed/kv_events.py, v1/core/block_pool.py. SGLang 0.5.23: srt/disaggregation/kv_events.py,
srt/mem_cache/events.py. Engines name blocks by 64 bits of a hash of all tokens up to the block's end. Their hash
functions differ, and listeners take the names as they are; here it is the hash of servesim.live.tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from servesim.contracts.kv_events import BlockRemoved, BlockStored, KVEvent
from servesim.errors import PolicyError
from servesim.live.tokens import TokenContent
from servesim.records.step import Step

GPU = "GPU"
DECODE_LOG_INTERVAL = 40
"""SGLang's --decode-log-interval."""


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Events of one engine; `rank` is its data-parallel rank."""

    ts: float
    events: list[Any]
    rank: int


class VllmStored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored"):
    """vLLM's BlockStored. All its fields are declared, because their number decides how the map is encoded."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class VllmRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockRemoved"):
    """vLLM's BlockRemoved."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class SglangStored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored"):
    """SGLang's BlockStored."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class SglangRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockRemoved"):
    """SGLang's BlockRemoved."""

    block_hashes: list[int]
    medium: str | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    """AllBlocksCleared of both engines."""


class Format(Protocol):
    """An engine's way to publish."""

    def add(self, events: list[Any], event: KVEvent) -> None:
        """Add an event to those that are to be published together."""

    def due(self, step: Step, idle: bool) -> bool:
        """Return whether the engine publishes after this step. `idle`: it has nothing left to do."""


class Vllm:
    """vLLM publishes after every step that has events. `kind`: kind of the cache, such as full_attention; `lookahead`:
    tokens behind a block that its hash covers."""

    def __init__(self, kind: str, lookahead: int) -> None:
        self._kind, self._lookahead = kind, lookahead

    def due(self, step: Step, idle: bool) -> bool:
        return True

    def add(self, events: list[Any], event: KVEvent) -> None:
        if isinstance(event, BlockStored):
            events.append(self._stored(event))
        elif isinstance(event, BlockRemoved):
            events += [VllmRemoved([hash_of(key)], GPU, 0) for key in event.keys]
        else:
            events.append(Cleared())

    def _stored(self, event: BlockStored) -> VllmStored:
        content, size, ahead, count = content_of(event), event.block_size, self._lookahead, len(event.keys)
        salt = salt_of(event.keys[0])
        first = (salt,) if salt and event.parent is None else None
        ends = range(event.start + size, event.start + count * size + 1, size)
        return VllmStored(
            [hash_of(key) for key in event.keys],
            None if event.parent is None else hash_of(event.parent),
            content.tokens(event.start, event.start + count * size),
            size,
            None,
            GPU,
            None,
            extra_keys=[first, *[None] * (count - 1)],
            group_idx=0,
            kv_cache_spec_kind=self._kind,
            lookahead_token_ids=[content.tokens(end, end + ahead) for end in ends] if ahead else None,
        )


class Sglang:
    """SGLang publishes after steps with prefills, after every 40th other step, and when it has nothing left to do
    (srt/managers/scheduler_components/metrics_reporter.py). It merges successive events where it can."""

    def __init__(self) -> None:
        self._decodes = 0

    def due(self, step: Step, idle: bool) -> bool:
        if step.batch.prompts:
            return True
        self._decodes += 1
        return idle or self._decodes % DECODE_LOG_INTERVAL == 0

    def add(self, events: list[Any], event: KVEvent) -> None:
        last = events[-1] if events else None
        if isinstance(event, BlockStored):
            self._add_stored(events, event, last)
        elif isinstance(event, BlockRemoved):
            hashes = [signed(hash_of(key)) for key in event.keys]
            if isinstance(last, SglangRemoved):
                last.block_hashes += hashes
            else:
                events.append(SglangRemoved(hashes, GPU))
        else:
            events.append(Cleared())

    def _add_stored(self, events: list[Any], event: BlockStored, last: Any) -> None:
        size, count = event.block_size, len(event.keys)
        hashes = [signed(hash_of(key)) for key in event.keys]
        tokens = content_of(event).tokens(event.start, event.start + count * size)
        parent = None if event.parent is None else signed(hash_of(event.parent))
        salt = salt_of(event.keys[0]) or None
        if isinstance(last, SglangStored) and last.block_hashes[-1] == parent and last.cache_salt == salt:
            last.block_hashes += hashes
            last.token_ids += tokens
        else:
            events.append(SglangStored(hashes, parent, tokens, size, None, GPU, salt))


def content_of(event: BlockStored) -> TokenContent:
    """Return the content of stored blocks. Raise PolicyError if the cache does not tell it."""
    if not isinstance(event.content, TokenContent):
        raise PolicyError("kv: its BlockStored has no content, so the token ids of the blocks cannot be published")
    return event.content


def salt_of(key: Hashable) -> str:
    """Return the salt of a block's key, or an empty string."""
    return str(key[0]) if isinstance(key, tuple) else ""


def hash_of(key: Hashable) -> int:
    """Return a block's name from its key, 0 to 2^64 - 1; equal for equal keys."""
    if isinstance(key, tuple):
        salt, key = key
        assert isinstance(key, bytes)
        key = blake2b(key + str(salt).encode(), digest_size=8).digest()
    assert isinstance(key, bytes)
    return int.from_bytes(key[:8], "big")


def signed(name: int) -> int:
    """Return the signed number with the same 64 bits."""
    return name - (1 << 64) if name >= 1 << 63 else name
