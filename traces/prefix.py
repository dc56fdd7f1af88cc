"""Shared prefixes of a trace's content: the part of each prompt that an infinite cache would hold, and the ids of
blocks.

The code works on runs, never on tokens: 12,000 prompts of 12,000 tokens take a fraction of a second.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from servesim.workload.trace import Content, Ints


def shared_prefix_tokens(content: Content) -> Ints:
    """Return, for each row, the number of leading tokens of its prompt that also begin some earlier row's prompt
    (int64).

    This builds a trie of runs: a node is a prefix of whole runs, and an edge is (content id, run length). If no edge
    matches, the longest run of the same id at that node still shares its first tokens.
    """
    children: dict[tuple[int, int, int], int] = {}
    longest: dict[tuple[int, int], int] = {}
    ids, lengths = content.ids.tolist(), content.lengths.tolist()
    offsets = content.offsets.tolist()
    shared = np.zeros(len(offsets) - 1, dtype=np.int64)
    for row in range(len(shared)):
        node, matched, following = 0, 0, True
        for run in range(offsets[row], offsets[row + 1]):
            content_id, length = ids[run], lengths[run]
            child = children.get((node, content_id, length))
            seen = longest.get((node, content_id), 0)
            if following:
                matched += length if child is not None else min(length, seen)
                following = child is not None
            if child is None:
                child = children[(node, content_id, length)] = len(children) + 1
                longest[(node, content_id)] = max(seen, length)
            node = child
        shared[row] = matched
    return shared


def block_hits(content: Content, prompt_len: Ints, block_size: int) -> tuple[Ints, Ints, Ints]:
    """Return the blocks, hit blocks, and hit tokens of each row, given an infinite cache that matches leading blocks.

    Blocks are counted as in the Mooncake traces: ceil(prompt / block_size), and the partial last block is a hit if the
    whole prompt is a prefix of an earlier one. Engines hash only full blocks and recompute the last token, so they have
    slightly fewer hits.
    """
    shared = shared_prefix_tokens(content)
    blocks = -(-prompt_len // block_size)
    whole = shared == prompt_len
    hit_blocks = np.where(whole, blocks, shared // block_size)
    hit_tokens = np.where(whole, prompt_len, hit_blocks * block_size)
    return blocks, hit_blocks, hit_tokens


def block_ids(content: Content, block_size: int) -> list[list[int]]:
    """Return the ids of each row's blocks of `block_size` tokens (the last may be partial): equal ids mean equal
    prefixes.

    Content already split into such blocks, with one length per id, keeps its ids. Otherwise ids are numbered in order
    of first use and chained: an id identifies its block and everything before it.
    """
    if is_cut(content, block_size):
        ids = content.ids.tolist()
        return [ids[a:b] for a, b in pairwise(content.offsets.tolist())]
    chain: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}
    rows: list[list[int]] = []
    for row in range(len(content.offsets) - 1):
        parent, out = -1, []
        for block in _cut(content.runs(row), block_size):
            parent = chain.setdefault((parent, block), len(chain))
            out.append(parent)
        rows.append(out)
    return rows


def is_cut(content: Content, size: int) -> bool:
    """Return whether all runs are whole blocks of `size` tokens (a prompt's last may be partial), with one length per
    id."""
    if len(content.ids) and content.ids.min() < 0:
        return False  # lengths of outputs are unknown here
    last = np.zeros(len(content.ids), dtype=np.bool_)
    last[content.offsets[1:] - 1] = True
    order = np.argsort(content.ids, kind="stable")
    ids, lengths = content.ids[order], content.lengths[order]
    one_length = np.all((ids[1:] != ids[:-1]) | (lengths[1:] == lengths[:-1]))
    return bool(one_length and np.all(content.lengths[~last] == size) and np.all(content.lengths <= size))


def _cut(runs: list[tuple[int, int]], size: int) -> list[tuple[tuple[int, int, int], ...]]:
    """Return the blocks as tuples of (content id, first token, token count)."""
    blocks: list[tuple[tuple[int, int, int], ...]] = []
    pieces: list[tuple[int, int, int]] = []
    room = size
    for content_id, length in runs:
        start = 0
        while start < length:
            step = min(room, length - start)
            pieces.append((content_id, start, step))
            start += step
            room -= step
            if room == 0:
                blocks.append(tuple(pieces))
                pieces, room = [], size
    return [*blocks, tuple(pieces)] if pieces else blocks
