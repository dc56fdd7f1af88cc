"""Sets of blocks by replica, compared with plain counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from servesim.policies.routing._block_sets import BlockSets, block_keys
from tests.support.routing import Prompts

OPS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "clear"]), st.integers(0, 2), st.lists(st.integers(0, 5))), max_size=30
)


@given(OPS)
def test_a_block_is_there_until_it_has_gone_as_often_as_it_came(ops: list[tuple[str, int, list[int]]]) -> None:
    sets, plain = BlockSets(), [Counter[int]() for _ in range(3)]
    for op, replica, keys in ops:
        if op == "clear":
            sets.clear(replica)
            plain[replica].clear()
        elif op == "add":
            sets.add(replica, keys)
            plain[replica].update(keys)
        else:
            sets.discard(replica, keys)
            for key in keys:
                if plain[replica][key]:
                    plain[replica][key] -= 1
        prompt = list(range(6))
        assert sets.leading(prompt, 3).tolist() == [next((k for k in prompt if not here[k]), 6) for here in plain]
        reach = next((k for k in prompt if not any(here[k] for here in plain)), 6)
        assert sets.found(prompt, 3).tolist() == [sum(here[k] > 0 for k in prompt[:reach]) for here in plain]
        assert [sets.sizes.get(i, 0) for i in range(3)] == [sum(n > 0 for n in here.values()) for here in plain]


def test_a_prompt_has_a_key_for_each_full_block_and_equal_prefixes_have_equal_keys() -> None:
    prompt = Prompts()
    one, two = block_keys(prompt((1, 20), (2, 30)), 16), block_keys(prompt((1, 20), (3, 30)), 16)
    assert (len(one), one[0] == two[0], one[1] == two[1]) == (3, True, False)
