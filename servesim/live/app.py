"""ASGI application in front of a driver: OpenAI's API, and what gateways ask of a server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from servesim.contracts.part import verbs
from servesim.errors import UserError
from servesim.live.driver import Driver
from servesim.live.protocol import OUTPUT_HEADER, Refused, asked_of, document_of
from servesim.live.replies import Reply, failed
from servesim.live.stream import Stream
from servesim.live.watcher import Handler, Page, Visit, Watcher

MOST_BODY = 8 << 20
"""Maximum size of a body in bytes."""
MOST_STREAMS = 4096
"""Maximum number of answers in progress."""
CAME = "came"
"""Key in the state of a connection: a list of the time of the loop at which it last received something."""
SHUTTING_DOWN = "the server is shutting down"
LATE_EVERY_S = 60
LATE_NS = 50_000_000
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class App:
    """Server of one model. `make` creates the driver; it is called again if a policy has failed. `draw`: see
    asked_of. `watchers`, which `make` gives to each driver, add pages."""

    def __init__(
        self,
        make: Callable[[], Driver],
        draw: Callable[[int], int],
        model: str,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self._make, self._draw, self.model = make, draw, model
        self.driver = make()
        self.max_model_len = int(self.driver.setup.scenario.engine.max_model_len)
        self.draining = False
        self._open = self._renewals = 0
        self._watchers = watchers
        self._pages: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): lambda visit: {},
            ("GET", "/load"): lambda visit: {"server_load": self._open},
        }
        for watcher in watchers:
            self._pages |= watcher.pages()
        self._admits = verbs(watchers, "admits")

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, or take part in the server's start and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # web sockets are not served
            await send({"type": "websocket.close", "code": 1008})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self.driver.start()
        self._tell_late()
        await send({"type": "lifespan.startup.complete"})
        with suppress(asyncio.CancelledError):  # Ctrl-C again: nothing is waited for
            await receive()
        self._say_late()
        self.driver.close()
        for watcher in self._watchers:
            watcher.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method == "HEAD":  # the server drops the body
            method = "GET"
        try:
            if path in _COMPLETIONS:
                if method != "POST":
                    raise Refused(405, f"{path} is asked by POST")
                raw = await _body(receive)
                body, headers = document_of(raw), _headers(scope)
                await self._complete(body, path == _CHAT, headers, self._came(scope), receive, send)
                return
            headers = _headers(scope)
            for admits in self._admits:
                admits(path, headers)
            page = self._pages.get((method, path))
            if page is None:
                known = any(path == other for _, other in self._pages)
                raise Refused(405 if known else 404, f"{method} {path} is not served")
            found = page(Visit(document_of(await _body(receive)) if method == "POST" else {}, headers))
            await (_send(send, *found) if isinstance(found, Page) else _send_json(send, found))
        except _Gone:
            return
        except Refused as error:
            await _send_json(send, error.document, error.status)

    def _came(self, scope: Any) -> float:
        """Return the time in s, of the loop, at which the last bytes of a request reached the socket."""
        came: list[float] | None = scope.get("state", {}).get(CAME)
        return came[0] if came else asyncio.get_running_loop().time()

    async def _complete(
        self,
        body: dict[str, Any],
        chat: bool,
        headers: Mapping[str, str],
        came: float,
        receive: Receive,
        send: Send,
    ) -> None:
        if self.draining:
            raise Refused(503, SHUTTING_DOWN)
        if self.driver.failure:
            self._renew()
        driver = self.driver
        asked = asked_of(
            body,
            chat,
            row=driver.next_row,
            max_model_len=self.max_model_len,
            draw=self._draw,
            model=self.model,
            told=headers.get(OUTPUT_HEADER),
        )
        answers = asked.answers
        if self._open + len(answers) > MOST_STREAMS:
            raise Refused(503, f"{self._open} answers are in progress, of at most {MOST_STREAMS}")
        try:
            streams = driver.submit_samples(
                asked.prompt,
                asked.max_tokens,
                [answer.words for answer in answers],
                at_ns=driver.ns_of(came),
                priority=asked.priority,
            )
        except UserError as error:
            raise Refused(400, str(error)) from None
        for stream in streams:
            stream.streamed = asked.stream
        watch = asyncio.ensure_future(_watch(receive, lambda: _cancel(driver, streams)))
        self._open += len(streams)
        try:
            reply = Reply(asked, streams, int(time.time()), self._renewals)
            await (_streamed if asked.stream else _whole)(streams, reply, driver, send)
        except asyncio.CancelledError:  # the time to drain is over
            raise Refused(503, SHUTTING_DOWN) from None
        finally:
            self._open -= len(streams)
            watch.cancel()
            _cancel(driver, streams)

    def _tell_late(self) -> None:
        """Say once in LATE_EVERY_S how late the machine was."""
        self._say_late()
        asyncio.get_running_loop().call_later(LATE_EVERY_S, self._tell_late)

    def _say_late(self) -> None:
        """Say how late the machine was since this was last asked, if by more than LATE_NS of simulated time."""
        if (late_ns := self.driver.late.lately_ns) > LATE_NS:
            late_ms = late_ns / 1e6
            sys.stderr.write(f"warning: tokens were up to {late_ms:.0f} ms late in simulated time; lower --speed\n")
        self.driver.late.lately_ns = 0

    def _renew(self) -> None:
        """Begin again after a policy has failed."""
        self._renewals += 1
        self.driver = self._make()
        self.driver.start()


_CHAT = "/v1/chat/completions"
_COMPLETIONS = ("/v1/completions", _CHAT)


class _Early(Exception):
    """An answer has ended before its last token."""


class _Gone(Exception):
    """The client left before its request was complete."""


async def _streamed(streams: Sequence[Stream], reply: Reply, driver: Driver, send: Send) -> None:
    first = await _soonest(streams)
    if first.ready == 0 and not first.cancelled:
        raise _refusal(first, driver)
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        if len(streams) == 1:
            await _stream_one(0, first, reply, driver, send)
        else:
            async with asyncio.TaskGroup() as group:
                for index, stream in enumerate(streams):
                    group.create_task(_stream_one(index, stream, reply, driver, send))
    except* _Early:  # one of the answers; the client does not wait for the others
        pass
    except* asyncio.CancelledError:
        for stream in streams:
            stream.end(SHUTTING_DOWN)
    if first.cancelled:
        return
    error = next((stream for stream in streams if stream.error), None)
    out = failed(_refusal(error, driver).document) if error is not None else reply.end()
    await send({"type": "http.response.body", "body": out, "more_body": False})


async def _soonest(streams: Sequence[Stream]) -> Stream:
    """Wait until an answer has tokens or has ended, and return it."""
    if len(streams) == 1:
        await streams[0].some()
        return streams[0]
    waits = [asyncio.ensure_future(stream.some()) for stream in streams]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return next(stream for stream, wait in zip(streams, waits, strict=True) if wait.done() and not wait.cancelled())


async def _stream_one(index: int, stream: Stream, reply: Reply, driver: Driver, send: Send) -> None:
    """Send the chunks of one answer. Raise _Early if it ends before its last token."""
    while stream.taken < stream.output_len:
        tokens = await stream.take()
        if stream.cancelled or not tokens:
            raise _Early
        driver.handed(stream)
        await send({"type": "http.response.body", "body": reply.chunk(index, tokens), "more_body": True})


async def _whole(streams: Sequence[Stream], reply: Reply, driver: Driver, send: Send) -> None:
    waits = [asyncio.ensure_future(_ended(stream)) for stream in streams]
    for wait in asyncio.as_completed(waits):
        stream = await wait
        if stream.cancelled:
            return
        if stream.error:
            raise _refusal(stream, driver)
    await _send_json(send, reply.whole())


async def _ended(stream: Stream) -> Stream:
    while not stream.ended:
        await stream.take()
    return stream


def _cancel(driver: Driver, streams: Sequence[Stream]) -> None:
    for stream in streams:
        driver.cancel(stream)


def _refusal(stream: Stream, driver: Driver) -> Refused:
    """Return the error of an answer that ended early: 500 for a failed policy, else 503."""
    return Refused(500 if driver.failure else 503, stream.error)


async def _watch(receive: Receive, gone: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY:
            raise Refused(413, f"the body has more than {MOST_BODY} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


def _headers(scope: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def _send_json(send: Send, document: dict[str, Any] | list[Any], status: int = 200) -> None:
    await _send(send, json.dumps(document).encode(), "application/json", status)


async def _send(send: Send, body: bytes, content_type: str, status: int = 200) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
