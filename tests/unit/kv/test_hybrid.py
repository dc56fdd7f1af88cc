"""Groups of layers over one pool, by hand: what slides out, what is found again, what admission counts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

import servesim
from servesim.contracts import MISS, KVMemory, Request, State, build_params, kv_allocators
from servesim.engine.fast.kv import fast_memory
from servesim.hardware.kv import KvGroup, longest
from servesim.hardware.layers import STATE_WINDOW
from servesim.policies.kv.hybrid import window_hit
from tests.support.worlds import ToyCost, World, toy_trace

BLOCK = 4


class Word:
    """Content whose tokens are letters."""

    def __init__(self, text: str) -> None:
        self.text = text

    def prefix_key(self, stop: int) -> Hashable:
        return self.text[:stop]


def hybrid(num_blocks: int, *windows: int | None, in_flight: int = 0, **params: Any) -> Any:
    cls, _ = kv_allocators.resolve("hybrid")
    memory = KVMemory(num_blocks, BLOCK, 1000, windows=windows, in_flight_tokens=in_flight)
    return cls(build_params("hybrid", cls.Params, params), memory)


def start(kv: Any, text: str, prompt: int, new: int | None = None) -> Request:
    """Admit a request whose prompt is the first letters of a text."""
    request = Request(len(kv.tables), text, prompt, len(text) - prompt, 0, content=Word(text))
    hit = kv.lookup(request)
    new = prompt - hit.num_tokens if new is None else new
    assert kv.can_admit(request, hit, new, prompt, 0)
    kv.admit(request, hit, new, 0)
    request.state, request.num_computed_tokens = State.RUNNING, hit.num_tokens + new
    kv.held_tokens += request.num_computed_tokens
    kv.check_integrity()
    return request


def grow(kv: Any, request: Request, new: int = 1) -> None:
    request.num_tokens = max(request.num_tokens, request.num_computed_tokens + new)
    assert kv.grow(request, new)
    request.num_computed_tokens += new
    kv.held_tokens += new
    kv.check_integrity()


def stop(kv: Any, request: Request) -> None:
    kv.held_tokens -= request.num_computed_tokens
    kv.free(request)
    kv.check_integrity()


def test_a_window_gives_back_what_no_later_token_attends() -> None:
    """Window 6: token 9 attends 4 to 9, so block 0 (tokens 0 to 3) is past; block 1 is from token 13 on."""
    kv = hybrid(20, None, 6)
    request = start(kv, "ABCDEFGHIJKLMNOPQ", 9)
    assert kv.tables[request] == [[1, 2, 3], [4, 5, 6]]
    grow(kv, request)
    assert kv.tables[request] == [[1, 2, 3], [0, 5, 6]]
    assert kv.free_order()[-1] == 4, "still to be found by another prompt of nine tokens"
    for _ in range(4):
        grow(kv, request)
    assert kv.tables[request] == [[1, 2, 3, 7], [0, 0, 6, 8]], "tokens 8 to 13 lie in blocks 2 and 3"
    assert kv.usage().used == 14 + 6


def test_tokens_in_flight_still_need_their_window() -> None:
    kv = hybrid(20, None, 6)
    request = start(kv, "ABCDEFGHIJKLMNOPQ", 9)
    request.num_output_placeholders = 1
    grow(kv, request)
    assert kv.tables[request][1] == [4, 5, 6]


def test_by_default_windows_stay_findable_only_where_a_prompt_ends() -> None:
    """A prompt of 18 tokens: a repeat goes on from token 16 and needs blocks 2 and 3 of the window."""
    for interval, cached in ((0, [2, 3]), ("dense", [0, 1, 2, 3]), (16, [2, 3]), (12, [1, 2, 3])):
        kv = hybrid(40, None, 6, prefix_cache_retention_interval=interval)
        request = start(kv, "ABCDEFGHIJKLMNOPQRST", 18)
        table = kv.tables[request][1]
        assert [i for i, block in enumerate(table) if kv.is_cached(block)] == cached, interval
        assert all(kv.is_cached(block) for block in kv.tables[request][0][:4])


def test_a_shared_prefix_is_found_from_its_second_repeat_on() -> None:
    """Full attention has eight tokens of it at once; the window keeps their end when it sees that."""
    kv = hybrid(60, None, 6)
    found = []
    for tail in ("first prompt of them", "second prompt of them", "third prompt of them"):
        request = start(kv, "COMMON:-" + tail, 8 + len(tail) - 1)
        found.append(kv.lookup(Request(9, "", 28, 1, 0, content=Word("COMMON:-nobody asked before"))).num_tokens)
        stop(kv, request)
    assert found == [0, 8, 8]


def test_all_groups_must_agree() -> None:
    kv = hybrid(60, None, 6, 14, prefix_cache_retention_interval="dense")
    request = start(kv, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", 25)
    again = Request(7, "", 25, 1, 0, content=Word("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    assert kv.lookup(again).num_tokens == 24
    tables = kv.tables[request]
    kv._evict(tables[2][5])  # the wide window: blocks 3 to 5 end a hit of six, 1 to 4 one of five
    assert kv.lookup(again).num_tokens == 20
    kv._evict(tables[1][3])  # the narrow one needs 3 and 4 there; 2 and 3 for four blocks; 1 and 2 for three
    assert kv.lookup(again).num_tokens == 12
    kv._evict(tables[0][0])
    assert kv.lookup(again).num_tokens == 0


def test_the_gate_counts_a_window_once_however_long_the_prompt() -> None:
    """Window 6, 8 tokens in flight: at most ceil(13 / 4) + 1 = 5 blocks, besides 25 of full attention."""
    request = Request(0, "", 100, 1, 0)
    assert not hybrid(30, None, 6, in_flight=8).can_admit(request, MISS, 8, 100, 0)
    assert hybrid(31, None, 6, in_flight=8).can_admit(request, MISS, 8, 100, 0)
    assert not hybrid(31, None, 6, in_flight=8).can_admit(request, MISS, 64, 100, 0), "16 blocks twice at once"
    assert longest(30, [KvGroup(1), KvGroup(1, 6)], BLOCK, 8) == 100


@pytest.mark.parametrize(
    ("cached", "contiguous", "blocks"),
    [("110110111", 3, 9), ("110110110", 3, 2), ("0111", 2, 4), ("", 2, 0), ("10", 1, 1)],
)
def test_a_window_goes_on_from_its_last_blocks_or_from_the_start(cached: str, contiguous: int, blocks: int) -> None:
    assert window_hit(lambda i: cached[i] == "1", len(cached), contiguous) == blocks


def test_windows_hold_more_requests_than_full_attention_does() -> None:
    """Prompts of 80 tokens, one after the other in chunks of 16, in 60 blocks: six blocks each in full attention, and
    in a window of 20 at most four."""
    trace = toy_trace([0] * 8, [80] * 8, [200] * 8)
    most = {}
    for windows in ((None, None), (None, 20)):
        world = World(trace, "hybrid", 61, windows=windows, max_num_batched_tokens=32, max_model_len=300)
        most[windows] = int(world.run(check=True).recorder.steps.column("decode_count").max())
    assert most[None, None] < most[None, 20]


def test_a_refused_request_comes_in_when_a_window_slides() -> None:
    """Twelve blocks, three groups: a prompt of 50 tokens takes all of them. With its first answer token its windows of
    20 have moved on by a block each, and a prompt of one token has room; fast mode must ask again."""
    trace = toy_trace([0] * 3, [1, 50, 1], [1, 3, 1])
    runs = {}
    for mode in ("fast", "reference"):
        world = World(
            trace,
            "hybrid",
            13,
            windows=(None, 20, 20),
            scheduler_params={"scheduler_reserve_full_isl": False},
            max_num_seqs=3,
            max_num_batched_tokens=16,
            cost=ToyCost(fixed=1, token=0, context=0),
        )
        runs[mode] = world.run(mode, check=True).recorder.requests.array().tolist()
    assert runs["fast"] == runs["reference"]


def fast(num_blocks: int, *windows: int | None) -> Any:
    cls, _ = kv_allocators.resolve("hybrid")
    return fast_memory(cls)(build_params("hybrid", cls.Params, {}), KVMemory(num_blocks, BLOCK, 1000, windows=windows))


def test_a_request_in_lockstep_goes_on_with_the_blocks_that_slide_out() -> None:
    """Window 8, one turn in flight: after 13 tokens each block that is filled is the turn in which another slides out.
    Full attention takes that one, the window the next free one, and nothing is entered before it is read."""
    kv = fast(40, None, 8)
    request = Request(0, "a", 13, 40, 0)
    request._end_tokens = 53
    kv.admit(request, MISS, 13, 0)
    request.state, request.num_computed_tokens = State.RUNNING, 13
    kv.held_tokens = 13
    assert kv.tables[request] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert kv.turns.join(request, 13, 13)  # its first turn is number 0, when turn -1 is committed
    assert kv.turns.extend(0, -1)
    assert kv.tables[request] == [[1, 2, 3, 4], [0, 6, 7, 8]], "12 tokens processed: 5 to 12 are attended"
    grown = kv.turns.extend_run(1, 0, 11)
    assert grown == [(3, 4), (7, 4), (11, 4)], "turns 3, 7 and 11 fill a block: two taken, one given back"
    assert kv.turns.given_back == [(3, 4), (7, 4), (11, 4)]
    assert kv._tables[request][0].tolist() == [1, 2, 3, 4]
    assert kv.tables[request] == [[1, 2, 3, 4, 6, 7, 8], [0, 0, 0, 0, 5, 9, 10]]


@pytest.mark.medium
def test_a_request_joins_others_whose_blocks_rotate_though_its_own_cannot() -> None:
    """A prompt of 19 tokens, shorter than the window, begins to decode beside long ones (this trace, this size)."""
    runs = [
        servesim.simulate(
            trace="preset:azure-code-2023", requests=100, model="gpt-oss-120b", gpu="h200", mode=mode
        ).requests
        for mode in ("fast", "reference")
    ]
    assert runs[0].equals(runs[1])


def test_a_state_lies_in_the_last_block_alone_and_the_one_before_ends_where_a_prefix_is_found() -> None:
    """Thirteen tokens are four blocks of attention; of a state those that end at token 12 and after it."""
    kv = hybrid(20, None, 2)
    request = start(kv, "ABCDEFGHIJKLMNOPQ", 13)
    assert kv.tables[request] == [[1, 2, 3, 4], [0, 0, 5, 6]]
    assert kv.num_free_blocks() == 13
    for _ in range(4):
        grow(kv, request)
    assert kv.tables[request] == [[1, 2, 3, 4, 7], [0, 0, 0, 6, 8]], "one token is in the fifth block"
    again = Request(1, "", 17, 1, 0, content=Word("ABCDEFGHIJKLMxxxx"))
    assert kv.lookup(again).num_tokens == 12
    stop(kv, request)
    assert kv.lookup(again).num_tokens == 12


def test_a_prompt_in_pieces_moves_its_state_on_and_leaves_the_blocks_between_untaken() -> None:
    kv = hybrid(20, None, 2)
    request = start(kv, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", 26, new=6)
    assert kv.tables[request] == [[1, 2], [3, 4]]
    grow(kv, request, 14)
    assert kv.tables[request] == [[1, 2, 3, 5, 6], [0, 0, 0, 4, 7]], "what it was in goes at once"
    assert kv.num_free_blocks() == 12


def test_without_prefix_caching_a_step_takes_one_block_for_a_state() -> None:
    cls, _ = kv_allocators.resolve("hybrid-paged")
    memory = KVMemory(20, BLOCK, 1000, windows=(None, 2, 2), in_flight_tokens=100)
    kv = cls(build_params("hybrid-paged", cls.Params, {}), memory)
    request = start(kv, "A" * 30, 29)
    assert [len(table) - table.count(0) for table in kv.tables[request]] == [8, 1, 1]


def test_the_gate_counts_at_most_two_blocks_for_a_state_however_long_the_prompt() -> None:
    """25 of full attention, two of each state, and the null block; a step of all 100 tokens takes no more."""
    request = Request(0, "", 100, 1, 0)
    assert not hybrid(29, None, 2, 2, in_flight=100).can_admit(request, MISS, 100, 100, 0)
    assert hybrid(30, None, 2, 2, in_flight=100).can_admit(request, MISS, 100, 100, 0)
    assert longest(29, [KvGroup(1), KvGroup(1, 2), KvGroup(1, 2)], BLOCK, 8) == 100


def test_a_request_fits_only_if_the_state_that_it_moves_on_from_does_too() -> None:
    """Of 40 tokens full attention has ten blocks and each state two; what was found in the cache, or the block that is
    left at the next step, is a third. With blocks for two alone such a request would wait forever."""
    request = Request(0, "", 36, 4, 0)
    assert not hybrid(16, None, 2, 2, in_flight=16).fits(request)
    assert hybrid(10 + 3 + 3 + 1, None, 2, 2, in_flight=16).fits(request), "and the null block"


def test_kv_from_elsewhere_comes_for_what_windows_reach_into_alone() -> None:
    """Window 6: tokens from 9 on attend 4 and later, so of 9 tokens that come block 0 is not taken."""
    kv = hybrid(6, None, 6)
    request = Request(0, "ABCDEFGHIJ", 10, 5, 0, content=Word("ABCDEFGHIJ"))
    assert not kv.can_admit(request, MISS, 9, 10, 0), "three blocks in each group, and five are free"
    assert kv.can_load(request, MISS, 9, 0, 0)
    assert not kv.can_load(request, MISS, 9, 0, 2), "one block would be left"
    request.state = State.LOADING
    kv.admit(request, MISS, 9, 0)
    assert kv.tables[request] == [[1, 2, 3], [0, 4, 5]]
    assert kv.usage().used == 0, "nothing has come yet"
    kv.check_integrity()
    assert kv.lookup(Request(1, "ABCDEFGHIJ", 10, 5, 0, content=Word("ABCDEFGHIJ"))) == MISS
    request.state, request.num_computed_tokens = State.WAITING, 9
    kv.held_tokens += 9
    kv.publish(request, 9)
    kv.check_integrity()
    assert kv.usage().used == 9 + 5
    stop(kv, request)
    assert kv.usage().free == 5 * BLOCK


def test_a_state_counts_the_blocks_it_is_in_even_where_memory_is_set_aside_for_tokens_to_come() -> None:
    """Six blocks are set aside for 24 tokens, 5 of which are computed: the state is in the last two of its own, and the
    four before them, which will never be, hold nothing. Seen with schedulers that reserve whole requests: 17 tokens
    used less than nothing."""
    kv = hybrid(20, None, STATE_WINDOW)
    request = Request(0, "long", 5, 19, 0)
    kv.admit(request, MISS, 5, 19)
    request.state, request.num_computed_tokens = State.RUNNING, 5
    kv.held_tokens += 5
    assert kv.tables[request] == [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 7, 8]]
    kv.check_integrity()
    assert kv.usage().used == 5 + 2 * BLOCK
    assert kv.usage().internal == 24 - 5
