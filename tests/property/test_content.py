"""Prompts in fewer runs are the same prompts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servesim.workload.content import RunContent, joined
from servesim.workload.trace import Content

RUNS = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), min_size=1, max_size=6)


def keys(prompts: list[list[tuple[int, int]]]) -> list[list[object]]:
    """For every prompt and every prefix of it and six tokens of its output, the first such prefix that is equal."""
    first: dict[object, object] = {}
    rows = []
    for row, runs in enumerate(prompts):
        content, length = RunContent(row, runs), sum(tokens for _, tokens in runs)
        rows.append([first.setdefault(content.prefix_key(n), (row, n)) for n in range(1, length + 7)])
    return rows


@given(st.lists(st.one_of(RUNS, st.just([(1, 4), (2, 4), (3, 4)])), min_size=1, max_size=6), st.data())
def test_joined_prompts_share_what_they_shared(prompts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    for row, runs in enumerate(prompts[1:], 1):  # some go on from others, or begin as they do
        earlier = prompts[data.draw(st.integers(0, row - 1))]
        cut = data.draw(st.integers(0, len(earlier)))
        prompts[row] = [*earlier[:cut], *runs]
    offsets = np.cumsum([0] + [len(runs) for runs in prompts])
    flat = np.array([run for runs in prompts for run in runs], dtype=np.int64)
    fewer = joined(Content(offsets, flat[:, 0], flat[:, 1]))
    again = [fewer.runs(row) for row in range(len(prompts))]
    assert keys(again) == keys(prompts)
    assert sum(map(len, again)) <= len(flat)
    whole = Content(offsets, flat[:, 0], flat[:, 1])
    for row, length in enumerate(sum(tokens for _, tokens in runs) for runs in prompts):
        plain, told = RunContent(row, prompts[row]), RunContent(row, again[row], (whole, row))
        for stop in range(1, length + 7):
            assert told.fingerprint(stop) == plain.fingerprint(stop)


@given(st.lists(RUNS, min_size=2, max_size=4))
def test_fingerprints_are_equal_exactly_where_prefixes_are(prompts: list[list[tuple[int, int]]]) -> None:
    contents = [RunContent(row, runs) for row, runs in enumerate(prompts)]
    stops = range(1, min(sum(tokens for _, tokens in runs) for runs in prompts) + 7)
    for stop in stops:
        keys, prints = ([getattr(c, name)(stop) for c in contents] for name in ("prefix_key", "fingerprint"))
        assert [keys.index(key) for key in keys] == [prints.index(text) for text in prints]


def test_prompts_that_part_once_have_two_runs() -> None:
    ids = np.array([1, 2, 3, 4, 1, 2, 5, 6], dtype=np.int64)
    fewer = joined(Content(np.array([0, 4, 8]), ids, np.full(8, 16)))
    assert [fewer.runs(row) for row in range(2)] == [[(1, 32), (3, 32)], [(1, 32), (5, 32)]]
