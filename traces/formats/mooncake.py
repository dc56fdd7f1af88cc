"""Mooncake JSONL (Qin et al., FAST'25): the format that most tools can exchange.

One object per line: {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}. A hash id identifies a block
of 512 prompt tokens (the last one partial); equal ids mean equal content. Extensions of Dynamo and AIPerf:
`request_id`; `session_id` with `delay` (ms after the previous answer) or a timestamp before which the request is not
sent; `priority`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from servesim.draws import uniform
from servesim.errors import UserError, shown
from servesim.workload.trace import COMPLETION, After, Content, Ints, Trace

from .. import prefix
from . import _text

NAME = "mooncake"
ABOUT = "JSONL: timestamp (ms), input_length, output_length, hash_ids"
HOLDS = frozenset({"content", "priority"})
BLOCK_SIZE = 512
SPREADS = ("none", "uniform")


def detect(head: bytes) -> bool:
    first = _text.first_object(head)
    if first is not None:
        return "input_length" in first and "chat_id" not in first and not _text.is_delta(head)
    # The first line is longer than the head: the hash_ids of a very long prompt.
    start = head.lstrip()[:200]
    return start.startswith(b"{") and b'"input_length"' in start and b'"chat_id"' not in start


def read(path: Path, *, sort: bool = False, block_size: int = BLOCK_SIZE, spread_ticks: str = "none") -> Trace:
    """Read a trace. With `spread_ticks="uniform"`, requests that share a clock tick are spread over the tick by fixed
    keyed draws."""
    if spread_ticks not in SPREADS:
        raise UserError(f"{path}: spread_ticks is {spread_ticks!r} but must be one of {', '.join(SPREADS)}")
    if block_size < 1:
        raise UserError(f"{path}: block_size is {block_size} but must be at least 1")
    lines: list[int] = []
    times, prompts, outputs, hashes, names, priorities = [], [], [], [], [], []
    sessions = _Turns(path)
    for number, row in _text.json_lines(path):
        lines.append(number)
        times.append(sessions.add(number, row))
        priorities.append(row.get("priority") or 0)
        prompts.append(_text.need(path, number, row, "input_length"))
        outputs.append(_text.need(path, number, row, "output_length"))
        hashes.append(row.get("hash_ids"))
        names.append(row.get("request_id"))
    prompt_len = _text.token_counts(path, "input_length", prompts, lines)
    columns: dict[str, Any] = {
        "arrival_ns": _text.times_ns(path, "timestamp", times, lines, 1_000_000),
        "prompt_len": prompt_len,
        "output_len": _text.token_counts(path, "output_length", outputs, lines),
        "content": _content(path, prompt_len, hashes, lines, block_size),
        "request_id": tuple(map(str, names)) if all(name is not None for name in names) else None,
        "after": After.of(sessions.edges),
        "labels": {"session": tuple(sessions.names)} if any(sessions.names) else {},
        "priority": _text.whole(path, "priority", priorities, lines),
    }
    columns = _text.in_order(path, columns, lines, sort or sessions.untimed)
    if spread_ticks == "uniform":
        columns["arrival_ns"], note = spread(columns["arrival_ns"])
        columns["notes"] = (*columns["notes"], note)
    return Trace.from_lengths(path.stem, **columns)


class _Turns:
    """Dependencies of rows that are later turns of a session, and names of sessions."""

    def __init__(self, path: Path) -> None:
        self.edges: list[list[tuple[int, int, int, int]]] = []
        self.names: list[str] = []
        self.untimed = False
        """Whether some turn lacks its own time."""
        self._path = path
        self._last: dict[str, tuple[int, Any]] = {}  # session -> row and time of its latest turn

    def add(self, line: int, row: dict[str, Any]) -> Any:
        """Add a row and return its timestamp or, if it has a delay instead, the previous turn's timestamp."""
        name = str(row["session_id"]) if row.get("session_id") is not None else ""
        before = self._last.get(name) if name else None
        at = row.get("timestamp")
        if before is None and at is None:
            raise UserError(f"{self._path}: line {line}: no 'timestamp' (ms), and no earlier turn of its session")
        pause = 0
        if before is not None and row.get("delay") is not None:
            pause = int(_text.times_ns(self._path, "delay", [row["delay"]], [line], 1_000_000)[0])
        if before is not None and (at is None or pause):
            at, self.untimed = before[1], True
        if name:
            self._last[name] = (len(self.edges), at)
        self.edges.append([(before[0], COMPLETION, pause, 0)] if before is not None else [])
        self.names.append(name)
        return at


