"""Requests of OpenAI's API for completions, checked, and as the engine takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.errors import shown
from servesim.live.tokens import MOST_ANSWERS, PERIODS, Words, tokens_of

COMPLETION_TOKENS = 16
"""Default of max_tokens for completions, as in OpenAI's API; chat completions may fill the context."""
TOKEN_IDS = 1 << 32
OUTPUT_HEADER = "x-output-tokens"
"""Header with the length of an answer, in place of a drawn one."""


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

    words: Words
    stopped: bool
    """Whether it ends by itself or at a text that ends it, and not at max_tokens."""
    cut: int = 0
    """Number of characters at its end that are not shown, from the text that ends it on."""

    def text(self, start: int, stop: int) -> str:
        """Return what is shown of the tokens from `start` to `stop`."""
        text, left = self.words.text(start, stop), len(self.words) - stop
        if left >= self.cut:  # a token has a character or more
            return text
        hidden = self.cut - len(self.words.text(stop, stop + left))
        return text[: max(len(text) - hidden, 0)] if hidden > 0 else text


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
        found = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body is not a JSON object")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


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
    named = body.get("model")
    if named is not None and named != model:
        raise Refused(404, f"the model {shown(named)} does not exist; this server has {model}")
    n = whole(body, "n", 1)
    if n > MOST_ANSWERS:
        raise Refused(400, f"n is {n} but must be at most {MOST_ANSWERS}")
    lengths = _lengths(told, n) if told is not None else [draw(row + (i << 32)) for i in range(n)]
    room = max_model_len - len(prompt)
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    most = whole(body, key, room if chat or told is not None else min(COMPLETION_TOKENS, room))
    least = min(whole(body, "min_tokens", 0, 0), most)
    if room < max(most, 1):
        raise Refused(
            400,
            f"this model's maximum context length is {max_model_len} tokens, but the prompt has {len(prompt)} and the "
            f"answer may have {max(most, 1)}",
        )
    if flag(body, "ignore_eos") and told is None:
        lengths = [most] * n
    answers = []
    for i, length in enumerate(lengths):
        words = Words(row, min(most, max(length, least, 1)), i, chat)
        answers.append(_ended(words, body.get("stop"), least, most))
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refused(400, "stream_options is not an object")
    return Asked(
        chat=chat,
        prompt=prompt,
        max_tokens=most,
        answers=answers,
        priority=whole(body, "priority", 0, -(1 << 31)),
        stream=flag(body, "stream"),
        include_usage=flag(options, "include_usage"),
        continuous_usage=flag(options, "continuous_usage_stats"),
        model=model,
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
    raise Refused(400, "prompt must be one text or one list of token ids (integers from 0), and not empty")


def chat_tokens(body: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a chat's messages, up to where the next answer begins."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Refused(400, "messages must be a list of objects, and not empty")
    text = "".join(f"<|{each.get('role')}|>\n{_content(each.get('content'))}\n" for each in messages)
    return tokens_of(f"{text}<|assistant|>\n")


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def whole(body: Mapping[str, Any], key: str, default: int, least: int = 1) -> int:
    """Return an integer of a body. Raise Refused if it is none, or less than `least`."""
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not int or not least <= value < 1 << 31:
        raise Refused(400, f"{key} is {shown(value)} but must be an integer of at least {least}")
    return value


def flag(body: Mapping[str, Any], key: str) -> bool:
    """Return a switch of a body, off by default. Raise Refused if it is none."""
    value = body.get(key)
    if value is not None and type(value) is not bool:
        raise Refused(400, f"{key} is {shown(value)} but must be true or false")
    return value is True


def _ended(words: Words, stops: Any, least: int, most: int) -> Answer:
    """Return an answer up to and including the token with which the first of the texts `stops` is complete, but not
    within the first `least` tokens. The text itself and what follows it are not shown, as in OpenAI's API."""
    texts = [stops] if isinstance(stops, str) else [] if stops is None else stops
    if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
        raise Refused(400, "stop must be a text or a list of texts")
    if not texts:
        return Answer(words, len(words) < most)
    pieces = words.pieces(0, least + PERIODS + max(map(len, texts)))
    text = "".join(pieces)
    start = len("".join(pieces[:least]))
    ends = [(at + len(each), at) for each in texts if (at := text.find(each, start)) >= 0]
    if not ends:
        return Answer(words, len(words) < most)
    end, at = min(ends)
    length = 0
    for number, piece in enumerate(pieces, start=1):
        length += len(piece)
        if length >= end:
            return Answer(words.first(number), True, length - at)
    raise AssertionError("the text has what was found in it")
