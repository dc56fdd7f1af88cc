"""A server that simulates nothing: first tokens after a constant time, the others at constant distances. What a client
sees beyond these is the client's and the machine's. `python -m benchmarks.live_stub TTFT_MS ITL_MS` prints its port."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class Stub(asyncio.Protocol):
    """Connection of one request. Tokens are due at absolute times, counted from when its headers were received."""

    def __init__(self, ttft_s: float, itl_s: float) -> None:
        self._ttft_s, self._itl_s = ttft_s, itl_s
        self._buffer = b""
        self._came = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._came = self._came or self._loop.time()
        self._buffer += data
        head, _, body = self._buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(body) < length:
            return
        self._tokens = int(json.loads(body)["max_tokens"])
        self._transport.write(HEAD)
        self._loop.call_at(self._came + self._ttft_s, self._token, 0)

    def _token(self, number: int) -> None:
        text = b'data: {"id":"cmpl-0","choices":[{"index":0,"text":" word"}]}\n\n'
        if number + 1 < self._tokens:
            self._transport.write(text)
            due = self._came + self._ttft_s + (number + 1) * self._itl_s
            self._loop.call_at(due, self._token, number + 1)
            return
        self._transport.write(text + b'data: {"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % self._tokens)
        self._transport.close()


async def serve(ttft_s: float, itl_s: float) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(lambda: Stub(ttft_s, itl_s), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) / 1e3, float(sys.argv[2]) / 1e3))
