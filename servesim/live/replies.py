"""Answers in the shapes of OpenAI's API: whole ones, and the chunks of streamed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from servesim.live.protocol import Answer, Asked
from servesim.live.stream import Stream

DONE = b"data: [DONE]\n\n"
_ROLE = '"role":"assistant",'


class Reply:
    """Answers to one request, each from its stream. `created`: Unix time in s; `renewals`: how often the engine has
    started again, because its requests are numbered from 0 each time."""

    def __init__(self, asked: Asked, streams: Sequence[Stream], created: int, renewals: int = 0) -> None:
        self._asked, self._streams = asked, streams
        kind = "chat.completion" if asked.chat else "text_completion"
        self._sent = [0] * len(streams)
        name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{f'{renewals}-' if renewals else ''}{streams[0].request.row}"
        chunked = f"{kind}.chunk" if asked.chat else kind
        self._head = {"id": name, "object": kind, "created": created, "model": asked.model}
        self._chunk = {**self._head, "object": chunked}
        self._opening = f'data: {_json(self._chunk)[:-1]},"choices":[{{"index":'

    def whole(self) -> dict[str, Any]:
        """Return all answers."""
        choices = []
        for index, answer in enumerate(self._asked.answers):
            text = answer.text(0, len(answer.words))
            said = {"message": {"role": "assistant", "content": text}} if self._asked.chat else {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": _reason(answer)})
        tokens = sum(len(answer.words) for answer in self._asked.answers)
        return {**self._head, "choices": choices, "usage": self._usage(tokens)}

    def chunk(self, index: int, tokens: int) -> bytes:
        """Return the event for the next `tokens` tokens of an answer. It is put together from parts of JSON, because
        there are thousands a second."""
        answer, start = self._asked.answers[index], self._sent[index]
        stop = self._sent[index] = start + tokens
        text = quoted(answer.text(start, stop))
        said = f'"text":{text}'
        if self._asked.chat:
            said = f'"delta":{{{_ROLE if start == 0 else ""}"content":{text}}}'
        reason = f'"{_reason(answer)}"' if stop == len(answer.words) else "null"
        usage = f',"usage":{_json(self._usage(stop))}' if self._asked.continuous_usage else ""
        return f'{self._opening}{index},{said},"logprobs":null,"finish_reason":{reason}}}]{usage}}}\n\n'.encode()

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
    return f"data: {_json(document)}\n\n".encode()


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def failed(document: dict[str, Any]) -> bytes:
    """Return the events of an error in mid-stream."""
    return _event(document) + DONE
