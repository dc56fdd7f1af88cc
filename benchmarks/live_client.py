"""A lean client of a server that streams completions, as a process of its own: `python -m benchmarks.live_client WORK`.

WORK is a JSON object; see `Load`. One raw connection a request, whose bytes are stamped when they are received, before
they are parsed. What was seen is printed as one JSON object: `requests`, one for each, and the client's CPU seconds.
Times are those of the monotonic clock in seconds, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

TEXT = re.compile(rb'"text":"((?:[^"\\]|\\.)*)"')
USAGE = re.compile(rb'"completion_tokens":(\d+)')
CACHED = re.compile(rb'"cached_tokens":(\d+)')
NAME = re.compile(rb'"id":"cmpl-(\d+)"')
HEAD = "POST {} HTTP/1.1\r\nhost: client\r\nconnection: close\r\ncontent-length: {}\r\n\r\n"


@dataclass
class Load:
    """Load that is sent. Times are those of the wall."""

    port: int
    requests: int = 0
    """Number of requests of an open loop, sent at `rate`."""
    rate: float = 1.0
    """Mean number of requests a second, Poisson."""
    streams: int = 0
    """Number of clients of a closed loop, each of which sends its next request when it has its answer."""
    seconds: float = 0.0
    """Time for which a closed loop begins requests."""
    prompt: int = 512
    """Tokens of a prompt; no two prompts have a common beginning."""
    output: int = 128
    """Tokens of an answer."""
    texts: list[str] = field(default_factory=list)
    """Prompts of an open loop; if there are none, they are random token ids."""
    seed: int = 1
    timeout_s: float = 600.0
    """Time after which an answer that has not ended is given up."""
    check_words: bool = False
    """Whether to compare the words of each answer with those that the server must give."""


@dataclass
class Seen:
    """Record of one request as its client saw it."""

    number: int
    due: float
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    """Times of the first and last token."""
    row: int = -1
    """Row of the request in the server."""
    chunks: int = 0
    """Number of events with text."""
    tokens: int = 0
    """Number of tokens in these."""
    usage: int = -1
    """Number of tokens as the server counts them."""
    cached: int = -1
    status: int = 0
    in_order: bool = True
    error: str = ""
    """Why there is no whole answer; empty if there is one."""


class Answer(asyncio.Protocol):
    """Connection of one request."""

    def __init__(self, request: bytes, seen: Seen, check_words: bool) -> None:
        self._request, self._seen, self._check = request, seen, check_words
        self._rest = b""
        self._text: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._seen.sent = time.monotonic()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        whole, end, self._rest = (self._rest + data).rpartition(b"\n\n")
        if not self._seen.status and len(start := whole or self._rest) >= 12:
            self._seen.status = int(start[9:12])  # of HTTP/1.1 200
        if end:
            self._read(whole, now)

    def _read(self, events: bytes, now: float) -> None:
        seen = self._seen
        texts = TEXT.findall(events)
        if texts:
            if not seen.chunks:
                seen.first = now
                if (name := NAME.search(events)) is not None:
                    seen.row = int(name[1])
            seen.last = now
            seen.chunks += len(texts)
            seen.tokens += sum(text.count(b" ") for text in texts)
            if self._check:
                self._text += texts
        if (usage := USAGE.search(events)) is not None:
            seen.usage = int(usage[1])
            cached = CACHED.search(events)
            seen.cached = int(cached[1]) if cached is not None else -1
        if b"data: [DONE]" in events:
            self._end("" if seen.chunks else "no tokens")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"lost: {error}" if error else f"status {self._seen.status}, and the connection ended")

    def _end(self, error: str) -> None:
        if self.ended.done():
            return
        self._seen.error = error
        if self._check and not error:
            from servesim.live.tokens import Words

            told = Words(self._seen.row, self._seen.usage).text(0, self._seen.usage)
            self._seen.in_order = b"".join(self._text).decode() == told
        self.ended.set_result(None)
        self._transport.close()


def request_of(prompt: list[int] | str, output: int, path: str = "/v1/completions", **fields: Any) -> bytes:
    """Return the bytes of a request for `output` tokens, streamed."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, **fields}
    body = json.dumps({"prompt": prompt, "max_tokens": output, **options}, separators=(",", ":")).encode()
    return HEAD.format(path, len(body)).encode() + body


class Client:
    """All requests of a load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._random = random.Random(load.seed)
        self.seen: list[Seen] = []

    async def run(self) -> None:
        """Send everything, and wait for all answers."""
        load = self._load
        start = time.monotonic() + 0.2
        if load.streams:
            await asyncio.gather(*(self._closed(start + load.seconds) for _ in range(load.streams)))
            return
        tasks = []
        for number in range(load.requests):
            start += self._random.expovariate(load.rate)
            prompt = load.texts[number] if load.texts else self._tokens()
            tasks.append(asyncio.create_task(self._ask(start, request_of(prompt, load.output))))
        await asyncio.gather(*tasks)

    def _tokens(self) -> list[int]:
        return [self._random.randrange(100_000) for _ in range(self._load.prompt)]

    async def _closed(self, until: float) -> None:
        while time.monotonic() < until:
            if (await self._ask(time.monotonic(), request_of(self._tokens(), self._load.output))).error:
                return

    async def _ask(self, due: float, request: bytes) -> Seen:
        seen = Seen(len(self.seen), due)
        self.seen.append(seen)
        await asyncio.sleep(due - time.monotonic())
        try:
            loop = asyncio.get_running_loop()
            make = lambda: Answer(request, seen, self._load.check_words)  # noqa: E731  # as a factory is called
            _, answer = await loop.create_connection(make, "127.0.0.1", self._load.port)
            await asyncio.wait_for(answer.ended, self._load.timeout_s)
        except TimeoutError:
            seen.error = f"no answer after {self._load.timeout_s:g} s"
        except OSError as error:
            seen.error = f"no connection: {error}"
        return seen


def main() -> None:
    client = Client(Load(**json.loads(sys.argv[1] if sys.argv[1] != "-" else sys.stdin.read())))
    asyncio.run(client.run())
    print(json.dumps({"requests": [asdict(seen) for seen in client.seen], "cpu_s": time.process_time()}))


if __name__ == "__main__":
    main()
