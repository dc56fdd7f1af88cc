"""Result of `vllm bench serve --save-result` as a workload: JSON with input_lens, output_lens and start_times (s) if it
was saved with details. Otherwise it has only totals, and all requests get the mean lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError, shown
from servesim.limits import limits, too_much
from servesim.sentinels import NEVER
from servesim.untrusted import read_json
from servesim.workload.trace import Ints, Trace

from . import _text

NAME = "vllm-bench"
ABOUT = "JSON: num_prompts, completed, total_input_tokens[, input_lens, output_lens, start_times]"


def detect(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"num_prompts"' in head and b'"max_concurrency"' in head


def read(path: Path) -> Trace:
    result = read_json(path)
    if not isinstance(result, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(result).__name__}")
    notes: list[str] = []
    if result.get("input_lens") and result.get("output_lens"):
        prompt, output, sent = _detailed(path, result, notes)
    else:
        prompt, output = (_even(path, result, f"total_{side}_tokens") for side in ("input", "output"))
        sent = np.zeros(len(prompt), dtype=np.int64)
        notes.append("lengths of requests are not recorded: all have the mean length")
    if result.get("max_concurrency"):
        notes.append(
            f"recorded with max_concurrency={result['max_concurrency']}: set --max-concurrency to replay it that way"
        )
        sent = np.zeros_like(sent)
    elif not sent.any():
        notes.append(
            f"send times are not recorded (request_rate {result.get('request_rate')}): all requests arrive at once"
        )
    return Trace.from_lengths(path.stem, np.zeros_like(sent), prompt, output, notes=tuple(notes)).at(sent)


def _detailed(path: Path, result: dict[str, Any], notes: list[str]) -> tuple[Ints, Ints, Ints]:
    lens, outs = result["input_lens"], result["output_lens"]
    starts = result.get("start_times")
    for name, values in (("input_lens", lens), ("output_lens", outs), ("start_times", starts or [])):
        if not isinstance(values, list):
            raise UserError(f"{path}: {name} is {shown(values)} but must be a list")
    starts = starts or [0.0] * len(lens)
    if not len(lens) == len(outs) == len(starts):
        raise UserError(
            f"{path}: there are {len(lens)} input_lens, {len(outs)} output_lens and {len(starts)} start_times"
        )
    kept = [i for i, tokens in enumerate(outs) if tokens != 0]
    if len(kept) < len(outs):
        notes.append(f"skipped {len(outs) - len(kept)} failed requests without output")
    lines = [1] * len(kept)
    prompt, output = (_text.token_counts(path, name, [result[name][i] for i in kept], lines) for name in
                      ("input_lens", "output_lens"))  # fmt: skip
    sent = _text.times_ns(path, "start_times", [starts[i] for i in kept], lines, 1_000_000_000)
    return prompt, output, sent - sent.min(initial=NEVER) if len(sent) else sent


def _even(path: Path, result: dict[str, Any], key: str) -> Ints:
    """Divide a total into whole tokens as evenly as possible."""
    count, total = result.get("completed"), result.get(key)
    if type(count) is not int or type(total) is not int or not 1 <= count <= total:
        raise UserError(
            f"{path}: completed is {shown(count)} and {key} is {shown(total)}: there are no requests for these tokens"
        )
    if count > limits().rows:
        raise too_much(path, "requests are", "rows")
    if count * total >= 1 << 62:
        raise UserError(f"{path}: {key} is {total} for {count} requests, which is impossible")
    edges = np.arange(count + 1, dtype=np.int64) * total // count
    return np.diff(edges)
