"""Answers in the shapes of OpenAI's API: whole ones, and the chunks of streamed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from servesim.live.protocol import Answer, Asked
from servesim.live.stream import Stream

DONE = b"data: [DONE]\n\n"


class Reply:
    """Answers to one request, each from its stream. `created`: Unix time in s."""

    def __init__(self, asked: Asked, streams: Sequence[Stream], created: int) -> None:
        self._asked, self._streams = asked, streams
        kind = "chat.completion" if asked.chat else "text_completion"
        self._sent = [0] * len(streams)
        name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{streams[0].request.row}"
        chunked = f"{kind}.chunk" if asked.chat else kind
        self._head = {"id": name, "object": kind, "created": created, "model": asked.model}
        self._chunk = {**self._head, "object": chunked}

    def whole(self) -> dict[str, Any]:
        """Return all answers."""
        choices = []
        for index, answer in enumerate(self._asked.answers):
            text = answer.text(0, len(answer.pieces))
            said = {"message": {"role": "assistant", "content": text}} if self._asked.chat else {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": _reason(answer)})
        tokens = sum(len(answer.pieces) for answer in self._asked.answers)
        return {**self._head, "choices": choices, "usage": self._usage(tokens)}

    def chunk(self, index: int, tokens: int) -> bytes:
        """Return the event for the next `tokens` tokens of an answer."""
        answer, start = self._asked.answers[index], self._sent[index]
        stop = self._sent[index] = start + tokens
        text = answer.text(start, stop)
        said: dict[str, Any] = {"text": text}
        if self._asked.chat:
            said = {"delta": {"role": "assistant", "content": text} if start == 0 else {"content": text}}
        reason = _reason(answer) if stop == len(answer.pieces) else None
        choice = {"index": index, **said, "logprobs": None, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._chunk, "choices": [choice]}
        if self._asked.continuous_usage:
            chunk["usage"] = self._usage(sum(self._sent))
        return _event(chunk)

    def end(self) -> bytes:
        """Return the events after the last token."""
        if not self._asked.include_usage:
            return DONE
        return _event({**self._chunk, "choices": [], "usage": self._usage(sum(self._sent))}) + DONE

    def _usage(self, output: int) -> dict[str, Any]:
        prompt = len(self._asked.prompt)
        cached = {"cached_tokens": self._streams[0].cached_tokens}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": cached,
        }


def _reason(answer: Answer) -> str:
    return "stop" if answer.stopped else "length"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def failed(document: dict[str, Any]) -> bytes:
    """Return the events of an error in mid-stream."""
    return _event(document) + DONE
