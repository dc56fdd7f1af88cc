"""GenAI-Perf's profile_export.json (perf_analyzer's): {"experiments": [{"requests": [{"timestamp", "request_inputs",
"response_timestamps", "response_outputs"}]}]}, times in ns.

The file records texts, not tokens. Prompts are counted at four characters per token, and answers at one token per
response; if all requests have the same lengths, `columns="prompt=2000,output=300"` sets the true ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servesim.errors import UserError, shown
from servesim.untrusted import json_value, read_json
from servesim.workload.trace import Trace

from . import _text
from ._names import Columns
from ._recorded import Recorded, need, optional, trace_of
from ._recorded import recorded as recorded_of

NAME = "genai-perf"
ABOUT = "JSON of GenAI-Perf: experiments[{requests[{timestamp (ns), request_inputs, response_timestamps}]}]"
CHARACTERS = 4
"""Characters of English text per token (OpenAI's rule of thumb for its tokenizers)."""


def detect(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"experiments"' in head and b'"response_timestamps"' in head


def read(path: Path, *, columns: str | Mapping[str, Any] | None = None) -> Trace:
    return trace_of(recorded(path, columns))


def recorded(path: Path, columns: str | Mapping[str, Any] | None = None) -> Recorded:
    """Return the requests with their latencies."""
    told = Columns.of(columns)
    document = read_json(path)
    experiments = need(path, 1, document, "experiments")
    if not isinstance(experiments, list):
        raise UserError(f"{path}: experiments is {shown(experiments)[:80]} but must be a list")
    rows: list[Any] = []
    for i, experiment in enumerate(experiments, start=1):
        found = need(path, i, experiment, "requests")
        if not isinstance(found, list):
            raise UserError(f"{path}: experiment {i}: requests is {shown(found)[:80]} but must be a list")
        rows += found
    done = [row for row in rows if optional(row, "response_timestamps")]
    silent = 0

    def take(i: int, row: Any) -> dict[str, Any]:
        nonlocal silent
        start, stamps = need(path, i, row, "timestamp"), row["response_timestamps"]
        if not isinstance(stamps, list):
            raise UserError(f"{path}: request {i}: response_timestamps is {shown(stamps)[:80]} but must be a list")
        start, first, last = _text.times_ns(path, "timestamp", [start, stamps[0], stamps[-1]], [i] * 3, 1).tolist()
        text = sum(map(len, _texts(need(path, i, row, "request_inputs"))))
        silent += not text
        return {
            "start_ns": start,
            "prompt": told.constant("prompt", ()) or max(1, -(-text // CHARACTERS)),
            "output": told.constant("output", ()) or len(stamps),
            "ttft_ms": (first - start) / 1e6,
            "e2el_ms": (last - start) / 1e6,
        }

    log = recorded_of(path, done, take)
    notes = [f"output tokens counted as one per response: mean {log.output.mean():.0f}"]
    if told.constant("prompt", ()) is None:
        notes.append(
            f"{silent:,} of {len(done):,} prompts have no text in the file and are counted as 1 token each. Set "
            "--columns prompt=N."
            if silent
            else f"prompts counted at {CHARACTERS} characters per token: mean {log.prompt.mean():.0f}"
        )
    if len(rows) > len(done):
        notes.append(f"skipped {len(rows) - len(done):,} requests without a response")
    level = optional(experiments[0], "experiment.value") if len(experiments) == 1 else None
    closed = optional(experiments[0], "experiment.mode") == "concurrency" and type(level) is int and level > 0
    return Recorded(**{**vars(log), "notes": tuple(notes), "concurrency": level if closed else None})


def _texts(inputs: Any) -> Iterator[str]:
    """Yield the texts of the prompts in a request's inputs: a JSON payload given as text, or parts of it."""
    if isinstance(inputs, str):
        try:
            value = json_value(inputs)
        except ValueError:
            yield inputs
            return
        yield from _texts(value) if isinstance(value, dict | list) else (inputs,)
    elif isinstance(inputs, list):
        for part in inputs:
            yield from _texts(part)
    elif isinstance(inputs, dict):
        for key in ("payload", "messages", "prompt", "content", "text", "text_input", "inputs"):
            if key in inputs:
                yield from _texts(inputs[key])
