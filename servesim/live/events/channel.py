"""Socket on which one engine publishes numbered messages, and from which missed ones can be had again.

Frames as in vLLM 0.33.0 (vllm/distributed/kv_events.py) and SGLang 0.5.23 (srt/disaggregation/kv_events.py): topic,
sequence number (8 bytes, big-endian), payload. Nothing here waits: a subscriber that is too slow misses messages.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

import zmq

from servesim.errors import UserError

HWM = 100_000
"""Maximum number of messages queued for one subscriber."""
KEPT = 10_000
"""Number of messages that can be had again."""
BURST = 100
"""Number of messages that are sent again in one turn of the event loop."""
END = (-1).to_bytes(8, "big", signed=True)


def endpoint_of(endpoint: str, index: int) -> str:
    """Return the endpoint of engine `index`, as vLLM offsets it by the data-parallel rank: its own TCP port, or its own
    name. TCP port 0 is a free one for each."""
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{index}" if index else endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + index}" if int(port) else endpoint


def check_endpoint(option: str, endpoint: str) -> None:
    """Raise UserError if an option's endpoint cannot be one."""
    scheme, _, rest = endpoint.partition("://")
    port = rest.rpartition(":")[2]
    if scheme not in ("tcp", "ipc", "inproc") or not rest or (scheme == "tcp" and not port.isdecimal()):
        raise UserError(f"{option} is {endpoint!r} but must be like tcp://127.0.0.1:5557")
    if scheme == "tcp" and int(port) > 65535:  # ZeroMQ would take another port
        raise UserError(f"{option} {endpoint}: ports end at 65535")


class Channel:
    """Publisher of one engine. `replay`: endpoint at which messages can be had again, or None; `option`: name of the
    option that gave the endpoint, for errors."""

    def __init__(self, option: str, endpoint: str, topic: bytes = b"", replay: str | None = None) -> None:
        """Bind the sockets. Raise UserError if that is impossible."""
        self.number = 0
        """Sequence number of the next message."""
        self._topic = topic
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._due: deque[tuple[bytes, ...]] = deque()  # to be sent again
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pub = _bound(zmq.PUB, HWM, endpoint, option)
        self.endpoint = _address(self._pub)
        self._router: zmq.Socket[bytes] | None = None
        if replay is not None:
            try:
                self._router = _bound(zmq.ROUTER, 2 * (KEPT + 1), replay, f"{option}-replay")
            except UserError:
                self._pub.close(linger=0)
                raise
        self.replay_endpoint = _address(self._router) if self._router is not None else ""

    def send(self, payload: bytes) -> None:
        """Publish a message."""
        number = self.number
        self.number += 1
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        if self._router is not None:
            self._kept.append((number, payload))

    def restart(self) -> None:
        """Begin again at number 0, as the publisher of an engine that was started again."""
        self.number = 0
        self._kept.clear()

    def answer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer requests for missed messages from now on, in this loop."""
        if self._router is not None:
            self._loop = loop
            loop.add_reader(self._router.FD, self._serve)
            self._serve()

    def close(self) -> None:
        """Close the sockets; messages on their way to slow subscribers are dropped."""
        if self._router is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._router.FD)
            self._router.close(linger=0)
        self._pub.close(linger=0)

    def _serve(self) -> None:
        """Send some of what is due, then take requests. Requests come last: the socket's descriptor tells only once of
        those that come while it is used otherwise."""
        router, loop = self._router, self._loop
        if router is None or loop is None or router.closed:
            return
        for _ in range(min(BURST, len(self._due))):
            router.send_multipart(self._due.popleft(), zmq.NOBLOCK)
        while router.poll(0):
            frames = router.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3:  # else it is no request, and the engines drop it too
                self._again(frames[0], int.from_bytes(frames[2], "big"))
        if self._due:
            loop.call_soon(self._serve)

    def _again(self, client: bytes, start: int) -> None:
        for number, payload in self._kept:
            if number >= start:
                self._due.append((client, b"", self._topic, number.to_bytes(8, "big"), payload))
        self._due.append((client, b"", b"", END, b""))


def channel_of(
    option: str, endpoint: str, index: int, topic: bytes = b"", replay: str | None = None, *, running: bool
) -> Channel | None:
    """Return the publisher of engine `index`. If its sockets cannot be bound, raise UserError, unless the server runs
    already: then one line says that this engine does not publish, and the answers of the others go on."""
    own = endpoint_of(replay, index) if replay is not None else None
    try:
        return Channel(option, endpoint_of(endpoint, index), topic, own)
    except UserError as error:
        if not running:
            raise
        sys.stderr.write(f"warning: replica {index} does not publish: {error}\n")
        return None


def _bound(kind: int, hwm: int, endpoint: str, option: str) -> zmq.Socket[bytes]:
    """Return a socket that is bound to an endpoint."""
    check_endpoint(option, endpoint)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.SNDHWM, hwm)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise UserError(f"{option} {endpoint}: {error.strerror}") from None
    return socket


def _address(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
