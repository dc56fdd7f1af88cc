"""One streamed answer: the times of its tokens, the token counts stated by the server, and their plausibility."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from servesim.errors import UserError
from servesim.experiments.measure.wire import Address, Reply, asked, excerpt

MOST_EVENT = 1 << 22
"""Maximum number of bytes in one event of a stream."""
SPARE = 8
"""Maximum number of events in a stream beyond one per token: a role, a finish reason, usage."""


@dataclass(frozen=True)
class Target:
    """Model on a server, and the form of requests to it."""

    address: Address
    model: str
    chat: bool = False
    timeout_s: float = 300.0
    """Maximum duration of one answer in seconds."""

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return the request for an answer of exactly `tokens` tokens, even if the model would stop earlier."""
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        return {
            "model": self.model,
            **asked,
            "max_tokens": tokens,
            "ignore_eos": True,  # vLLM, SGLang and trtllm-serve
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """Request as seen by the client: monotonic-clock times in ns, and token counts as stated by the server."""

    sent_ns: int
    first_ns: int
    last_ns: int
    prompt_tokens: int
    output_tokens: int
    chunks: int
    """Number of pieces in which the text arrived."""
    asked: int
    """Number of requested output tokens."""


async def ask(target: Target, prompt: str, tokens: int) -> Answer:
    """Send a request and read its stream. Raise UserError with a one-line message if the answer is missing or
    implausible."""
    async with asked(target.address, target.path, target.timeout_s, target.body(prompt, tokens)) as reply:
        kind = reply.headers.get("content-type", "").partition(";")[0].strip()
        if reply.status != 200:
            raise UserError(f"{reply.where}: returned status {reply.status}: {excerpt(await reply.body(4096))}")
        if kind != "text/event-stream":
            found = f"answered {kind or 'no type'}: {excerpt(await reply.body(4096))}"
            raise UserError(f"{reply.where}: expected a stream of events, but the server {found}")
        stream = _Stream(reply.where, tokens, target.chat)
        await stream.read(reply)
    return stream.answer(reply.sent_ns)


class _Stream:
    """Event stream of one answer."""

    def __init__(self, where: str, tokens: int, chat: bool) -> None:
        self._where, self._tokens, self._chat = where, tokens, chat
        self._first = self._last = self._chunks = self._texts = 0
        self._usage: dict[str, Any] | None = None

    async def read(self, reply: Reply) -> None:
        """Read to the end of the stream."""
        rest, done = b"", False
        async for piece in reply.pieces():
            now = time.monotonic_ns()
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > MOST_EVENT:
                raise UserError(f"{self._where}: an event of more than {MOST_EVENT:,} bytes")
            for line in lines:
                done = done or self._line(line.strip(), now)
            if done:
                break
        if not done:
            raise asyncio.IncompleteReadError(b"", None)

    def _line(self, line: bytes, now: int) -> bool:
        """Process one line. Return whether it marks the end of the stream."""
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return False
        if not line.startswith(b"data:"):
            raise UserError(f"{self._where}: {excerpt(line.decode('utf-8', 'replace'))} is not a stream event")
        data = line[5:].strip()
        if data == b"[DONE]":
            return True
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise UserError(f"{self._where}: an event is not a JSON object: {excerpt(data.decode('utf-8', 'replace'))}")
        if event.get("error"):
            raise UserError(f"{self._where}: an error in the stream: {excerpt(json.dumps(event['error']))}")
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        choices = event.get("choices")
        text = _text(choices[0], self._chat) if isinstance(choices, list) and choices else None
        if text is None:
            return False
        self._first = self._first or now
        self._last = now
        self._chunks += 1
        self._texts += bool(text)
        if self._chunks > self._tokens + SPARE:
            raise UserError(f"{self._where}: the stream continues beyond the {self._tokens} requested tokens")
        return False

    def answer(self, sent: int) -> Answer:
        """Return the answer to a request sent at a time in ns. Raise UserError if the token counts reported by the
        server are implausible."""
        where, asked = self._where, self._tokens
        if self._usage is None:
            raise UserError(
                f"{where}: the response has no usage, so its token counts are not known (the request set "
                "stream_options.include_usage)"
            )
        prompt, output = (self._usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        if type(prompt) is not int or type(output) is not int or prompt < 1 or output < 1:
            raise UserError(f"{where}: its usage is {excerpt(json.dumps(self._usage))} but must be token counts")
        if not self._chunks:
            raise UserError(f"{where}: usage reports {output} tokens, but the response has no text")
        if output > asked:
            raise UserError(f"{where}: usage reports {output} tokens, but max_tokens was {asked}")
        if self._texts > output:
            raise UserError(f"{where}: usage reports {output} tokens, but {self._texts} pieces of text arrived")
        if output > 1 and self._chunks == 1:
            raise UserError(
                f"{where}: all {output} tokens arrived in one piece, so the time of the first token is not known"
            )
        return Answer(sent, self._first, self._last, prompt, output, self._chunks, asked)


def _text(choice: Any, chat: bool) -> str | None:
    """Return the text of a choice, or None if it is no piece: it has none (only a role), or an empty one at the end."""
    if not isinstance(choice, dict):
        return None
    if not chat:
        text = choice.get("text")
    else:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        text = next((delta[key] for key in ("content", "reasoning_content", "reasoning") if delta.get(key)), None)
    return text if isinstance(text, str) and (text or choice.get("finish_reason") is None) else None
