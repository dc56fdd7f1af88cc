"""Server on a socket: an application under uvicorn, until a signal lets it drain."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from errno import EADDRINUSE
from importlib import import_module
from typing import Any

import numpy as np

from servesim.errors import UserError
from servesim.live.app import CAME, App

MOST_CONNECTIONS = 8192
DRAIN_S = 60
"""Time in s that answers in progress have after SIGTERM."""


PACKAGES = ("uvicorn", "httptools", "prometheus_client", "zmq", "msgspec")
"""Packages of the extra `serve`."""


def check_installed() -> None:
    """Raise UserError if the extra `serve` is not installed."""
    for package in PACKAGES:
        try:
            import_module(package)
        except ImportError:
            raise UserError(f"serve: the package {package} is missing (pip install 'servesim[serve]')") from None


def lengths(spec: str, seed: int) -> Callable[[int], int]:
    """Return a function that draws the length of the answer to a row in tokens, from a distribution as in
    servesim.traces.synth. Raise UserError for an invalid one."""
    from servesim.traces.spec import Call
    from servesim.traces.synth.lengths import draw

    call = Call.parse("output", spec)
    draw(call, np.zeros(1, dtype=np.int64), seed)  # reports an error before the server starts
    return lambda row: int(draw(call, np.array([row], dtype=np.int64), seed)[0])


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port (0: a free one). Raise UserError if that is impossible."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        hint = " (port 0 picks a free one)" if error.errno == EADDRINUSE else ""
        raise UserError(f"--host {host} --port {port}: {error.strerror}{hint}") from None
    return found


def _stamping() -> Any:
    """Return the class of connections, which keep the time at which they last received something: requests arrive then,
    however long it takes to parse them."""
    base: Any = import_module("uvicorn.protocols.http.auto").AutoHTTPProtocol

    class Stamping(base):  # type: ignore[misc]  # the class of the installed parser
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._came = [0.0]
            self.app_state: dict[str, Any] = {**named["app_state"], CAME: self._came}

        def data_received(self, data: bytes) -> None:
            self._came[0] = self.loop.time()
            super().data_received(data)

    return Stamping


def serve(app: App, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; answers in progress may then end, and new ones are refused. `ready` is called with
    the address once the socket listens."""
    import uvicorn

    class Draining(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.draining = True
            super().handle_exit(sig, frame)

    with listening(host, port) as found:
        config = uvicorn.Config(
            app,
            http=_stamping(),
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=DRAIN_S,
            limit_concurrency=MOST_CONNECTIONS,
        )
        gc.collect()
        gc.freeze()  # what was set up stays, so collections need not look at it
        ready(f"http://{f'[{host}]' if ':' in host else host}:{found.getsockname()[1]}")
        try:
            Draining(config).run(sockets=[found])
        except KeyboardInterrupt:  # uvicorn raises the signal again after it has drained
            return
