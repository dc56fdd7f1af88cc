"""Decode workers and host memory of Dynamo's simulator: identities of blocks, order of eviction, order of admission."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.features.offload.memory import Block
from servesim.workload.trace import Content, Trace
from servesim_lab.dynamo.host import MockerMemory, tokens_of
from servesim_lab.dynamo.pd import ReplayedApart, replay_apart
from servesim_lab.dynamo.replay import MockEngine
from servesim_lab.dynamo.scaling import ScaledRoundRobin
from servesim_lab.dynamo.sequence_hash import sequence_hash, xxh3

MS = 1_000_000


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(range(4)), 0xC9D326BEC510E851),
        (bytes(range(9)), 0x768AA09ACA5D568C),
        (bytes(range(64)), 0xB30A36396B225677),
        (bytes(range(200)), 0x8F48307E44716AC5),
        (bytes(range(256)) * 8, 0xBBB7A3F0A3728668),
    ],
)
def test_the_hash_is_xxh3_with_dynamos_seed_at_every_length(data: bytes, expected: int) -> None:
    """The values are those of the library xxhash 3.8."""
    assert xxh3(data) == expected


def test_thirty_blocks_copied_together_go_in_the_order_in_which_the_simulator_dropped_them() -> None:
    """The order was asked of the wheel: which of 30 blocks of one prompt are gone when there is room for fewer."""
    asked = [
        12,
        2,
        20,
        13,
        26,
        17,
        11,
        19,
        25,
        18,
        0,
        21,
        10,
        14,
        6,
        23,
        28,
        22,
        29,
        27,
        5,
        24,
        8,
        3,
        4,
        9,
        7,
        15,
        16,
        1,
    ]
    memory, parent = MockerMemory(30), None
    for i in range(30):
        memory.identity[i] = parent = sequence_hash(parent, [i] * 16)
        memory.insert(i, Block(ready_ns=5))
    assert memory.evict(1, (), 4) is None, "none of them is there yet"
    assert memory.evict(30, (), 5) == asked


def test_a_block_that_is_read_is_the_last_to_go_afterwards() -> None:
    memory = MockerMemory(3)
    for i in range(3):
        memory.identity[i] = i
        memory.insert(i, Block(ready_ns=i))
    memory.touch([], 10)
    memory.read([0], 20)
    assert memory.evict(3, (), 10) is None, "a block that is read stays"
    memory.touch([1, 2], 10)  # the first one of a prompt goes last
    assert memory.evict(3, (), 20) == [2, 1, 0]


def test_tokens_are_numbers_of_contents_in_order_of_appearance() -> None:
    content = Content(np.array([0, 2, 3]), np.array([900, 7, 7]), np.array([2, 1, 3]))
    trace = Trace.from_lengths(
        "two", arrival_ns=np.array([0, 1]), prompt_len=np.array([3, 3]), output_len=np.array([1, 1]), content=content
    )
    assert [tokens.tolist() for tokens in tokens_of(trace)] == [[0, 0, 1], [1, 1, 1]]


def apart(prompts: list[int], outputs: list[int], blocks: int, mode: str) -> ReplayedApart:
    """Replay prompts that arrive 1 ms apart: passes of 10 ms, transfers of 1 ms for 1,000 tokens, blocks of 10."""
    trace = Trace.from_lengths(
        "by hand",
        arrival_ns=np.arange(len(prompts), dtype=np.int64) * MS,
        prompt_len=np.array(prompts),
        output_len=np.array(outputs),
    )
    engine = {
        "block_size": 10, "timing_model": {"type": "fixed", "prefill_ms": 10, "decode_ms": 10},
        "kv_transfer_bytes_per_token": 1_000_000, "kv_transfer_bandwidth": 1000.0,
    }  # fmt: skip
    workers = [MockEngine.of({**engine, "worker_type": kind}) for kind in ("prefill", "decode")]
    workers[1] = MockEngine.of({**engine, "worker_type": "decode", "num_gpu_blocks": blocks})
    routers = [ScaledRoundRobin([], 1, 0), ScaledRoundRobin([], 1, 0, 1)]
    return replay_apart(trace, *workers, *routers, 1, 1, mode=mode, check=True)


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_what_is_preempted_goes_on_only_when_no_request_waits_for_memory(mode: str) -> None:
    """The first request's fourth of 5 blocks preempts the second one, which goes on only when the third one, whose
    prompt needs 3 blocks, has got them: when the first one ends. All times are those of the wheel."""
    found = apart([20, 10, 25], [12, 12, 2], 5, mode)
    assert found.readmissions.tolist() == [0, 1, 1]
    assert (found.destination_reserved_ns / MS).tolist() == [10, 20.02, 130.02]
    assert (found.destination_activated_ns / MS).tolist() == [10.02, 30.02, 140.02]
    assert (found.first_token_ns / MS).tolist() == [20.02, 40.02, 150.02]
    assert (found.last_token_ns / MS).tolist() == [130.02, 160.02, 170.02]


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_what_is_computed_again_on_a_decode_worker_takes_no_time(mode: str) -> None:
    alone, together = apart([20], [12], 5, mode), apart([20, 20], [12, 12], 5, mode)
    last, again = together.last_token_ns.tolist()
    assert together.readmissions.tolist() == [0, 1]
    assert last == alone.last_token_ns[0]
    assert (again - last) % (10 * MS) == 0, "every pass is one of decodes"
