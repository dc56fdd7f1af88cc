"""Minimal HTTP client for measurements. It connects before the clock starts and yields every piece of an answer as it
arrives.

It was written because httpx 0.28 distorts measurements: with 50 streams that receive their tokens simultaneously, httpx
sees the first token 4 to 5 ms later and uses 2.8 times the CPU time per token; with 256 streams, the measured server is
14 % slower (two cores, 24 November 2026).
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from servesim import untrusted
from servesim.errors import UserError, shown

MOST_HEAD = 1 << 18
"""Maximum number of bytes in one header or chunk-size line, more than any server sends."""
MOST_BODY = 1 << 26
"""Maximum number of bytes in an answer that is not a stream. The /metrics page of a large server has about 1 MB."""


@dataclass(frozen=True)
class Address:
    """Address that a server listens on."""

    host: str
    port: int
    base: str
    """Path before `/v1`, without a trailing slash."""
    secure: bool
    headers: tuple[tuple[str, str], ...] = ()
    """Headers sent with every request, such as an authorization header."""

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> Address:
        """Return the address in a URL such as `http://host:8000`, with or without `/v1`. Raise UserError if it is
        invalid."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
            (parts.hostname or "").encode("idna")  # labels have 1 to 63 characters
        except ValueError as error:
            raise UserError(f"URL {shown(url)}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UserError(f"URL {shown(url)}: must be an address such as http://localhost:8000")
        if not url.isascii() or not url.isprintable() or " " in url or "@" in parts.netloc:
            raise UserError(f"URL {shown(url)}: must have plain characters only, and no user name")
        secure = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        headers = (("Authorization", f"Bearer {key}"),) if key else ()
        return cls(parts.hostname, port or (443 if secure else 80), base, secure, headers)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}:{self.port}{self.base}"


class Reply:
    """Answer to a request: its status, and its body in pieces as they arrive."""

    def __init__(self, where: str, reader: asyncio.StreamReader) -> None:
        """Begin an answer to a request that is sent now. `where` is a prefix for error messages."""
        self.where, self._reader, self.sent_ns = where, reader, time.monotonic_ns()
        self.status, self.headers = 0, dict[str, str]()

    async def read_head(self) -> None:
        """Read the status line and the headers. Raise UserError if they are not HTTP."""
        while self.status in (0, 100):
            first = await self._line()
            words = first.split(None, 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
                raise UserError(f"{self.where}: the response is not HTTP: {shown(first.decode('latin-1'))}")
            self.status, self.headers = int(words[1]), {}
            while line := await self._line():
                name, _, value = line.decode("latin-1").partition(":")
                self.headers[name.strip().lower()] = value.strip()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body. Raise UserError if it is cut off."""
        reader, length = self._reader, self.headers.get("content-length", "")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            while size := self._size(await self._line()):
                piece = await reader.readexactly(size + 2)
                yield piece[:-2]
        elif length.isdigit():
            left = int(length)
            while left:
                piece = await reader.read(min(left, 1 << 16))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                yield piece
        else:
            while piece := await reader.read(1 << 16):
                yield piece

    async def body(self, most: int = MOST_BODY) -> str:
        """Return the whole body, but at most `most` bytes."""
        found = bytearray()
        async for piece in self.pieces():
            found += piece
            if len(found) >= most:
                break
        return bytes(found[:most]).decode("utf-8", "replace")

    def _size(self, line: bytes) -> int:
        try:
            return int(line.split(b";")[0], 16)
        except ValueError:
            raise UserError(
                f"{self.where}: the response is not valid HTTP: {shown(line.decode('latin-1'))} is not a chunk size"
            ) from None

    async def _line(self) -> bytes:
        try:
            return (await self._reader.readuntil(b"\n")).strip()
        except asyncio.LimitOverrunError:
            raise UserError(
                f"{self.where}: the response is not HTTP: a line of more than {MOST_HEAD:,} bytes"
            ) from None


@asynccontextmanager
async def asked(address: Address, path: str, timeout_s: float, body: Any = None) -> AsyncIterator[Reply]:
    """Connect, send a request (a POST with JSON if there is a body, else a GET), and yield its answer, whose head has
    been read. Allow `timeout_s` seconds for everything done in the context. Raise UserError with a one-line message if
    the connection fails in any way."""
    where, data, writer = f"{address}{path}", _request(address, path, body), None
    try:
        async with asyncio.timeout(timeout_s):
            context = ssl.create_default_context() if address.secure else None
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, limit=MOST_HEAD)
            reply = Reply(where, reader)
            writer.write(data)
            await reply.read_head()
            yield reply
    except TimeoutError:
        raise UserError(f"{where}: did not finish within {timeout_s:g} s (increase --timeout)") from None
    except asyncio.IncompleteReadError:
        raise UserError(f"{where}: the response was cut off") from None
    except ConnectionRefusedError:
        raise UserError(f"{where}: connection refused; is the server running?") from None
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.transport.abort()  # do not wait for an answer we gave up on


def _request(address: Address, path: str, body: Any) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    fields = [("Host", f"{address.host}:{address.port}"), ("Connection", "close"), *address.headers]
    if body is not None:
        fields += [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{'GET' if body is None else 'POST'} {address.base}{path} HTTP/1.1\r\n{head}\r\n".encode() + data


async def get_json(address: Address, path: str, timeout_s: float) -> Any:
    """Return the JSON of a GET. Raise UserError if the status is not 200 or the body is not JSON."""
    async with asked(address, path, timeout_s) as reply:
        text = await reply.body()
    if reply.status != 200:
        raise UserError(f"{address}{path}: returned status {reply.status}: {excerpt(text)}")
    try:
        return untrusted.json_value(text)
    except ValueError:
        raise UserError(f"{address}{path}: expected JSON, but the response is {excerpt(text)}") from None


def excerpt(text: str) -> str:
    """Return the beginning of an answer for quoting in a message."""
    return shown(text.strip()[:120]) if text.strip() else "nothing"
