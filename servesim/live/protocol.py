"""Requests of OpenAI's API for completions, checked, and as the engine takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.errors import shown
from servesim.live.tokens import answer_to, token_of, tokens_of

COMPLETION_TOKENS = 16
"""Default of max_tokens for completions, as in OpenAI's API; chat completions may fill the context."""
TOKEN_IDS = 1 << 32
MOST_ANSWERS = 128
"""Maximum of n, as in OpenAI's API."""
OUTPUT_HEADER = "x-output-tokens"
"""Header with the length of an answer, in place of a drawn one."""
APART = 26**4
"""Distance between the numbers of a request's answers, from which their first words come."""


class Refused(Exception):
    """Request that is not served: an HTTP status, and a line that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def document(self) -> dict[str, Any]:
        """The error in the shape of OpenAI's API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.status}}


@dataclass(frozen=True)
class Answer:
    """One answer that a request will get."""

    chat: bool
    pieces: list[str]
    """Its text, by tokens."""
    stopped: bool
    """Whether it ends before max_tokens."""

    @property
    def tokens(self) -> list[int]:
        """Token ids."""
        first = self.pieces[0].lstrip() if self.chat else self.pieces[0]
        return [token_of(first), *map(token_of, self.pieces[1:])]

    def text(self, start: int, stop: int) -> str:
        """Return the text of the tokens from `start` to `stop`. A chat's answer begins without a space."""
        text = "".join(self.pieces[start:stop])
        return text.lstrip() if self.chat and start == 0 else text


@dataclass(frozen=True)
class Asked:
    """A checked request."""

    chat: bool
    prompt: Sequence[int]
    """Token ids."""
    max_tokens: int
    answers: list[Answer]
    """Its n answers."""
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    model: str


def document_of(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object. Raise Refused if it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body is not a JSON object")
    return found


def asked_of(
    body: Mapping[str, Any],
    chat: bool,
    *,
    row: int,
    max_model_len: int,
    draw: Callable[[int], int],
    model: str,
    told: str | None = None,
) -> Asked:
    """Check a request, which becomes that of `row`. `draw` gives the length of an answer to a row in tokens, if nothing
    ends it before; `told` gives it instead, for all answers or separated by commas. Raise Refused for an invalid
    request."""
    prompt = chat_tokens(body) if chat else prompt_tokens(body.get("prompt"))
    n = _whole(body, "n", 1)
    if n > MOST_ANSWERS:
        raise Refused(400, f"n is {n} but must be at most {MOST_ANSWERS}")
    lengths = _lengths(told, n) if told is not None else [draw(row + (i << 32)) for i in range(n)]
    room = max_model_len - len(prompt)
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    most = _whole(body, key, room if chat or told is not None else min(COMPLETION_TOKENS, room))
    least = min(_whole(body, "min_tokens", 0, 0), most)
    if room < max(most, 1):
        raise Refused(
            400,
            f"this model's maximum context length is {max_model_len} tokens, but the prompt has {len(prompt)} and the "
            f"answer may have {max(most, 1)}",
        )
    if body.get("ignore_eos") is True:
        lengths = [most] * n
    answers = []
    for i, length in enumerate(lengths):
        pieces = answer_to(row + i * APART, min(most, max(length, least, 1)))
        pieces = pieces[: _stopped(pieces, body.get("stop"), least)]
        answers.append(Answer(chat, pieces, len(pieces) < most))
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refused(400, "stream_options is not an object")
    return Asked(
        chat=chat,
        prompt=prompt,
        max_tokens=most,
        answers=answers,
        priority=_whole(body, "priority", 0, -(1 << 31)),
        stream=body.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        model=body["model"] if isinstance(body.get("model"), str) else model,
    )


def _lengths(told: str, n: int) -> list[int]:
    """Parse the lengths of n answers."""
    try:
        lengths = [int(each) for each in told.split(",")]
    except ValueError:
        lengths = []
    if len(lengths) == 1:
        lengths *= n
    if len(lengths) != n or not all(1 <= each < 1 << 31 for each in lengths):
        raise Refused(400, f"{OUTPUT_HEADER} is {shown(told)} but must be a number of tokens, or {n} of them by commas")
    return lengths


def prompt_tokens(prompt: Any) -> list[int]:
    """Return the token ids of a prompt: a text, token ids, or a list of one of these."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens_of(prompt)
    if isinstance(prompt, list) and prompt and all(type(t) is int and 0 <= t < TOKEN_IDS for t in prompt):
        return prompt
    raise Refused(400, "prompt must be one text or one list of token ids, and not empty")


def chat_tokens(body: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a chat's messages, up to where the next answer begins."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Refused(400, "messages must be a list of objects, and not empty")
    text = "".join(f"<|{each.get('role')}|>\n{_content(each.get('content'))}\n" for each in messages)
    return tokens_of(f"{text}<|assistant|>\n")


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _whole(body: Mapping[str, Any], key: str, default: int, least: int = 1) -> int:
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not int or not least <= value < 1 << 31:
        raise Refused(400, f"{key} is {shown(value)} but must be an integer of at least {least}")
    return value


def _stopped(pieces: Sequence[str], stops: Any, least: int) -> int:
    """Return the number of tokens up to and including the first text that ends the answer."""
    texts = [stops] if isinstance(stops, str) else stops or []
    if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
        raise Refused(400, "stop must be a text or a list of texts")
    text, count = "".join(pieces), len(pieces)
    start = len("".join(pieces[:least]))
    ends = [at + len(each) for each in texts if (at := text.find(each, start)) >= 0]
    if not ends:
        return count
    length = 0
    for number, piece in enumerate(pieces, start=1):
        length += len(piece)
        if length >= min(ends):
            return number
    return count
