"""The tokens that a client is owed, as counters: a slow reader gets several tokens at once, and nothing overflows."""

from __future__ import annotations

import asyncio

from servesim.contracts.request import Request


class Stream:
    """Answer of one request on its way to its client, who reads it from one coroutine."""

    __slots__ = (
        *("_waiter", "cancelled", "due_ns", "error", "output_len", "ready", "request", "streamed", "taken", "waited"),
    )

    def __init__(self, request: Request, output_len: int) -> None:
        self.request = request
        self.output_len = output_len
        self.ready = 0
        """Number of tokens that have reached the client's end."""
        self.taken = 0
        """Number of tokens that the client has taken."""
        self.error = ""
        """Why the answer ends early; empty if it does not."""
        self.streamed = True
        """Whether its client asked for tokens as they come."""
        self.cancelled = False
        """Whether its client is gone."""
        self.due_ns = 0
        """Time at which the first of the tokens not yet taken was due."""
        self.waited = False
        """Whether the client has waited for the tokens that it takes now; if not, it reads slowly."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether no more tokens will come."""
        return self.ready >= self.output_len or bool(self.error) or self.cancelled

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache at the first admission."""
        return (self.request.leg or self.request).hit_tokens

    def add(self, tokens: int, due_ns: int) -> None:
        """Let tokens reach the client, which are due at `due_ns`."""
        if self.ready == self.taken:
            self.due_ns = due_ns
        self.ready += tokens
        self.wake()

    def end(self, error: str) -> None:
        """End the answer early."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def some(self) -> None:
        """Wait until there are tokens or the answer has ended."""
        while self.ready == self.taken and not self.ended:
            self.waited = True
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def take(self) -> int:
        """Wait for `some`, and return the number of tokens not yet taken."""
        await self.some()
        tokens, self.taken = self.ready - self.taken, self.ready
        return tokens


class Lateness:
    """Most by which this machine was late, in simulated ns. It delays when clients are told, and nothing else."""

    __slots__ = ("lately_ns", "run_ns")

    def __init__(self) -> None:
        self.run_ns = 0
        """Since the start."""
        self.lately_ns = 0
        """Since it was last set to 0."""

    def add(self, ns: int) -> None:
        """Count something that was late by `ns`."""
        if ns > self.lately_ns:
            self.lately_ns = ns
            if ns > self.run_ns:
                self.run_ns = ns
