"""Prompts of one session, built from the ids of their full blocks and from the outputs that later prompts contain."""

from __future__ import annotations

from pathlib import Path

from servesim.errors import UserError

from ._calls import Runs


class SessionBlocks:
    """Prompts of a session so far, as a tree of block runs: a node represents a sequence of whole runs from the start.

    Content ids are numbered from `next_id` on, so that sessions share no content.
    """

    def __init__(self, block_size: int, next_id: int, outputs: bool) -> None:
        """Begin a session. With `outputs`, the first prompt that extends the whole prompt of an earlier call is assumed
        to continue with that call's output."""
        self.next_id = next_id
        self._size = block_size
        self._outputs = outputs
        self._nodes: dict[tuple[int, int, int], int] = {}  # (node, first id, blocks) -> node
        self._longest: dict[tuple[int, int], tuple[int, int]] = {}  # (node, first id) -> (blocks, position)
        self._ends: dict[tuple[int, int, int], int] = {}  # (node, first id, blocks) -> position of call
        self._extended: set[int] = set()
        self._calls: dict[int, tuple[Runs, int, int]] = {}  # position -> runs, prompt, output

    def add(self, path: Path, line: int, position: int, blocks: Runs, prompt: int, output: int) -> Runs:
        """Add the next prompt and return it as content runs. `blocks` holds a (first id, count) pair for each maximal
        run of successive ids."""
        total = sum(count for _, count in blocks)
        if total != prompt // self._size:
            raise UserError(
                f"{path}: line {line}: {total} hashes for {prompt} tokens instead of {prompt // self._size} "
                f"(full blocks of {self._size} tokens)"
            )
        shared, holder, whole = self._match(blocks)
        runs: Runs = []
        if whole is not None and self._outputs and whole not in self._extended:
            before, before_prompt, before_output = self._calls[whole]
            if prompt >= before_prompt + before_output:
                runs = [*before, (-whole - 1, before_output)]
                self._extended.add(whole)
        if not runs and holder is not None:
            runs = _cut(self._calls[holder][0], shared * self._size)
        rest = prompt - sum(length for _, length in runs)
        if rest:
            runs.append((self.next_id, rest))
            self.next_id += 1
        self._calls[position] = (runs, prompt, output)
        self._enter(blocks, position)
        return runs

    def _match(self, blocks: Runs) -> tuple[int, int | None, int | None]:
        """Return the largest number of leading blocks shared with an earlier prompt, the position of an earlier prompt
        that begins with these blocks, and that of one that consists of exactly these blocks."""
        node = shared = 0
        holder = whole = None
        for first, count in blocks:
            longest, position = self._longest.get((node, first), (0, -1))
            step = min(count, longest)
            if not step:
                break
            shared, holder = shared + step, position
            whole = self._ends.get((node, first, step))
            child = self._nodes.get((node, first, count))
            if child is None:
                break
            node = child
        return shared, holder, whole

    def _enter(self, blocks: Runs, position: int) -> None:
        node = 0
        for first, count in blocks:
            if count > self._longest.get((node, first), (0, -1))[0]:
                self._longest[node, first] = (count, position)
            end = (node, first, count)
            node = self._nodes.setdefault(end, len(self._nodes) + 1)
        if blocks:
            self._ends[end] = position


def _cut(runs: Runs, tokens: int) -> Runs:
    out: Runs = []
    for content, length in runs:
        if tokens <= 0:
            break
        out.append((content, min(length, tokens)))
        tokens -= length
    return out
