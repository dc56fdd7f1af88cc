"""Which blocks of host memory go first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts.request import Request, State
from servesim.engine.content_keys import NUMBERS, ContentKeys, Keys, meet
from servesim.features.offload.connectors.vllm import POLICIES
from servesim.features.offload.lru import Lru
from servesim.features.offload.memory import Arc, Block, HostMemory


def filled(memory: Any, keys: str, ready_ns: int = 0) -> Any:
    for key in keys:
        room = memory.prepare([key], 0)
        for block in room.blocks:
            block.ready_ns = ready_ns
    return memory


def test_lru_drops_what_was_asked_for_longest_ago_and_the_end_of_a_prompt_before_its_start() -> None:
    memory = filled(Lru(4), "abcd")
    memory.touch(["a", "b"], 0)
    assert memory.evict(3, (), 0) == ["c", "d", "b"]
    assert memory.find(["a", "b"], 0) == 1


def test_blocks_that_are_written_read_or_kept_do_not_go() -> None:
    memory = filled(Lru(4), "abcd")
    memory.get("a").ready_ns = 10
    memory.get("b").read_until = 10
    assert memory.evict(2, {"c"}, 9) is None
    assert len(memory) == 4
    assert memory.evict(3, {"c"}, 10) == ["a", "b", "d"]


def test_room_is_made_for_what_is_missing_alone() -> None:
    memory = filled(Lru(3), "abc")
    room = memory.prepare(["a", "x"], 0)
    assert (room.keys, room.dropped) == (["x"], 1)
    assert memory.get("a") is not None
    assert memory.get("b") is None
    assert memory.find(["a", "x"], 5) == 1  # x is not there before the copy's end is known
    assert memory.prepare(["p", "q", "r", "s"], 0) is None


def test_blocks_told_at_the_end_are_ready_when_their_request_has_ended_or_was_preempted() -> None:
    memory = filled(Lru(3), "a", ready_ns=5)
    writer = Request(0, "r", 1, 1, 0)
    block = memory.get("a")
    block.writer = writer
    assert not block.ready(9)
    writer.num_preemptions = 1
    assert block.ready(9)
    assert not block.ready(4)
    writer.num_preemptions, writer.state = 0, State.FINISHED
    assert block.ready(9)


def test_arc_keeps_what_was_asked_for_again_before_what_came_once() -> None:
    memory = filled(Arc(4), "abcd")
    memory.touch(["a"], 0)  # now among those asked for again
    assert memory.evict(3, (), 0) == ["b", "c", "d"]


def test_arc_learns_from_what_it_dropped_too_early() -> None:
    """b was dropped from those asked for once, and is asked for: they may be more, so that the others go first."""
    memory = filled(Arc(4), "abcd")
    memory.touch(["a"], 0)
    assert memory.evict(1, (), 0) == ["b"]
    memory.touch(["b"], 0)
    memory.touch(["b"], 0)
    memory.touch(["b"], 0)
    assert memory.evict(1, (), 0) == ["a"]  # c and d, both asked for once, are less than the 3 that may stay


def test_arc_keeps_blocks_that_are_being_written_where_they_are() -> None:
    memory = filled(Arc(2), "ab", ready_ns=10)
    memory.touch(["a"], 5)
    assert memory.evict(1, (), 10) == ["b"]
    assert memory.evict(1, (), 10) == ["a"]


@given(st.sampled_from(sorted(POLICIES)), st.integers(1, 6), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4))))
def test_there_are_never_more_blocks_than_room_and_each_content_once(
    policy: str, size: int, asked: list[tuple[int, int]]
) -> None:
    memory = POLICIES[policy](size)
    for now, (first, count) in enumerate(asked):
        keys = list(range(first, first + count))
        before = memory.find(keys, now)
        room = memory.prepare(keys, now)
        if room is None:
            assert memory.find(keys, now) == before
            continue
        for block in room.blocks:
            block.ready_ns = now + 2
        memory.touch(keys, now)
        assert len(memory) <= size
        assert all(memory.get(key) is not None for key in keys)


def test_arc_moves_its_target_by_how_much_longer_the_other_list_of_dropped_blocks_is() -> None:
    """Of two dropped after one request and three after several, one of the first counts 3/2, one of the others 1."""
    memory = filled(Arc(8), "abcde")
    memory.touch(["b", "c", "d"], 0)
    assert memory.evict(5, (), 0) == ["a", "e", "d", "c", "b"]
    memory.touch(["a"], 0)
    assert memory._target == 1.5
    memory.touch(["b"], 0)
    assert memory._target == 0.5
    memory.touch(["b"], 0)
    assert memory._target == 0.0


def test_arc_takes_back_more_where_fewer_were_dropped_after_several_requests() -> None:
    memory = filled(Arc(8), "abcde")
    memory.touch(["b", "c"], 0)
    memory.evict(5, (), 0)
    memory.touch(["a", "d", "e"], 0)
    assert memory._target == 3.0  # 1 each: 2/3 would be less
    memory.touch(["b"], 0)
    assert memory._target == 1.5


class Ordered(HostMemory):
    """Blocks in the order of their lookups, each moved when it is looked up."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.blocks: dict[Any, Block] = {}

    def __len__(self) -> int:
        return len(self.blocks)

    def get(self, key: Any) -> Block | None:
        return self.blocks.get(key)

    def touch(self, keys: Any, now: int, count: int | None = None) -> None:
        for key in reversed(keys[:count]):
            if key in self.blocks:
                self.blocks[key] = self.blocks.pop(key)

    def insert(self, key: Any, block: Block) -> None:
        self.blocks[key] = block

    def remove(self, key: Any) -> None:
        del self.blocks[key]

    def evict(self, count: int, keep: Any, now: int) -> list[Any] | None:
        idle = [key for key, block in self.blocks.items() if block.idle(now) and key not in keep]
        for key in idle[:count] if len(idle) >= count else ():
            del self.blocks[key]
        return idle[:count] if len(idle) >= count else None


