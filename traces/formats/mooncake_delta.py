"""Mooncake JSONL of conversations whose later turns contain only their new text (Dynamo's mooncake-delta).

Rows with the same session_id are turns: the first has a timestamp (ms), and each later one a `delay` (ms after the
previous answer) and the input_length and hash_ids of its new text alone. A later turn's prompt is the whole
conversation so far, including answers. Files whose later turns repeat the conversation are plain Mooncake; the first
hash of a later turn tells the two formats apart.
"""

from __future__ import annotations

from pathlib import Path

from servesim.errors import UserError
from servesim.workload.trace import COMPLETION, Trace

from . import _calls, _text
from ._calls import Call

NAME = "mooncake-delta"
ABOUT = "JSONL: session_id, timestamp or delay (ms), input_length (new tokens only), output_length, hash_ids"
MS = 1_000_000


def detect(head: bytes) -> bool:
    return _text.first_object(head) is not None and _text.is_delta(head)


def read(path: Path, *, block_size: int = 512) -> Trace:
    calls: list[Call] = []
    numbers: dict[object, int] = {}
    last: dict[str, int] = {}  # position of the session's last turn
    for line, row in _text.json_lines(path):
        session = str(_text.need(path, line, row, "session_id"))
        new = _calls.count(path, line, "input_length", row.get("input_length"))
        output = _calls.count(path, line, "output_length", row.get("output_length"))
        if row.get("hash_ids") is None:
            runs = [(numbers.setdefault(("line", line), len(numbers)), new)]
        else:
            runs = _calls.block_runs(path, line, row["hash_ids"], new, block_size, numbers)
        labels = {"session": session}
        name = str(row["request_id"]) if "request_id" in row else None
        before = last.get(session)
        last[session] = len(calls)
        if before is None:
            at = _calls.seconds_ns(path, line, "timestamp", _text.need(path, line, row, "timestamp"), MS)
            calls.append(Call(line, at, new, output, runs, [], labels, name))
            continue
        pause = _calls.seconds_ns(path, line, "delay", row.get("delay", 0), MS)
        earlier = calls[before]
        assert earlier.runs is not None
        whole = [*earlier.runs, (-before - 1, earlier.output), *runs]
        prompt = earlier.prompt + earlier.output + new
        edges = [(before, COMPLETION, pause, 0)]
        calls.append(Call(line, earlier.at_ns, prompt, output, whole, edges, labels, name))
    if not calls:
        raise UserError(f"{path}: no requests")
    return _calls.build(path, calls)
