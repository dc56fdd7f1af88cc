"""Fast mode equals reference mode where a block is a token or a few: what is published a token late is found a token
short."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts import schedulers
from tests.property.test_fast_equals_reference import compared
from tests.support.examples import examples
from tests.support.worlds import ToyCost, World, toy_trace

KINDS = ["prefix-hash", "prefix-hash", "prefix-hash:free_order=back", "prefix-radix", "hybrid", "paged"]


@st.composite
def talks(draw: st.DrawFn) -> World:
    """Requests alone and in crowds whose prompts go on from earlier ones, at the end of an answer or within it."""
    n = draw(st.integers(2, 10))
    outputs = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4, 20]), min_size=n, max_size=n))
    runs: list[list[tuple[int, int]]] = []
    for i in range(n):
        j, more = draw(st.integers(0, 2 * i)), [(100 + i, draw(st.integers(1, 3)))]
        if j < i:
            said = draw(st.integers(1, outputs[j]))
            runs.append([*runs[j], (-j - 1, said), *(more if draw(st.booleans()) else [])])
        else:
            runs.append([(draw(st.integers(1, 2)), draw(st.integers(1, 20))), *more])
    scheduler = draw(st.sampled_from(["vllm", "vllm", "sglang", "sglang", *schedulers.names()]))
    size, depth = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 2, 2, 3]))
    supports = schedulers.resolve(scheduler)[0].supports
    return World(
        toy_trace(
            np.cumsum(draw(st.lists(st.sampled_from([0, 3_000, 1_000_000]), min_size=n, max_size=n))).tolist(),
            [sum(length for _, length in row) for row in runs],
            outputs,
            runs=runs,
        ),
        kv=draw(st.sampled_from(KINDS)),
        windows=draw(st.sampled_from([(None,), (None, 4), (None, 8, 8)])),
        num_blocks=draw(st.sampled_from([300, 3_000])) // size,
        block_size=size,
        scheduler=scheduler,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        depth=depth,
        asynchronous=depth > 1 and "async" in supports and draw(st.sampled_from([True, True, False])),
        cost=ToyCost(
            overlapped=draw(st.sampled_from([0, 700, 9_000])),
            exposed=draw(st.sampled_from([0, 51, 9_000])),
            asynchronous=draw(st.booleans()),
        ),
    )


@examples(200)
@given(talks())
def test_fast_mode_equals_reference_mode_in_blocks_of_few_tokens(world: World) -> None:
    fast, _ = compared(world)
    event(f"hits: {bool(fast.recorder.requests.column('hit_tokens').any())}")