LISTS: list[Sequence[Any]] = [
    [(group, i) if i < shared else (group, i, n) for i in range(8)]
    for group in (0, 1)
    for n, shared in enumerate((8, 3, 5))
]
RUNS: list[Sequence[Any]] = [
    Keys([(run << NUMBERS, first, stop) for run, first, stop in runs])
    for runs in (
        [(1, 0, 3), (2, 3, 8)],
        [(1, 0, 3), (3, 3, 5), (4, 5, 8)],
        [(1, 0, 3), (3, 3, 5), (-5, 5, 8)],
        [(1, 0, 3)],
        [(-6, 0, 8)],
        [(-6, 0, 5), (7, 5, 6)],
    )
]
OPERATION = st.tuples(
    st.sampled_from(["store", "store", "store", "touch", "read", "prepare", "remove", "pin"]),
    st.integers(0, len(RUNS) - 1),
    st.integers(0, 8),
    st.integers(0, 8),
)


OWN: list[Sequence[Any]] = [Keys([(1 << NUMBERS, 0, 2), (run << NUMBERS, 2, 30)]) for run in (2, 3, 4)]


@given(
    st.integers(2, 24),
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 9), st.integers(0, 9))),
)
def test_blocks_stored_each_at_its_time_are_stored_at_once_where_that_is_the_same(
    size: int, leaps: list[tuple[list[int], int, int]]
) -> None:
    """In each leap the prompts of these numbers store their next block, one after the other, a ns apart; then the time
    goes on, and one of the prompts is looked up."""
    memories, reach, now = (Lru(size), Ordered(size)), [3, 3, 3], 0
    for each in memories:
        for keys in OWN:
            room = each.store(keys, 0, min(3, size), 0)
            for block in room.blocks if room is not None else ():
                block.ready_ns = 1
    for turns, time, looked_up in leaps:
        stores = [(OWN[n], reach[n] + turns[:i].count(n)) for i, n in enumerate(turns)]
        stores = [(keys, number) for keys, number in stores if number < 30]
        if not stores:
            continue
        before = len(memories[0])
        at_once = memories[0].store_each(stores, now)
        event(f"at once: {at_once is not None}, full: {before == size}")
        answers: list[Any] = []
        for memory in memories[1:] if at_once is not None else memories:
            rooms = [memory.store(keys, number, number + 1, now + i) for i, (keys, number) in enumerate(stores)]
            for i, room in enumerate(rooms):
                for block in room.blocks if room is not None else ():
                    block.ready_ns = now + 8 + i + time
            answers.append([(room.added, room.dropped) if room is not None else None for room in rooms])
        if at_once is None:
            assert answers[0] == answers[1]
        else:
            assert (len(stores), at_once[1]) == tuple(map(sum, zip(*answers[0], strict=True)))
            for i, block in enumerate(at_once[0]):
                block.ready_ns = now + 8 + i + time
        for n in range(3):
            reach[n] = min(reach[n] + turns.count(n), 30)
        now += 8 + time
        if looked_up < 3:
            for memory in memories:
                memory.touch(OWN[looked_up], now, time)
        for keys in OWN:
            assert [memories[0].get(key) is None for key in keys] == [memories[1].get(key) is None for key in keys]
    while (gone := memories[1].evict(1, (), 1 << 62)) is not None:
        assert [*(memories[0].evict(1, (), 1 << 62) or ())] == gone


