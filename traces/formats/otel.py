"""OpenTelemetry GenAI spans: JSON {"spans": [...]} or one span per line, as read by inference-perf's otel_trace_replay,
or OTLP ({"resourceSpans": [...]}, whole or one per line), as written by the collector's file exporter.

The reader uses each span that has gen_ai.usage token counts: trace_id (the session), start_time and end_time (ISO), the
request's model and max_tokens, and, if recorded, gen_ai.input.messages and gen_ai.output.messages. A call depends on
the last call whose output its messages contain or, without messages, on the last call of its trace that had ended by
then. Tokens per message are not recorded, so a prompt's tokens are divided among its new messages in proportion to
their characters, and the output tokens are divided evenly among the gen_ai.request.choice.count choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from servesim.errors import UserError, shown
from servesim.untrusted import json_value, read_text
from servesim.workload.trace import COMPLETION, Trace

from . import _calls, _text
from ._calls import Call, Runs
from ._clock import iso_ns
from ._recorded import Recorded

NAME = "otel"
ABOUT = "JSON: OpenTelemetry GenAI spans (trace_id, start_time, end_time, attributes gen_ai.*), or OTLP resourceSpans"
INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CHOICES = "gen_ai.request.choice.count"
FIRST_TOKEN = ("gen_ai.latency.time_to_first_token", "gen_ai.server.time_to_first_token")
"""Attribute names of the TTFT in seconds; the first is the one that vLLM uses."""
Message = tuple[str, str]


def detect(head: bytes) -> bool:
    return head.lstrip()[:1] in (b"{", b"[") and b'"gen_ai.' in head and (b'"span_id"' in head or b'"spanId"' in head)


def read(path: Path, *, timing: str = "think") -> Trace:
    _calls.check_timing(path, timing)
    spans = _calls_of(path)
    calls: list[Call] = []
    texts = _Texts()
    for position, span in enumerate(spans):
        runs, heard = texts.prompt(path, position, span)
        if heard is None and not span.messages:
            heard = next((i for i in range(position - 1, -1, -1) if spans[i].before(span)), None)
        at, edges = span.start - spans[0].start, []
        if heard is not None and timing != "open":
            pause = max(span.start - spans[heard].end, 0) if timing == "think" else 0
            edges = [(heard, COMPLETION, pause, 0)]
            at = calls[heard].at_ns if timing == "think" else at
        labels = {"session": span.trace, "model": span.model}
        calls.append(Call(span.line, at, span.prompt, span.output, runs, edges, labels, span.name, 0, span.further))
    return _calls.build(path, calls, (f"timing={timing}", "tokens of single messages estimated from their characters"))


def recorded(path: Path) -> Recorded:
    """Return the calls with their latencies."""
    spans = _calls_of(path)
    if not spans:
        raise UserError(f"{path}: no span with {INPUT[0]}")
    return Recorded(
        path,
        [span.line for span in spans],
        np.array([span.start for span in spans], dtype=np.int64),
        np.array([span.prompt for span in spans], dtype=np.int64),
        np.array([span.output for span in spans], dtype=np.int64),
        np.array([span.ttft_ms for span in spans]),
        np.array([(span.end - span.start) / 1e6 for span in spans]),
        model=next(iter({span.model for span in spans})) if len({span.model for span in spans}) == 1 else None,
    )


def _calls_of(path: Path) -> list[_Span]:
    """Return the spans that have token counts, in time order."""
    spans = [_Span(path, line, span) for line, span in _spans(path) if any(k in span["attributes"] for k in INPUT)]
    return sorted(spans, key=lambda span: span.start)


class _Span:
    """Fields of one span that the reader uses."""

    def __init__(self, path: Path, line: int, span: dict[str, Any]) -> None:
        attributes = span["attributes"]
        self.line = line
        self.name, self.trace = str(span.get("span_id", line)), str(span.get("trace_id", ""))
        self.model = str(attributes.get("gen_ai.request.model", ""))
        self.prompt, self.output = (
            _calls.count(path, line, keys[0], next((attributes[k] for k in keys if k in attributes), None))
            for keys in (INPUT, OUTPUT)
        )
        choices = attributes.get(CHOICES, 1)
        if type(choices) is not int or not 1 <= choices <= self.output:
            raise UserError(
                f"{path}: line {line}: {CHOICES} is {shown(choices)} but must be from 1 to the value of {OUTPUT[0]}"
            )
        self.output, *self.further = sorted(_share(self.output, [1] * choices), reverse=True)
        self.start, self.end = (_clock_ns(path, line, span, key) for key in ("start_time", "end_time"))
        if self.end < self.start:
            raise UserError(f"{path}: line {line}: the span ends before it starts")
        first = next((attributes[key] for key in FIRST_TOKEN if key in attributes), None)
        self.ttft_ms = first * 1e3 if isinstance(first, int | float) and 0 <= first < 1e9 else np.nan
        self.messages = _messages(path, line, attributes, "gen_ai.input.messages")
        self.answer = _messages(path, line, attributes, "gen_ai.output.messages")

    def before(self, other: _Span) -> bool:
        """Return whether this span ended before the other span began and both belong to the same trace."""
        return self.trace == other.trace and self.end <= other.start


class _Texts:
    """Messages seen so far, with their content ids and token counts."""

    def __init__(self) -> None:
        self._known: dict[Message, tuple[int, int]] = {}
        self._next = 0

    def prompt(self, path: Path, position: int, span: _Span) -> tuple[Runs, int | None]:
        """Return the prompt as runs, and the position of the last call whose output the prompt contains (None if there
        is none)."""
        new = [m for m in dict.fromkeys(span.messages) if m not in self._known]
        old = sum(self._known[m][1] for m in span.messages if m in self._known)
        for message, tokens in zip(new, _share(span.prompt - old, [len(text) + 1 for _, text in new]), strict=True):
            self._known[message] = (self._content(), tokens)
        runs: Runs = []
        left = span.prompt
        for message in span.messages:
            content, tokens = self._known[message]
            if tokens and left:
                runs.append((content, min(tokens, left)))
                left -= min(tokens, left)
        if left:  # no messages, or they add up to fewer tokens
            runs.append((self._content(), left))
        heard = [-self._known[m][0] - 1 for m in span.messages if self._known[m][0] < 0]
        for message in span.answer[:1]:
            self._known.setdefault(message, (-position - 1, span.output))
        return runs, max(heard, default=None)

    def _content(self) -> int:
        self._next += 1
        return self._next - 1


def _share(total: int, weights: list[int]) -> list[int]:
    """Divide a number of tokens by weight into nonnegative integers that add up to that number."""
    edges = np.concatenate(([0], np.cumsum(weights))) * max(total, 0) // max(sum(weights), 1)
    shares: list[int] = np.diff(edges).tolist()
    return shares


def _spans(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, span) pairs; for a file that is a single JSON value, yield the number of the span instead of a line
    number."""
    try:
        value = json_value(read_text(path))
    except ValueError:
        found = list(_text.json_lines(path))
    else:
        rows = value.get("spans", [value]) if isinstance(value, dict) else value
        found = list(enumerate(rows if isinstance(rows, list) else [], start=1))
    lines = [
        (line if len(found) > 1 else i, span)
        for line, row in found
        for i, span in enumerate(_flat(path, line, row), start=1)
    ]
    for line, span in lines:
        if not isinstance(span, dict) or not isinstance(span.get("attributes"), dict):
            raise UserError(f"{path}: line {line}: a span without attributes")
        yield line, span


