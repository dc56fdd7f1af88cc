"""Record of what a live server was asked, as a trace that `servesim run` replays. It holds no text and no tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from servesim.contracts.request import Request
from servesim.errors import UserError
from servesim.run.result_files import write_text
from servesim.run.scenario import Scenario
from servesim.workload.trace import Content, Samples, Trace


class _Node:
    """Tokens that follow those of its parents in at least one sequence; `content` is the run that they belong to."""

    __slots__ = ("content", "next", "tokens")

    def __init__(self, content: int, tokens: array[int]) -> None:
        self.content, self.tokens = content, tokens
        self.next: dict[int, _Node] = {}


class PrefixTree:
    """Sequences of tokens as content runs: two sequences share exactly the prefix that their runs share."""

    def __init__(self) -> None:
        self._root = _Node(0, array("I"))
        self._fresh = 0

    def add(self, prompt: Sequence[int], answer: Sequence[int], row: int) -> list[tuple[int, int]]:
        """Add a prompt with its answer, which is the content -(row + 1), and return the prompt's runs."""
        tokens = array("I", prompt)
        node, at, runs = self._follow(tokens)
        if at < len(tokens):
            self._fresh += 1
            runs.append((self._fresh, len(tokens) - at))
            grown = node.next[tokens[at]] = _Node(self._fresh, tokens[at:])
            node = grown
        if answer and answer[0] not in node.next:
            node.next[answer[0]] = _Node(-row - 1, array("I", answer))
        return runs

    def _follow(self, tokens: array[int]) -> tuple[_Node, int, list[tuple[int, int]]]:
        """Return the node at which the longest known prefix ends (it is split there), its length, and its runs."""
        node, at = self._root, 0
        runs: list[tuple[int, int]] = []
        while at < len(tokens) and (after := node.next.get(tokens[at])) is not None:
            most = min(len(after.tokens), len(tokens) - at)
            same = most if after.tokens[:most] == tokens[at : at + most] else _agree(after.tokens, tokens, at, most)
            if same < len(after.tokens):
                _split(after, same)
            if runs and runs[-1][0] == after.content:
                runs[-1] = (after.content, runs[-1][1] + same)
            else:
                runs.append((after.content, same))
            node, at = after, at + same
            if same < most:
                break
        return node, at, runs


def _agree(known: array[int], tokens: array[int], at: int, most: int) -> int:
    return next((i for i in range(most) if known[i] != tokens[at + i]), most)


def _split(node: _Node, length: int) -> None:
    """Let a node end after `length` of its tokens; the others become its only child, of the same run."""
    rest = _Node(node.content, node.tokens[length:])
    rest.next, node.next = node.next, {node.tokens[length]: rest}
    node.tokens = node.tokens[:length]


class Recording:
    """Arrivals, lengths, shared prefixes and priorities of requests, and when clients left. The tokens that prompts
    have in common are found while the server runs, so its memory grows by 4 bytes per token; no token is written."""

    def __init__(self) -> None:
        self._tree = PrefixTree()
        self._columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        self._runs: list[tuple[int, int]] = []
        self._ends = [0]
        self._further: list[int] = []  # by row: number of samples after the first
        self._outputs: list[int] = []  # their lengths

    def __len__(self) -> int:
        return len(self._ends) - 1

    def arrived(self, request: Request, outputs: Sequence[int], prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Record a request, whose `row` is the number of requests recorded before it. `outputs`: the length of each of
        its samples; `answer`: the tokens of the first."""
        row = (request.arrival_ns, request.prompt_len, outputs[0], request.max_tokens, request.priority, -1)
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._further.append(len(outputs) - 1)
        self._outputs += outputs[1:]
        self._runs += self._tree.add(prompt, answer, request.row)
        self._ends.append(len(self._runs))

    def left(self, request: Request, ns: int) -> None:
        """Record that the client of a request left at `ns`, before the end of its answer."""
        row = request.parent.number if request.parent is not None else request.row
        self._columns["cancel_ns"][row] = ns - self._columns["arrival_ns"][row]

    def trace(self, name: str = "live") -> Trace:
        """Return the requests so far. Raise UserError if there are none."""
        if not len(self):
            raise UserError("nothing to record: no request arrived")
        columns: dict[str, Any] = {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}
        cancel = columns.pop("cancel_ns")
        ids, lengths = np.array(self._runs, dtype=np.int64).T
        return Trace(
            name=name,
            stop=columns["output_len"] < columns["max_tokens"],
            content=Content(np.array(self._ends, dtype=np.int64), ids.copy(), lengths.copy()),
            samples=Samples.of(np.array(self._further), np.array(self._outputs, dtype=np.int64)),
            cancel_ns=cancel if (cancel >= 0).any() else None,
            notes=("recorded by a live server",),
            **columns,
        )

    def save(self, path: Path) -> None:
        """Write the requests in servesim's own format for JSON lines. Raise UserError if that is impossible."""
        from servesim.traces import save_trace

        save_trace(self.trace(path.stem), path, "jsonl")


def check_record(path: Path) -> None:
    """Raise UserError unless a trace and the scenario that replays it can be written as new files."""
    for file in (path, replay_of(path)):
        if file.exists() or not file.absolute().parent.is_dir():
            raise UserError(f"--record {path}: {file} must be a new file in an existing directory")
    if replay_of(path) == path:
        raise UserError(f"--record {path}: the scenario that replays it would be written to the same file")
    try:
        path.touch()
        path.unlink()
    except OSError as error:
        raise UserError(f"--record {path}: cannot be written: {error.strerror}") from None


def names_code(asked: Scenario) -> bool:
    """Return whether a scenario names code of the user's own."""
    return ".py:" in asked.to_yaml()


def save_replay(asked: Scenario, trace: Path, done: Sequence[str]) -> Path:
    """Write next to a recorded trace the scenario that replays it: the deployment, and what was done to it while it
    served, in the form of `cluster.failures`. Policies of the user's own are asked at each step, as they were. Return
    the file."""
    file, changed = replay_of(trace), dict[str, Any](trace=trace.name)
    if names_code(asked):
        changed["mode"] = "reference"
    if done:
        cluster: Any = vars(asked)["cluster"]
        changed["cluster"] = cluster.model_copy(update={"failures": [*cluster.failures, *done]})
    write_text(file, asked.model_copy(update=changed).to_yaml(), "--record")
    return file


def replay_of(trace: Path) -> Path:
    """Return the file of the scenario that replays a recorded trace."""
    return trace.with_suffix(".yaml")


_COLUMNS = ("arrival_ns", "prompt_len", "output_len", "max_tokens", "priority", "cancel_ns")