@pytest.mark.parametrize("prompts", [LISTS, RUNS], ids=["lists", "runs"])
@given(st.integers(1, 16), st.lists(OPERATION, max_size=60), st.integers(0, 5))
def test_runs_and_lookups_leave_the_order_of_blocks_that_are_moved_at_once(
    prompts: list[Sequence[Any]], size: int, operations: list[tuple[str, int, int, int]], slow: int
) -> None:
    """Blocks take `slow` times the number of the operation, modulo 7, to be written."""
    short, plain = Lru(size), Ordered(size)
    short._forget_at = 3
    everything = list(dict.fromkeys(key for keys in prompts for key in keys))
    for now, (verb, prompt, first, stop) in enumerate(operations):
        keys, answers = prompts[prompt], []
        first, stop = min(first, stop, len(keys)), min(stop, len(keys))
        for memory in (short, plain):
            found, room, gone = memory.find(keys[first:stop], now), None, list[Any]()
            memory.on_gone = gone.extend
            if verb == "touch":
                memory.touch(keys, now, stop)
            elif verb == "read":
                memory.read(keys[: memory.find(keys, now)], now + 3)
            elif verb == "pin":
                memory.pins = [{*keys[first:stop]}]
            elif verb == "remove":
                if first < stop and memory.get(keys[first]) is not None:
                    memory.remove(keys[first])
            elif verb == "store" or prompts is RUNS:
                room = memory.store(keys, first, stop, now)
            else:
                room = memory.prepare(keys[first:stop], now)
            for block in room.blocks if room is not None else ():
                block.ready_ns = now + slow * now % 7
            answers.append((found, len(memory), gone, None if room is None else ([*room.keys], room.dropped)))
        assert answers[0] == answers[1]
        for key in everything:
            mine, other = short.get(key), plain.get(key)
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:
                assert (mine.ready(now), mine.idle(now)) == (other.ready(now), other.idle(now))
    short.pins = plain.pins = []
    short.on_gone = None
    left = len(plain)
    while left and (gone := plain.evict(1, (), 1 << 62)) is not None:
        assert [*(short.evict(1, (), 1 << 62) or ())] == gone
        left -= 1
    assert len(short) == left
    short._forget()
    if not left:
        assert not short._runs, "what holds no block is forgotten"


def test_a_prompt_that_is_looked_up_whole_and_stored_in_chunks_is_one_lookup() -> None:
    memory, keys = Lru(4), Keys([(1 << NUMBERS, 0, 4)])
    memory.touch(keys, 0, 4)
    for stop in (1, 2, 4):
        room = memory.store(keys, stop // 2, stop, 0)
        assert room is not None
        for block in room.blocks:
            block.ready_ns = 0
    assert len(memory._order) == 1
    memory.touch(keys, 0, 2)  # the last two are there, and keep their earlier place
    assert len(memory._order) == 2
    assert [*(memory.evict(2, (), 0) or ())] == [keys[3], keys[2]]
    memory._forget()
    assert len(memory._order) == 1


def test_blocks_that_are_stored_one_by_one_become_one_span_when_they_are_written() -> None:
    memory, keys = Lru(100), Keys([(1 << NUMBERS, 0, 100)])
    for now in range(100):
        room = memory.store(keys, now, now + 1, now)
        assert room is not None
        room.blocks[0].ready_ns = now + 3
    run = memory._runs[1 << NUMBERS]
    assert [(first, stop) for first, stop, _ in run.spans] == [(0, 97), (97, 98), (98, 99), (99, 100)]


def test_blocks_without_content_are_those_of_one_sample_of_one_request() -> None:
    keys = ContentKeys(4)
    found: list[Any] = []
    for row in (0, 1, 1 << 30):
        for sample in (-1, 0, 1, 1000):
            request = Request(row, "r", 8, 8, 0)
            request.sample = sample
            found += keys.of(request, 1)
            assert keys.of(request, 3)[0] == found[-1]  # more blocks leave those before
            found += keys.of(request, 3)[1:]
    assert len({*found}) == 3 * 4 * 3
    assert all(key < 0 for key in found)


def test_keys_in_runs_are_a_sequence() -> None:
    keys = Keys([(5 << NUMBERS, 0, 2), (-7 << NUMBERS, 2, 3), (6 << NUMBERS, 3, 6)])
    plain = [*keys]
    assert len(keys) == len(plain) == 6
    assert plain[2] == (-7 << NUMBERS) + 2
    assert [*reversed(keys)] == plain[::-1]
    for first in range(7):
        for stop in range(7):
            assert [*keys[first:stop]] == plain[first:stop]
            assert [*keys[first:][:stop]] == plain[first:][:stop]
            assert meet(keys[first:], keys[:stop]) == (first < stop) == meet(plain[first:], keys[:stop])
    assert [keys[i] for i in range(-6, 6)] == [*plain, *plain]
    with pytest.raises(IndexError):
        keys[6]
