"""An OpenAI-compatible server without a model: known delays, a queue, and every way to be wrong.

It keeps when it really wrote the first and the last token of each request, by the clock the client has.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Stub:
    """What it does. Times in seconds."""

    first_s: float = 0.0
    token_s: float = 0.0
    slots: int = 1 << 20
    """Requests served at once; others wait in order."""
    api_s: float = 0.0
    """What an API server that handles one request after another takes for each."""
    wrong: str = ""
    """How it fails, by name; empty: not at all."""
    after: int = 0
    """Requests it serves well before that."""
    bunch: int = 1
    """Tokens in a piece of text."""
    metrics: str = ""
    owner: str = "vllm"
    length: int = 32768
    models: tuple[str, ...] = ("stub/tiny",)
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests."""
    times: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Of each answer: when it was read, its first and last token by the monotonic clock, its tokens."""
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
                await writer.drain()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        if path == "/v1/models":
            data = [{"id": m, "owned_by": self.owner, "max_model_len": self.length} for m in self.models]
            return _whole(writer, json.dumps({"object": "list", "data": data}))
        if path == "/version":
            return _whole(writer, json.dumps({"version": "0.11.0"}))
        if path == "/metrics":
            return _whole(writer, self.metrics, status=200 if self.metrics else 404)
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        length = int(fields["content-length"])
        body = json.loads(await reader.readexactly(length))
        read = time.monotonic()
        self.seen.append(body)
        wrong = self.wrong if len(self.seen) > self.after else ""
        if whole := _WHOLE.get(wrong):
            return _whole(writer, *whole)
        if self.api_s:
            async with self._api:
                await asyncio.sleep(self.api_s)
        async with self._gate:
            await self._stream(writer, body, read, wrong)

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], read: float, wrong: str) -> None:
        tokens = body["max_tokens"] // 2 if wrong == "short" else body["max_tokens"]
        chat = "messages" in body
        words = len((body["messages"][0]["content"] if chat else body["prompt"]).split())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if wrong == "silent":
            await asyncio.sleep(60)
        if chat:
            _event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        due = time.monotonic() + self.first_s
        first, i = 0.0, 0
        while i < tokens or wrong == "endless":
            await asyncio.sleep(max(due - time.monotonic(), 0))
            due += self.token_s * self.bunch
            text = "" if wrong == "no text" else "a" * min(self.bunch, tokens)
            kind = "chat.completion.chunk" if chat else "text_completion"
            piece = {"delta": {"content": text}} if chat else {"text": text}
            _event(writer, {"object": kind, "choices": [{"index": 0, **piece}]})
            first = first or time.monotonic()
            i += tokens if wrong == "one piece" else self.bunch
            if i >= tokens // 2 and (line := _MIDWAY.get(wrong)) is not None:
                writer.write(line)
                await writer.drain()
                return
        self.times.append((read, first, time.monotonic(), tokens))
        usage = {"prompt_tokens": words + 8, "completion_tokens": tokens} | _USAGE.get(wrong, {})
        if wrong == "grows":
            usage["prompt_tokens"] = words * len(self.seen)
        if wrong != "no usage":
            _event(
                writer,
                {"object": "chat.completion.chunk" if chat else "text_completion", "choices": [], "usage": usage},
            )
        if wrong != "no end":
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


_WHOLE = {
    "html": ("<html><body>It works!</body></html>", "text/html"),
    "json": ('{"choices": [{"text": "a"}]}', "application/json"),
    "500": ('{"error": "CUDA out of memory"}', "application/json", 500),
    "404": ('{"detail": "Not Found"}', "application/json", 404),
    "rude": ("", "", 0),
    "closes": ("", "", -1),
}
_MIDWAY = {
    "cut": b"",
    "garbage": b"12\r\ndata: {]garbage[}\n\n\r\n0\r\n\r\n",
    "noise": b"c\r\n\x00\xff\xfe\x01binary\n\r\n0\r\n\r\n",
    "error": b'26\r\ndata: {"error": "EngineDeadError..."}\n\r\n',
    "no chunk": b"zzz\r\n",
}
_USAGE: dict[str, dict[str, Any]] = {
    "more": {"completion_tokens": 100_000},
    "fewer": {"completion_tokens": 2},
    "text": {"completion_tokens": "many"},
    "zero": {"prompt_tokens": 0},
    "constant": {"prompt_tokens": 5000},
}
STREAMS = ("silent", "endless", "one piece", "no usage", "no end", "grows", *_MIDWAY, *_USAGE)
WRONG = (*_WHOLE, *STREAMS)
"""Every way to be wrong; "short" is none, a model that ends its answers early, nor "no text", one of special tokens."""


def _whole(writer: asyncio.StreamWriter, text: str, kind: str = "application/json", status: int = 200) -> None:
    if status == -1:
        return
    if status == 0:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        return
    writer.write(
        f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
    )


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    data = f"data: {json.dumps(event)}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """Serve in a thread of its own; `stub.url` says where."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        stub._gate, stub._api = asyncio.Semaphore(stub.slots), asyncio.Lock()  # type: ignore[attr-defined]
        server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
        stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        server.close()

    stop = asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(asyncio.sleep(0.01))  # for transports to close
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(300)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(300)
