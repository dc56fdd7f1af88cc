"""OpenTelemetry GenAI spans, as inference-perf's otel_trace_replay reads them: JSON {"spans": [...]} or one per line.

Of each span with gen_ai.usage token counts: trace_id (the session), start_time and end_time (ISO), the request's model
and max_tokens, and, where recorded, gen_ai.input.messages and gen_ai.output.messages. A call depends on the last one
whose output its messages contain, or without messages on the last of its trace that had ended. Tokens of a message are
not recorded: a prompt's tokens are shared out among its new messages by their characters, the output tokens of
gen_ai.request.choice.count choices evenly among them.
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

NAME = "otel"
ABOUT = "JSON: OpenTelemetry GenAI spans (trace_id, start_time, end_time, attributes gen_ai.*)"
INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CHOICES = "gen_ai.request.choice.count"
Message = tuple[str, str]


def detect(head: bytes) -> bool:
    return head.lstrip()[:1] in (b"{", b"[") and b'"gen_ai.' in head and b'"span_id"' in head


def read(path: Path, *, timing: str = "think") -> Trace:
    _calls.check_timing(path, timing)
    spans = [_Span(path, line, span) for line, span in _spans(path) if any(k in span["attributes"] for k in INPUT)]
    spans.sort(key=lambda span: span.start)
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


class _Span:
    """The used part of one span."""

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
            raise UserError(f"{path}: line {line}: {CHOICES} is {shown(choices)}, must be from 1 to the {OUTPUT[0]}")
        self.output, *self.further = sorted(_share(self.output, [1] * choices), reverse=True)
        self.start, self.end = (_clock_ns(path, line, span, key) for key in ("start_time", "end_time"))
        self.messages = _messages(path, line, attributes, "gen_ai.input.messages")
        self.answer = _messages(path, line, attributes, "gen_ai.output.messages")

    def before(self, other: _Span) -> bool:
        """Return whether this span had ended when the other, of the same trace, began."""
        return self.trace == other.trace and self.end <= other.start


class _Texts:
    """Messages seen so far: their content ids and token counts."""

    def __init__(self) -> None:
        self._known: dict[Message, tuple[int, int]] = {}
        self._next = 0

    def prompt(self, path: Path, position: int, span: _Span) -> tuple[Runs, int | None]:
        """Return the prompt as runs, and the last call whose output it contains."""
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
        if left:  # no messages, or fewer tokens in them than were counted
            runs.append((self._content(), left))
        heard = [-self._known[m][0] - 1 for m in span.messages if self._known[m][0] < 0]
        for message in span.answer[:1]:
            self._known.setdefault(message, (-position - 1, span.output))
        return runs, max(heard, default=None)

    def _content(self) -> int:
        self._next += 1
        return self._next - 1


def _share(total: int, weights: list[int]) -> list[int]:
    """Share out tokens by weight, whole, adding up to the total; none below 0."""
    edges = np.concatenate(([0], np.cumsum(weights))) * max(total, 0) // max(sum(weights), 1)
    shares: list[int] = np.diff(edges).tolist()
    return shares


def _spans(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, span); for a file that is one JSON value, the number of the span instead of a line."""
    try:
        value = json_value(read_text(path))
    except ValueError:
        lines = list(_text.json_lines(path))
    else:
        found = value.get("spans", [value]) if isinstance(value, dict) else value
        lines = list(enumerate(found if isinstance(found, list) else [], start=1))
    for line, span in lines:
        if not isinstance(span, dict) or not isinstance(span.get("attributes"), dict):
            raise UserError(f"{path}: line {line}: a span without attributes")
        yield line, span


def _messages(path: Path, line: int, attributes: dict[str, Any], key: str) -> list[Message]:
    value = attributes.get(key) or []
    try:
        parts = json_value(value) if isinstance(value, str) else value
        return [(str(m.get("role", "")), json.dumps(m.get("content", m.get("parts")), sort_keys=True)) for m in parts]
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{path}: line {line}: {key} must be a list of messages") from None


def _clock_ns(path: Path, line: int, span: dict[str, Any], key: str) -> int:
    value = str(_text.need(path, line, span, key))
    try:
        stamp = np.datetime64(value.removesuffix("Z").removesuffix("+00:00"), "ns")
    except ValueError:
        raise UserError(f"{path}: line {line}: {key} is {shown(value)}, must be a UTC time") from None
    return int(stamp.astype(np.int64))
