"""Answers in the shapes of OpenAI's API: whole ones, and the chunks of streamed ones."""

from __future__ import annotations

import json
from typing import Any

from servesim.live.protocol import Asked
from servesim.live.stream import Stream

DONE = b"data: [DONE]\n\n"


class Reply:
    """Answer to one request. `created`: Unix time in s."""

    def __init__(self, asked: Asked, stream: Stream, created: int) -> None:
        self._asked, self._stream = asked, stream
        kind = "chat.completion" if asked.chat else "text_completion"
        self._sent = 0
        name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{stream.request.row}"
        chunked = f"{kind}.chunk" if asked.chat else kind
        self._head = {"id": name, "object": kind, "created": created, "model": asked.model}
        self._chunk = {**self._head, "object": chunked}

    def whole(self) -> dict[str, Any]:
        """Return the whole answer."""
        text = self._asked.text(0, self._stream.output_len)
        said = {"message": {"role": "assistant", "content": text}} if self._asked.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._reason}
        return {**self._head, "choices": [choice], "usage": self._usage(self._stream.output_len)}

    def chunk(self, tokens: int) -> bytes:
        """Return the event for the next `tokens` tokens."""
        start, self._sent = self._sent, self._sent + tokens
        text = self._asked.text(start, self._sent)
        last = self._sent == self._stream.output_len
        said: dict[str, Any] = {"text": text}
        if self._asked.chat:
            said = {"delta": {"role": "assistant", "content": text} if start == 0 else {"content": text}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._reason if last else None}
        chunk: dict[str, Any] = {**self._chunk, "choices": [choice]}
        if self._asked.continuous_usage:
            chunk["usage"] = self._usage(self._sent)
        return _event(chunk)

    def end(self) -> bytes:
        """Return the events after the last token."""
        if not self._asked.include_usage:
            return DONE
        return _event({**self._chunk, "choices": [], "usage": self._usage(self._sent)}) + DONE

    @property
    def _reason(self) -> str:
        return "stop" if self._asked.stopped else "length"

    def _usage(self, output: int) -> dict[str, Any]:
        prompt = len(self._asked.prompt)
        cached = {"cached_tokens": self._stream.cached_tokens}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": cached,
        }


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def failed(document: dict[str, Any]) -> bytes:
    """Return the events of an error in mid-stream."""
    return _event(document) + DONE
