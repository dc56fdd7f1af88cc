"""KV events as engines encode them, by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pytest

from servesim.contracts.cost import Batch as StepBatch
from servesim.contracts.kv import Usage
from servesim.contracts.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from servesim.errors import PolicyError
from servesim.live.events.formats import Batch, Sglang, Vllm
from servesim.live.tokens import TokenContent
from servesim.records.step import Step
from tests.support.kv_wire import BATCHES


def name(tokens: Sequence[int], before: bytes = b"") -> bytes:
    return blake2b(before + array("I", tokens).tobytes(), digest_size=16).digest()


def payload(form: Any, events: Sequence[Any], rank: int = 3) -> bytes:
    """Return the batch of these events at 1.5 s."""
    added: list[Any] = []
    for event in events:
        form.add(added, event)
    return msgspec.msgpack.encode(Batch(1.5, added, rank))


def stored(content: TokenContent, start: int, stop: int, size: int, salt: str = "") -> BlockStored:
    """Return the event of blocks [start, stop), in tokens."""
    keys = [content.prefix_key(end) for end in range(start + size, stop + 1, size)]
    parent = content.prefix_key(start) if start else None
    if salt:
        return BlockStored(tuple((salt, k) for k in keys), (salt, parent) if parent else None, size, content, start)
    return BlockStored(tuple(keys), parent, size, content, start)


def test_batches_of_vllm_are_its_bytes() -> None:
    content = TokenContent(range(40), range(100, 120))
    links = [name(range(16))]
    links.append(name(range(16, 32), links[0]))
    links.append(name([*range(32, 40), *range(100, 108)], links[1]))
    first, second, third = (int.from_bytes(link[:8], "big") for link in links)
    rest = {"block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None}
    sent = payload(Vllm("full_attention", 0), [stored(content, 0, 32, 16), stored(content, 32, 48, 16)])
    expected = [
        {"type": "BlockStored", "block_hashes": [first, second], "parent_block_hash": None}
        | {"token_ids": [*range(32)], **rest, "extra_keys": [None, None]}
        | {"group_idx": 0, "kv_cache_spec_kind": "full_attention"},
        {"type": "BlockStored", "block_hashes": [third], "parent_block_hash": second}
        | {"token_ids": [*range(32, 40), *range(100, 108)], **rest, "extra_keys": [None]}
        | {"group_idx": 0, "kv_cache_spec_kind": "full_attention"},
    ]
    assert msgspec.msgpack.decode(sent) == [1.5, expected, 3]
    decoded = msgspec.msgpack.decode(sent, type=BATCHES["vllm"])
    assert msgspec.msgpack.encode(decoded) == sent  # as the engine itself would encode it


def test_a_stored_block_of_vllm_to_the_byte() -> None:
    """The map has the long header of one that could have all 16 keys."""
    link = name([7])
    expected = (
        b"\x93\xcb\x3f\xf8" + bytes(6) + b"\x91\xde\x00\x0b\xa4type\xabBlockStored\xacblock_hashes\x91\xcf" + link[:8]
        + b"\xb1parent_block_hash\xc0\xa9token_ids\x91\x07\xaablock_size\x01\xa7lora_id\xc0\xa6medium\xa3GPU"
        b"\xa9lora_name\xc0\xaaextra_keys\x91\xc0\xa9group_idx\x00\xb2kv_cache_spec_kind\xaefull_attention\x03"
    )  # fmt: skip
    assert link[0] >= 0x80 or int.from_bytes(link[:8], "big") >= 1 << 32  # so it takes 9 bytes
    assert payload(Vllm("full_attention", 0), [stored(TokenContent([7], ()), 0, 1, 1)]) == expected


def test_removals_of_vllm_come_one_by_one_to_the_byte() -> None:
    key, other = bytes(7) + b"\x01" + b"rest 8 b", bytes(7) + b"\x7f" + b"rest 8 b"
    sent = payload(Vllm("full_attention", 0), [BlockRemoved((key, other)), AllBlocksCleared()])
    one = b"\x84\xa4type\xacBlockRemoved\xacblock_hashes\x91%b\xa6medium\xa3GPU\xa9group_idx\x00"
    cleared = b"\x81\xa4type\xb0AllBlocksCleared"
    assert sent == b"\x93\xcb\x3f\xf8" + bytes(6) + b"\x93" + one % b"\x01" + one % b"\x7f" + cleared + b"\x03"
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(sent, type=BATCHES["vllm"])) == sent


def test_batches_of_sglang_are_its_bytes_and_what_belongs_together_is_merged() -> None:
    content, other = TokenContent(range(6), ()), TokenContent([9, 9], ())
    keys = [int.from_bytes(name(range(end))[:8], "big", signed=True) for end in range(2, 7, 2)]
    gone = (b"\xff" * 8 + bytes(8), bytes(16))
    events = [
        *(stored(content, 0, 4, 2), stored(content, 4, 6, 2), stored(other, 0, 2, 2)),
        *(BlockRemoved(gone[:1]), BlockRemoved(gone[1:]), AllBlocksCleared()),
    ]
    sent = payload(Sglang(), events)
    rest = {"block_size": 2, "lora_id": None, "medium": "GPU"}
    last = int.from_bytes(name([9, 9])[:8], "big", signed=True)
    expected = [
        {"type": "BlockStored", "block_hashes": keys, "parent_block_hash": None, "token_ids": [*range(6)], **rest},
        {"type": "BlockStored", "block_hashes": [last], "parent_block_hash": None, "token_ids": [9, 9], **rest},
        {"type": "BlockRemoved", "block_hashes": [-1, 0], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]
    assert sent == msgspec.msgpack.encode([1.5, expected, 3])
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(sent, type=BATCHES["sglang"])) == sent


def test_salts_and_lookahead_are_told_as_the_engines_do() -> None:
    content = TokenContent(range(9), ())
    event = stored(content, 0, 8, 4, "me")
    vllm = msgspec.msgpack.decode(payload(Vllm("mla_attention", 1), [event]), type=BATCHES["vllm"]).events[0]
    assert vllm.extra_keys == [("me",), None]
    assert vllm.lookahead_token_ids == [[4], [8]]
    sglang = msgspec.msgpack.decode(payload(Sglang(), [event]), type=BATCHES["sglang"]).events[0]
    assert sglang.cache_salt == "me"
    plain = msgspec.msgpack.decode(payload(Vllm("x", 0), [stored(content, 0, 8, 4)]), type=BATCHES["vllm"]).events[0]
    assert not set(vllm.block_hashes) & set(plain.block_hashes)


def test_sglang_publishes_after_prefills_every_40th_other_step_and_when_idle() -> None:
    decode, prefill = (
        Step(0, StepBatch(1, prompts=prompts), [], Usage(0, 0, 0, 0)) for prompts in ([], [(1, 0, 1, 1)])
    )
    sglang = Sglang()
    assert [sglang.due(decode, False) for _ in range(80)] == [*[False] * 39, True] * 2
    assert sglang.due(prefill, False)
    assert sglang.due(decode, True)
    assert [sglang.due(decode, False) for _ in range(39)] == [*[False] * 38, True]
    assert Vllm("full_attention", 0).due(decode, False)


def test_a_cache_that_does_not_tell_content_is_an_error() -> None:
    with pytest.raises(PolicyError, match="its BlockStored has no content"):
        Vllm("full_attention", 0).add([], BlockStored((b"1" * 16,), None, 16))