def _flat(path: Path, line: int, row: Any) -> Iterator[Any]:
    """Yield the spans of OTLP's resourceSpans with their attributes by name, or the row itself if it has no
    resourceSpans."""
    if not isinstance(row, dict) or "resourceSpans" not in row:
        yield row
        return
    try:
        for scope in (scope for resource in row["resourceSpans"] for scope in resource.get("scopeSpans", ())):
            for span in scope["spans"]:
                yield {
                    "span_id": span.get("spanId"),
                    "trace_id": span.get("traceId"),
                    "start_time": span["startTimeUnixNano"],
                    "end_time": span["endTimeUnixNano"],
                    "attributes": {each["key"]: _value(each["value"]) for each in span.get("attributes", ())},
                }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path}: line {line}: not OTLP: {type(error).__name__} at {shown(str(error))[:80]}") from None


def _value(value: dict[str, Any]) -> Any:
    """Return the value that an OTLP value encodes: {"intValue": "388"} encodes 388."""
    (kind, inner), *_ = value.items()
    if kind == "intValue":
        return int(inner)
    return [_value(each) for each in inner.get("values", ())] if kind == "arrayValue" else inner


def _messages(path: Path, line: int, attributes: dict[str, Any], key: str) -> list[Message]:
    value = attributes.get(key) or []
    try:
        parts = json_value(value) if isinstance(value, str) else value
        return [(str(m.get("role", "")), json.dumps(m.get("content", m.get("parts")), sort_keys=True)) for m in parts]
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{path}: line {line}: {key} must be a list of messages") from None


def _clock_ns(path: Path, line: int, span: dict[str, Any], key: str) -> int:
    value = _text.need(path, line, span, key)
    stamp = iso_ns(value) if isinstance(value, str) else None
    if stamp is None and str(value).isdecimal() and len(str(value)) < 20:
        stamp = int(value)  # OTLP's nanoseconds
    if stamp is None or stamp >= 1 << 62:
        raise UserError(f"{path}: line {line}: {key} is {shown(value)} but must be a UTC time")
    return stamp
