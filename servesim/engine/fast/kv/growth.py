"""Growth of block tables while requests decode one token per step each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


def rounds_until_short(slack: Sequence[int], size: int, free_blocks: int, limit: int) -> int:
    """Return for how many rounds (at most `limit`) requests with `slack` unused slots each can each take one token per
    round, given `free_blocks` blocks of `size` slots."""
    if len(slack) * -(-limit // size) <= free_blocks:  # no request needs more blocks than this
        return limit

    def needed(k: int) -> int:
        return sum(-(-(k - s) // size) for s in slack if k > s)

    return most_rounds(needed, free_blocks, limit)


def most_rounds(needed: Callable[[int], int], free: int, limit: int) -> int:
    """Return the largest number of rounds, at most `limit`, for which `needed` is at most `free`; `needed` is
    non-decreasing."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= free:
            low = middle
        else:
            high = middle - 1
    return low


def blocks_by_round(slack: Sequence[int], size: int, k: int) -> list[tuple[int, int]]:
    """Return (round from 1 to k, blocks taken in that round) for each round that takes blocks, in order."""
    due = [0] * (k + 1)
    for unused, count in Counter(slack).items():
        for step in range(unused + 1, k + 1, size):
            due[step] += count
    return [(step, blocks) for step, blocks in enumerate(due) if blocks]
