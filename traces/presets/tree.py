"""Fitted prefix tree of a conversation trace.

Every prompt begins with the same system prompt. A new conversation adds its own text. A later turn shares the prompt of
an earlier request up to that request's last full block (its partial last block is hashed again) and extends it. The fit
records the frequency of later turns, the length of their prompts, their share of new text, and how many rows back the
extended request is. Row i depends only on earlier rows, so a shorter twin is the beginning of a longer one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.workload.trace import Content, Ints

from .. import prefix
from .tables import GIVEN_LEVELS, JointTable

Floats = NDArray[np.float64]
SHARE_BINS = 24
Runs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TreeFit:
    block_size: int
    requests: int  # rows in the original
    turn_share: Floats  # share of later turns in each 1/24 of the original; beyond its end, the mean of its last third
    branch_share: float  # share of later turns that branch off before the last full block
    age_rows: Floats  # quantiles (GIVEN_LEVELS) of how many rows back the extended request is
    first: JointTable  # prompt and output lengths of first turns
    later: JointTable  # prompt and output lengths and new blocks of later turns

    def draw(self, requests: int, seed: int) -> tuple[Ints, Ints, Content]:
        """Draw the prompt lengths, output lengths and content of the first `requests` rows."""
        rows = np.arange(requests, dtype=np.int64)
        share = self.turn_share[np.minimum(rows * SHARE_BINS // self.requests, SHARE_BINS - 1)]
        share = np.where(rows < self.requests, share, self.turn_share[-SHARE_BINS // 3 :].mean())
        is_later = draws.stratified(seed, "preset turn", requests) < share
        turns = int(is_later.sum())
        first = self.first.draw(requests - turns, seed, "preset first")
        later = self.later.draw(turns, seed, "preset later")
        prompt, output, new_blocks = (np.zeros(requests, dtype=np.int64) for _ in range(3))
        prompt[is_later], prompt[~is_later] = later["prompt"], first["prompt"]
        output[is_later], output[~is_later] = later["output"], first["output"]
        new_blocks[is_later] = later["new_blocks"]
        age = np.interp(draws.uniform(seed, "preset age", rows), GIVEN_LEVELS, self.age_rows)
        target = (rows - np.maximum(np.rint(age), 1).astype(np.int64)).tolist()
        new_blocks_of = new_blocks.tolist()
        branch = (draws.uniform(seed, "preset branch", rows) < self.branch_share).tolist()
        grown = _Growing(self.block_size)
        for row, (length, turn) in enumerate(zip(prompt.tolist(), is_later.tolist(), strict=True)):
            if turn:
                grown.extend(row, length, new_blocks_of[row], target[row], branch[row])
            else:
                grown.begin(row, length)
        return np.array(grown.prompt, dtype=np.int64), output, grown.content()

    def to_json(self) -> dict[str, Any]:
        return {
            "block_size": self.block_size,
            "requests": self.requests,
            "turn_share": np.round(self.turn_share, 4).tolist(),
            "branch_share": round(self.branch_share, 4),
            "age_rows": np.round(self.age_rows, 1).tolist(),
            "first": self.first.to_json(),
            "later": self.later.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TreeFit:
        return cls(
            data["block_size"],
            data["requests"],
            np.array(data["turn_share"]),
            data["branch_share"],
            np.array(data["age_rows"]),
            JointTable.from_json(data["first"]),
            JointTable.from_json(data["later"]),
        )


@dataclass(slots=True)
class _Growing:
    """Rows drawn so far, and the rows not yet extended, by their number of blocks."""

    size: int
    prompt: list[int] = field(default_factory=list)
    runs: list[Runs] = field(default_factory=list)
    leaves: dict[int, list[int]] = field(default_factory=dict)
    longest: int = 0  # block count of the longest prompt so far

    def begin(self, row: int, length: int) -> None:
        """Add a first turn: the system prompt (content 0, one block) and its own text (content row + 1)."""
        head = min(self.size, length)
        self._add(row, length, [(0, head)] + ([(row + 1, length - head)] if length > head else []))

    def extend(self, row: int, length: int, new_blocks: int, target: int, branch: bool) -> None:
        """Add a later turn that shares all but its last `new_blocks` blocks with an earlier request: the one nearest to
        `target` among those that fit."""
        blocks = -(-length // self.size)
        shared = min(blocks - max(new_blocks, 1), self.longest - 1)
        if shared < 1:
            return self.begin(row, length)
        if new_blocks <= 0 and (same := self._nearest_leaf(blocks, target)) is not None:
            return self._add(row, self.prompt[same], self.runs[same])  # resent verbatim
        parent = None if branch else self._nearest_leaf(shared + 1, target)
        if parent is None:
            parent = self._nearest(shared, target)
        else:
            self.leaves[shared + 1].remove(parent)
        kept = _cut(self.runs[parent], shared * self.size)
        rest = length - shared * self.size
        self._add(row, length, [*kept, (row + 1, rest)])

    def content(self) -> Content:
        counts = [len(runs) for runs in self.runs]
        flat = np.array([run for runs in self.runs for run in runs], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return Content(offsets, np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]))

    def _add(self, row: int, length: int, runs: Runs) -> None:
        blocks = -(-length // self.size)
        self.prompt.append(length)
        self.runs.append(runs)
        self.leaves.setdefault(blocks, []).append(row)
        self.longest = max(self.longest, blocks)

    def _nearest_leaf(self, blocks: int, target: int) -> int | None:
        rows = self.leaves.get(blocks)
        if not rows:
            return None
        at = bisect_left(rows, target)
        return min(rows[max(at - 1, 0) : at + 1], key=lambda row: abs(row - target))

    def _nearest(self, shared: int, target: int) -> int:
        """Return the row nearest to `target` with more than `shared` blocks; `longest` guarantees that such a row
        exists."""
        target = min(max(target, 0), len(self.prompt) - 1)
        for step in range(len(self.prompt)):
            for row in (target - step, target + step):
                if 0 <= row < len(self.prompt) and self.prompt[row] > shared * self.size:
                    return row
        raise AssertionError("no prompt is long enough")


def _cut(runs: Runs, tokens: int) -> Runs:
    out: Runs = []
    for content_id, length in runs:
        if tokens <= 0:
            break
        out.append((content_id, min(length, tokens)))
        tokens -= length
    return out


def fit_tree(content: Content, prompt: Ints, output: Ints, block_size: int) -> TreeFit:
    """Fit statistics of which request extends which. A later turn is a request that shares more than the system
    prompt's block with an earlier request."""
    blocks, hits, _ = prefix.block_hits(content, prompt, block_size)
    rows = np.flatnonzero(hits > 1)
    parents = _last_owners(prefix.block_ids(content, block_size), hits, rows)
    is_later = hits > 1
    bins = np.arange(len(prompt)) * SHARE_BINS // len(prompt)
    new_blocks = (blocks - hits)[rows]
    return TreeFit(
        block_size=block_size,
        requests=len(prompt),
        turn_share=np.bincount(bins, weights=is_later) / np.bincount(bins),
        branch_share=float(np.mean(hits[rows] < blocks[parents] - 1)),
        age_rows=np.quantile(rows - parents, GIVEN_LEVELS),
        first=JointTable.fit(prompt[~is_later], 16, output=output[~is_later]),
        later=JointTable.fit(prompt[rows], 16, output=output[rows], new_blocks=new_blocks),
    )


def _last_owners(ids: list[list[int]], hits: Ints, rows: Ints) -> Ints:
    """Return, for each of `rows`, the latest earlier row that contains the last of its hit blocks."""
    owner: dict[int, int] = {}
    wanted = set(rows.tolist())
    found: list[int] = []
    for row, blocks in enumerate(ids):
        if row in wanted:
            found.append(owner[blocks[int(hits[row]) - 1]])
        owner.update(dict.fromkeys(blocks, row))
    return np.array(found, dtype=np.int64)
