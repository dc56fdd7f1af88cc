"""Bailian / Qwen usage traces (alibaba-edu/qwen-bailian-usagetraces-anon; Wang et al., ATC'25): JSON lines.

chat_id, parent_chat_id (-1: first turn), timestamp (s), input_length, output_length, type, turn and hash_ids of blocks
of 16 tokens (the last partial). The end times of answers are not recorded, so a later turn is sent at its recorded time
or when its parent has its answer, whichever is later.
"""

from __future__ import annotations

from pathlib import Path

from servesim.workload.trace import COMPLETION, Trace

from . import _calls, _text
from ._calls import Call

NAME = "bailian"
ABOUT = "JSONL: chat_id, parent_chat_id, timestamp (s), input_length, output_length, type, turn, hash_ids"
TIMINGS = ("original", "open")
ROOT = -1


def detect(head: bytes) -> bool:
    return b'"parent_chat_id"' in head[:4096] and b'"chat_id"' in head[:4096]


def read(path: Path, *, timing: str = "original", block_size: int = 16) -> Trace:
    _calls.check_timing(path, timing, TIMINGS)
    calls: list[Call] = []
    numbers: dict[object, int] = {}
    chats: dict[object, int] = {}
    roots: dict[object, str] = {}
    parents = []
    for line, row in _text.json_lines(path):
        chat, parent = _text.need(path, line, row, "chat_id"), row.get("parent_chat_id", ROOT)
        prompt = _calls.count(path, line, "input_length", row.get("input_length"))
        output = _calls.count(path, line, "output_length", row.get("output_length"))
        at = _calls.seconds_ns(path, line, "timestamp", _text.need(path, line, row, "timestamp"))
        runs = None
        if row.get("hash_ids") is not None:
            runs = _calls.block_runs(path, line, row["hash_ids"], prompt, block_size, numbers)
        roots[chat] = roots.get(parent, str(chat))
        labels = {"session": roots[chat], "class": str(row.get("type", ""))}
        chats[chat] = len(calls)
        parents.append(parent)
        calls.append(Call(line, at, prompt, output, runs, [], labels, str(chat)))
    for call, parent in zip(calls, parents, strict=True):
        if timing == "original" and parent in chats:
            call.after = [(chats[parent], COMPLETION, 0, 0)]
    return _calls.build(path, calls, (f"timing={timing}",))
