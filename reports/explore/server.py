"""Server of the explorer's page, for browsers on this machine only; other pages and hosts are refused.

Every request needs a Host that is this server's address; requests that run simulations must also come from this
server's own page (its Origin). Each page is a separate session: a newer value from it ends the previous simulation.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from threading import Event, Lock
from typing import Any

from servesim.errors import PolicyError, UserError
from servesim.reports.canvases.page import canvases_page
from servesim.reports.explore.page import explore_page
from servesim.reports.explore.picture import MOST, Explorer, Overtaken

HOST = "127.0.0.1"
MOST_BYTES = 64 * 1024
"""Maximum size of a page's query in bytes."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Sessions:
    """Simulations that open pages are waiting for, one per page."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, Event]] = {}
        self._lock = Lock()
        self._ended = False

    def begin(self, session: str, number: int) -> Event:
        """Return the event that is set when a query with a higher number supersedes the session's query with this
        number."""
        overtaken = Event()
        with self._lock:
            before = self._current.get(session)
            if self._ended or (before is not None and before[0] > number):
                overtaken.set()
                return overtaken
            if before is not None:
                before[1].set()
            self._current[session] = (number, overtaken)
        return overtaken

    def end(self, session: str, overtaken: Event) -> None:
        """Remove a query that has been answered."""
        with self._lock:
            if session in self._current and self._current[session][1] is overtaken:
                del self._current[session]

    def end_all(self) -> None:
        """Stop every simulation because the server is shutting down."""
        with self._lock:
            self._ended = True
            for _, overtaken in self._current.values():
                overtaken.set()


def application(explorer: Explorer, port: int, page: Mapping[str, Any]) -> tuple[Any, Sessions]:
    """Return the ASGI application on a port of this machine, and its sessions. For `page`, see
    servesim.reports.explore.page.explore_page."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    sessions = Sessions()
    html = explore_page(explorer.controls, **page).html()

    async def root(request: Request) -> Response:
        return HTMLResponse(html, headers=HEADERS)

    async def runs(request: Request) -> Response:
        try:
            question = _question(await _body(request))
        except UserError as error:
            return JSONResponse({"error": str(error)}, 400, HEADERS)
        session, number, states, narrow = question
        overtaken = sessions.begin(session, number)
        began = time.perf_counter()
        try:
            found = await run_in_threadpool(explorer.picture, states, overtaken.is_set, narrow)
        except Overtaken:
            return JSONResponse({"number": number, "overtaken": True}, 409, HEADERS)
        except (UserError, PolicyError) as error:
            return JSONResponse({"number": number, "error": str(error)}, 422, HEADERS)
        finally:
            sessions.end(session, overtaken)
        seconds = time.perf_counter() - began
        return JSONResponse({"number": number, "state": states[0], "html": found, "seconds": seconds}, 200, HEADERS)

    async def canvases(request: Request) -> Response:
        first = {control.key: control.value for control in explorer.controls}
        return HTMLResponse(canvases_page(first["model"], first["gpu"]).html(), headers=HEADERS)

    routes = [
        Route("/", root, methods=["GET"]),
        Route("/canvases", canvases, methods=["GET"]),
        Route("/runs", runs, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), port), sessions


class Guard:
    """Middleware that admits only requests from this server's own page, under this server's own name."""

    def __init__(self, inner: Any, port: int) -> None:
        self._inner = inner
        names = [f"{host}:{port}" for host in (HOST, "localhost")]
        self._hosts = {name.encode() for name in names}
        self._origins = {f"http://{name}".encode() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 403."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._own(scope)):
            await self._inner(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": b"not for other hosts and pages\n"})
        else:  # web sockets are not served
            await send({"type": "websocket.close", "code": 1008})

    def _own(self, scope: Scope) -> bool:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.lower())
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or hosts[0] not in self._hosts or len(origins) > 1:
            return False
        if headers.get(b"sec-fetch-site", [b"none"]) not in ([b"none"], [b"same-origin"]):
            return False  # sent by another page, or by a link on one
        if not origins:
            return scope["method"] in ("GET", "HEAD")
        return origins[0] == b"http://" + hosts[0] and origins[0] in self._origins


async def _body(request: Any) -> bytes:
    found = b""
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BYTES:
            raise UserError("the query is too long")
    return found


def _question(body: bytes) -> tuple[str, int, list[dict[str, str]], bool]:
    """Return a query's session, number, states and whether its page is narrow; raise UserError if it is anything
    else."""
    try:
        asked = json.loads(body)
        session, number, states, narrow = (asked[key] for key in ("session", "number", "states", "narrow"))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError("the query is not from the explorer's page") from None
    sound = isinstance(session, str) and 0 < len(session) <= 64 and type(number) is int and isinstance(narrow, bool)
    if not sound or not isinstance(states, list) or not 0 < len(states) <= MOST or not all(map(_is_state, states)):
        raise UserError("the query is not from the explorer's page")
    return session, number, states, narrow


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(inner, str) and len(inner) <= 400 for inner in value.values())


def check_installed() -> None:
    """Raise UserError if the extra `explore` is not installed."""
    try:
        import_module("starlette")
        import_module("uvicorn")
    except ImportError:
        raise UserError(
            "explore: the packages starlette and uvicorn are missing (pip install 'servesim[explore]')"
        ) from None


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine (0 for a free one); raise UserError if the port is
    unavailable."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()
    except OSError as error:
        found.close()
        raise UserError(f"--port {port}: {error.strerror} (0 picks a free one)") from None
    return found


def serve(explorer: Explorer, port: int, page: Mapping[str, Any], ready: Callable[[str], None]) -> None:
    """Call `ready` with the address, then serve until interrupted. Raise UserError if the port is unavailable."""
    import uvicorn

    sock = listening(port)
    with sock:
        taken = sock.getsockname()[1]
        app, sessions = application(explorer, taken, page)

        class Server(uvicorn.Server):
            """Server that ends its simulations before it waits for pending responses."""

            def handle_exit(self, sig: int, frame: Any) -> None:
                sessions.end_all()
                super().handle_exit(sig, frame)

        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
        ready(f"http://{HOST}:{taken}/")
        try:
            Server(config).run(sockets=[sock])
        except KeyboardInterrupt:
            pass  # the intended end
        finally:
            sessions.end_all()