def write(trace: Trace, path: Path) -> None:
    """Write blocks of 512 tokens; times keep their nanoseconds as fractions of a millisecond."""
    hashes = prefix.block_ids(trace.content, BLOCK_SIZE) if trace.content is not None else None
    columns = (trace.arrival_ns, trace.prompt_len, trace.output_len, trace.priority)
    arrival, prompt, output, priority = (c.tolist() for c in columns)
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in range(len(trace)):
            line: dict[str, Any] = {"timestamp": _text.milliseconds(arrival[row])}
            line |= {"input_length": prompt[row], "output_length": output[row]}
            if hashes is not None:
                line["hash_ids"] = hashes[row]
            if trace.request_id is not None:
                line["request_id"] = trace.request_id[row]
            if priority[row]:
                line["priority"] = priority[row]
            file.write(json.dumps(line) + "\n")


def spread(arrival_ns: Ints) -> tuple[Ints, str]:
    """Return arrivals spread over their clock ticks, in the same order, and a note on the spreading.

    The published traces are quantized to ticks of about 3 s, so if they are replayed as is, about ten requests at a
    time arrive simultaneously. Each tick's requests get fixed uniform draws within the tick, whose length is the median
    step between distinct times.
    """
    distinct, counts = np.unique(arrival_ns, return_counts=True)
    steps = np.diff(distinct)
    if len(arrival_ns) == len(distinct):
        return arrival_ns, "spread_ticks=uniform has no effect: no two requests share a time"
    if len(steps) == 0:
        return arrival_ns, "spread_ticks=uniform has no effect: all requests share one time, which shows no tick"
    tick = int(np.median(steps))
    widths = np.minimum(np.append(steps, tick), tick)
    start = np.repeat(distinct, counts)
    width = np.repeat(widths, counts)
    draws = uniform(0, "spread ticks", np.arange(len(arrival_ns)))
    moved = np.sort(start + (draws * width).astype(np.int64))
    return moved - moved[0], f"spread_ticks=uniform: arrivals spread over ticks of {tick / 1e9:g} s"


def _content(path: Path, prompt_len: Ints, hashes: list[Any], lines: list[int], size: int) -> Content | None:
    if all(ids is None for ids in hashes):
        return None
    blocks = -(-prompt_len // size)
    for ids, line, count, length in zip(hashes, lines, blocks.tolist(), prompt_len.tolist(), strict=True):
        if not isinstance(ids, list):
            raise UserError(f"{path}: line {line}: hash_ids is {shown(ids)} but must be a list in all rows or in none")
        if len(ids) != count:
            raise UserError(
                f"{path}: line {line}: {len(ids)} hash_ids for input_length {length} instead of {count} (one per "
                f"block of {size} tokens, including a partial last block)"
            )
        if not all(type(i) is int for i in ids):
            raise UserError(f"{path}: line {line}: hash_ids must be whole numbers")
    flat = [i for ids in hashes for i in ids]
    try:
        values = np.array(flat, dtype=np.int64)
    except OverflowError:  # 64-bit hashes: only equality matters, so number them in order of first use
        numbers: dict[int, int] = {}
        values = np.array([numbers.setdefault(i, len(numbers)) for i in flat], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(blocks))).astype(np.int64)
    lengths = np.full(len(values), size, dtype=np.int64)
    lengths[offsets[1:] - 1] = prompt_len - (blocks - 1) * size
    return Content(offsets, values, lengths)
