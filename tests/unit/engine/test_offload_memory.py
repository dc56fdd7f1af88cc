"""Which blocks of host memory go first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.request import Request, State
from servesim.engine.content_keys import ContentKeys
from servesim.features.offload.memory import POLICIES, Arc, Block, HostMemory, Lru


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


PROMPTS = [
    [(group, i) if i < shared else (group, i, n) for i in range(8)]
    for group in (0, 1)
    for n, shared in enumerate((8, 3, 5))
]
OPERATION = st.tuples(
    st.sampled_from(["store", "store", "prepare", "touch", "read"]),
    st.integers(0, len(PROMPTS) - 1),
    st.integers(0, 8),
    st.integers(0, 8),
)


@given(st.integers(1, 12), st.lists(OPERATION))
def test_lookups_that_are_noted_leave_the_order_of_blocks_that_are_moved_at_once(
    size: int, operations: list[tuple[str, int, int, int]]
) -> None:
    noted, plain = Lru(size), Ordered(size)
    for now, (verb, prompt, first, stop) in enumerate(operations):
        keys, answers = PROMPTS[prompt], []
        for memory in (noted, plain):
            found = memory.find(keys[min(first, stop) : stop], now)
            answers.append((found, len(memory)))
            room = None
            if verb == "touch":
                memory.touch(keys, now, stop)
            elif verb == "read":
                memory.read(keys[: memory.find(keys, now)], now + 3)
            elif verb == "store":
                room = memory.store(keys, min(first, stop), stop, now)
            else:
                room = memory.prepare(keys[min(first, stop) : stop], now)
            for block in room.blocks if room is not None else ():
                block.ready_ns = now + 2
            answers[-1] += (None if room is None else (room.keys, room.dropped),)
        assert answers[0] == answers[1]
        assert {key: noted.get(key) is not None for key in keys} == {key: key in plain.blocks for key in keys}


def test_a_prompt_that_is_looked_up_whole_and_stored_in_chunks_puts_no_blocks_in_order() -> None:
    memory, sorted_at, sort = Lru(4), list[int](), Lru._sort
    memory._sort = lambda: (sorted_at.append(len(memory)), sort(memory))[1]  # type: ignore[method-assign]
    keys = list("abcd")
    memory.touch(keys, 0, 4)
    for stop in (1, 2, 4):
        room = memory.store(keys, stop // 2, stop, 0)
        assert room is not None
        for block in room.blocks:
            block.ready_ns = 0
    assert not sorted_at
    memory.touch(keys, 0, 2)  # c and d are there, and keep their earlier place
    assert sorted_at == [4]
    assert memory.evict(2, (), 0) == ["d", "c"]


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
