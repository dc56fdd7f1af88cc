"""Faults of clients and policies at a live server: after each fault it must answer as before, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live_client import request_of
from benchmarks.live_server import Server, server

LIMIT_S = 60
"""Time in s after which something counts as hung."""
RAISES = '''
from servesim.policies.scheduling.vllm import Vllm


class Raises(Vllm):
    """vLLM's scheduler, until it has planned 20 steps."""

    def plan(self, ctx):
        if ctx.step_id == 20:
            raise ValueError("no more steps")
        return super().plan(ctx)
'''
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
MALFORMED: dict[str, tuple[Any, int]] = {
    "half a JSON object": (b'{"prompt": ', 400),
    "a list": ([1], 400),
    "no prompt": ({"max_tokens": 3}, 400),
    "negative max_tokens": ({"prompt": "a b", "max_tokens": -3}, 400),
    "a prompt beyond the context": ({"prompt": [1] * 200_000, "max_tokens": 3}, 400),
    "bytes that are not UTF-8": (b"\xff\xfe\x00", 400),
    "JSON nested 100,000 deep": (b"[" * 100_000, 400),
}


def post(body: Any, path: str = "/v1/completions") -> bytes:
    """Return the bytes of a request with this body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw


async def opened(port: int) -> tuple[Reader, Writer]:
    return await asyncio.open_connection("127.0.0.1", port)


async def asked(port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request, and return the status and body of the answer."""
    reader, writer = await opened(port)
    writer.write(request)
    raw = await asyncio.wait_for(reader.read(), LIMIT_S)
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head[9:12] or 0), body


async def got(port: int, path: str) -> tuple[int, bytes]:
    return await asked(port, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())


async def well(port: int) -> None:
    """Check that the server is healthy, that nothing is in progress, and that it answers."""
    status, _ = await got(port, "/health")
    assert status == 200, f"/health: {status}"
    until = time.monotonic() + LIMIT_S
    while (load := json.loads((await got(port, "/load"))[1])["server_load"]) and time.monotonic() < until:
        await asyncio.sleep(0.2)
    assert load == 0, f"{load} answers are still in progress"
    status, body = await asked(port, request_of("a b c", 8))
    assert status == 200, f"status {status}"
    assert b"[DONE]" in body, "no end of the answer"


async def malformed(port: int) -> str:
    """Send bodies that are wrong in every way. Each is answered with one line."""
    for name, (body, expected) in MALFORMED.items():
        status, answer = await asked(port, post(body))
        assert status == expected, f"{name}: status {status}"
        message = json.loads(answer.partition(b"\r\n")[2].rpartition(b"\r\n0")[0] or answer)["error"]["message"]
        assert message, f"{name}: no message"
        assert "\n" not in message, f"{name}: more than a line"
    return f"{len(MALFORMED)} bodies refused in a line each"


async def huge(port: int) -> str:
    """Announce 50 MB and send 10 of them."""
    reader, writer = await opened(port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50000000\r\n\r\n"
    began = time.monotonic()
    writer.write(head + b"x" * 10_000_000)
    status = (await asyncio.wait_for(reader.read(64), LIMIT_S))[9:12]
    writer.close()
    assert status == b"413", f"status {status.decode()}"
    return f"413 after {time.monotonic() - began:.1f} s"


async def connections(port: int) -> str:
    """Open 1,000 connections that say nothing, and ask beside them."""
    held = [await opened(port) for _ in range(1000)]
    began = time.monotonic()
    await well(port)
    took = time.monotonic() - began
    for _, writer in held:
        writer.close()
    return f"answered in {took:.2f} s beside 1,000"


async def vanishing(port: int) -> str:
    """Let 100 clients leave: a third before they have read anything, the others in mid-stream."""

    async def leaves(number: int) -> None:
        reader, writer = await opened(port)
        writer.write(request_of([number] * 64, 2000))
        if number % 3:
            await asyncio.wait_for(reader.read(256), LIMIT_S)
        writer.transport.abort()

    await asyncio.gather(*map(leaves, range(100)))
    began = time.monotonic()
    await well(port)
    return f"100 left; idle again after {time.monotonic() - began:.1f} s"


async def slow(port: int) -> str:
    """Read nothing for 5 s through a small window, then everything."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
    writer.write(request_of([7] * 64, 3000))
    await asyncio.sleep(5)
    body = await asyncio.wait_for(reader.read(), LIMIT_S)
    writer.close()
    assert b'"completion_tokens":3000' in body, "tokens are missing"
    assert b"[DONE]" in body, "no end of the answer"
    chunks = body.count(b'"text"')
    return f"3,000 tokens in {chunks:,} chunks"


async def draining(running: Server) -> str:
    """Send SIGTERM in mid-stream: the answer ends whole, and so does the server."""
    reader, writer = await opened(running.port)
    writer.write(request_of("a b", 200))
    await reader.readuntil(b'"text"')
    running.process.send_signal(signal.SIGTERM)
    body = await asyncio.wait_for(reader.read(), LIMIT_S)
    writer.close()
    assert b'"completion_tokens":200' in body, "the answer was cut"
    code = await asyncio.to_thread(running.process.wait, LIMIT_S)
    assert code == 0, f"the server ended with code {code}"
    return "the answer ended whole, exit code 0"


async def raising(port: int) -> str:
    """Let the policy raise an error while 8 answers are in progress; the next is served by a new engine."""
    answers = await asyncio.gather(*(asked(port, request_of([number], 100)) for number in range(8)))
    broken = sum(b"no more steps" in body for _, body in answers)
    assert broken == 8, f"{broken} of 8 clients were told"
    await well(port)
    return "8 answers ended with the policy's error; the next was served"


def run(common: Sequence[str]) -> list[dict[str, Any]]:
    """Try every fault, and return a row for each: its name, whether all was well, and what happened."""
    rows = []

    def tried(name: str, fault: Callable[[], Awaitable[str]]) -> None:
        try:
            said, good = asyncio.run(_limited(fault)), True
        except (AssertionError, OSError, TimeoutError, ValueError) as error:
            said, good = f"{type(error).__name__}: {error}", False
        rows.append({"fault": name, "ok": good, "said": said})

    with server(["--speed", "20", *common]) as running:
        port = running.port
        for fault in (malformed, huge, connections, vanishing, slow):

            async def then_well(fault: Callable[[int], Awaitable[str]] = fault) -> str:
                said = await fault(port)
                await well(port)
                return said

            tried(fault.__name__, then_well)
    with server(common) as running:
        tried("draining", lambda: draining(running))
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "raises.py"
        policy.write_text(RAISES)
        with server([*common, "--scheduler", f"{policy}:Raises"]) as running:
            tried("raising", lambda: raising(running.port))
    return rows


async def _limited(fault: Callable[[], Awaitable[str]]) -> str:
    return await asyncio.wait_for(fault(), 3 * LIMIT_S)
