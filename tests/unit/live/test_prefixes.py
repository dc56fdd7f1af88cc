"""Prompts share exactly the prefixes that their tokens share, live and as recorded."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from servesim.live.recording import PrefixTree
from servesim.live.tokens import TokenContent, Words, tokens_of

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=2, max_size=6)


def shared(one: list[int], other: list[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def laid_out(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(content, j) for content, length in runs for j in range(length)]


@given(PROMPTS)
def test_recorded_runs_agree_as_far_as_tokens_do(prompts: list[list[int]]) -> None:
    tree = PrefixTree()
    found = [laid_out(tree.add(prompt, [], row)) for row, prompt in enumerate(prompts)]
    for i, one in enumerate(prompts):
        assert len(found[i]) == len(one)
        for j, other in enumerate(prompts):
            same = [a == b for a, b in zip(found[i], found[j], strict=False)]
            assert len(list(takewhile(bool, same))) == shared(one, other)


@given(PROMPTS)
def test_live_keys_agree_as_far_as_tokens_do(prompts: list[list[int]]) -> None:
    contents = [TokenContent(prompt, []) for prompt in prompts]
    for one, first in zip(prompts, contents, strict=True):
        for other, second in zip(prompts, contents, strict=True):
            for stop in range(1, min(len(one), len(other)) + 1):
                same = stop <= shared(one, other)
                assert (first.prefix_key(stop) == second.prefix_key(stop)) is same
                assert (first.fingerprint(stop) == second.fingerprint(stop)) is same


def test_a_later_prompt_that_quotes_an_answer_has_its_run() -> None:
    tree = PrefixTree()
    assert tree.add([1, 2, 3], [7, 8, 9], 0) == [(1, 3)]
    assert tree.add([1, 2, 3, 7, 8, 5], [6], 1) == [(1, 3), (-1, 2), (2, 1)]
    assert tree.add([1, 2, 4], [], 2) == [(1, 2), (3, 1)]


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_the_text_of_an_answer_has_as_many_tokens_as_the_answer(row: int, length: int) -> None:
    words = Words(row, length)
    assert tokens_of(words.text(0, length)) == list(words)
    assert len(words) == length


@given(st.integers(0, 10**4), st.integers(0, 10**4), st.integers(0, 127), st.integers(0, 127))
def test_no_two_answers_begin_with_the_same_token(row: int, other: int, sample: int, another: int) -> None:
    same = Words(row, 1, sample)[0] == Words(other, 1, another)[0]
    assert same == ((row, sample) == (other, another))
