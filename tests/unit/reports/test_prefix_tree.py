"""The tree of a prefix cache: by hand, and that every block stands somewhere and no two in one place."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servesim.checking.world import toy_trace
from servesim.reports.playback import FREE, Frame, Playback, play
from servesim.reports.playback_page import playback_page
from servesim.reports.prefix_tree import Link, Place, places_of, tree_of

MACHINE: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100"}
Runs = list[list[tuple[int, int]]]


def watched(runs: Runs, kv: str = "prefix-hash", blocks: int = 33, apart_ns: int = 10**9) -> Playback:
    """Play one request after the other, two tokens out each; `runs`: (content, length) of the parts of each prompt."""
    lengths = [sum(n for _, n in one) for one in runs]
    trace = toy_trace([i * apart_ns for i in range(len(runs))], lengths, [2] * len(runs), runs=runs)
    return play({**MACHINE, "trace": trace, "kv": kv, "engine": {"num_gpu_blocks": blocks, "max_model_len": 128}})


def test_sequences_share_a_row_until_they_part() -> None:
    """Blocks of 16: (a a a b), then (a a a c), then (a a d). Answers lie in blocks of their own that are not kept."""
    playback = watched([[(1, 48), (2, 16)], [(1, 48), (3, 16)], [(1, 32), (4, 16)]])
    tree = tree_of(playback)
    assert tree is not None
    end = tree.at(len(playback.frames) - 1, playback.frames[-1].cells)
    assert sorted(end.values()) == [
        Place(0, 0, 0), Place(1, 0, 0), Place(2, 0, 0), Place(2, 2, 0), Place(3, 0, 0), Place(3, 1, 0),
    ]  # fmt: skip


def test_without_a_prefix_in_common_or_a_prefix_cache_there_is_no_tree() -> None:
    assert tree_of(watched([[(1, 48), (2, 16)]])) is None, "nothing parts"
    for kv in ("paged", "contiguous"):
        assert tree_of(watched([[(1, 48), (2, 16)], [(1, 48), (3, 16)]], kv)) is None


def test_what_stood_behind_a_content_that_is_gone_begins_a_row_of_its_own() -> None:
    """Cell 0 holds another content in the third frame; cell 1, which followed the old one, keeps its column."""
    frames = [
        Frame(0, np.zeros(3, np.int32)),
        Frame(1, np.array([2, 2, 2], np.int32), {0: -1, 1: 0, 2: 0}),
        Frame(2, np.array([4, 1, 1], np.int32), {0: -1}),
    ]
    tree = tree_of(Playback("", None, 16, frames))  # type: ignore[arg-type]
    assert tree is not None
    assert tree.at(1, frames[1].cells) == {0: Place(0, 0, 0), 1: Place(1, 0, 0), 2: Place(1, 1, 0)}
    assert tree.links[2] == {1: Link(-1, 1), 2: Link(-1, 1), 0: Link(-1, 0)}
    assert tree.at(2, frames[2].cells) == {1: Place(1, 0, 0), 2: Place(1, 1, 1), 0: Place(0, 2, 2)}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(4, 6), st.integers(7, 12)), min_size=1, max_size=12))
def test_every_block_stands_somewhere_and_no_two_in_one_place(prompts: list[tuple[int, int, int]]) -> None:
    playback = watched([[(a, 32), (b, 16), (c, 16)] for a, b, c in prompts], blocks=14, apart_ns=10**6)
    links: dict[int, Link] = {}
    rows, columns = [0], [0]
    tree = tree_of(playback)
    for k, frame in enumerate(playback.frames):
        if tree is None:
            break
        links = {**{c: one for c, one in links.items() if c not in tree.links[k]}, **tree.links[k]}
        places = tree.at(k, frame.cells)
        assert places == places_of(links, frame.cells)
        assert set(places) == set(np.flatnonzero(frame.cells != FREE).tolist())
        assert len({(place.column, place.row) for place in places.values()}) == len(places)
        rows += [place.row + 1 for place in places.values()]
        columns += [place.column + 1 for place in places.values()]
        for cell, place in places.items():
            if (before := places.get(links[cell].before)) is not None:
                assert place.column == before.column + 1
                assert place.parent_row == before.row
    assert tree is None or (tree.rows, tree.columns) == (max(rows), max(columns))


def test_the_page_holds_the_tree_of_its_first_frame_and_every_change() -> None:
    playback = watched([[(1, 48), (2, 16)], [(1, 48), (3, 16)]])
    tree = tree_of(playback)
    assert tree is not None
    html = playback_page([playback]).html()
    found = re.search(r'id="memory-0-data">(.*?)</script>', html, re.S)
    assert found is not None
    told = json.loads(found[1])["links"]
    assert told == [[n for cell, link in one.items() for n in (cell, *link)] for one in tree.links]
    drawn = re.search(r'<svg id="memory-0-tree".*?</svg>', html, re.S)
    assert drawn is not None
    at = playback.fullest
    places = tree.at(at, playback.frames[at].cells)
    assert len(re.findall(r'<g class="(?:held|cached)', drawn[0])) == len(places)
    assert len(re.findall(r'<path d="M', drawn[0])) == sum(p.row != p.parent_row for p in places.values())
