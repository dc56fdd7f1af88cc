"""Contract of watchers: what follows a live run as it happens, such as metrics and events for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from servesim.contracts.part import Part, verbs
from servesim.contracts.request import Request
from servesim.records.recorder import Recorder
from servesim.records.step import Late, Step

if TYPE_CHECKING:
    from servesim.live.driver import Driver


class Visit(NamedTuple):
    """A visit to a page."""

    body: Mapping[str, Any]
    """The JSON object that was sent; empty for GET."""
    headers: Mapping[str, str]
    """Headers by name in lower case."""


class Page(NamedTuple):
    """A page that is not JSON."""

    body: bytes
    content_type: str


class Gap(NamedTuple):
    """Equal deliveries of one step."""

    ns: int
    """Time since the previous delivery to the same request, or 0 for the tokens that come with its first one."""
    tokens: int
    """Number of tokens that each request got."""
    requests: int


Handler = Callable[[Visit], "dict[str, Any] | list[Any] | Page"]
Pages = Mapping[tuple[str, str], Handler]
"""Handlers by (method, path)."""


class Watcher(Part):
    """Part that also handles the records of a live run. All verbs are optional, and only those that a class overrides
    are called. If a policy fails, the engine starts again with the same watchers, which `join` the new cluster."""

    driver: Driver
    """Driver that serves now, set before anything else is asked of it."""

    def stepped(self, step: Step, replica: int, gaps: Sequence[Gap]) -> None:
        """Handle a step that has just ended. `gaps`: what it delivered to requests that had tokens before."""

    def recorded(self, request: Request, replica: int) -> None:
        """Handle a request that has ended, in any way; `replica` is -1 if it reached none."""

    def pages(self) -> Pages:
        """Return the pages that it adds to the server."""
        return {}

    def admits(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise Refused for a visit to a page that its headers do not permit; called before its body is read."""

    def announced(self) -> str:
        """Return a line for the terminal of a server that is ready, or an empty text."""
        return ""

    def close(self) -> None:
        """Release what it holds, as the server stops."""

    def wants(self, verb: str) -> bool:
        return getattr(type(self), verb) is not getattr(Watcher, verb)


class Telling(Recorder):
    """Recorder that keeps nothing and tells watchers."""

    def __init__(self, watchers: Sequence[Watcher], out_ns: int) -> None:
        super().__init__(_drop, out_ns, _drop, _drop, _drop)
        self._stepped, self._recorded = verbs(watchers, "stepped"), verbs(watchers, "recorded")
        self._between: list[Gap] = []

    def step(self, step: Step, replica: int) -> None:
        gaps, self._between = self._between, []
        for stepped in self._stepped:
            stepped(step, replica, gaps)

    def gap(self, ns: int, count: int) -> None:
        self._between.append(Gap(ns, 1, count))

    def late(self, now: int, late: list[Late]) -> None:
        alike: dict[tuple[int, int], int] = {}
        for _, since, tokens in late:
            which = (now - since, tokens if since != now else tokens - 1)
            alike[which] = alike.get(which, 0) + 1
        self._between += [Gap(ns, tokens, count) for (ns, tokens), count in alike.items()]

    def leave(self, request: Request, replica: int) -> None:
        for recorded in self._recorded:
            recorded(request, replica)


def _drop(*rows: Any) -> None:
    """Forget records: a server has no end at which to report them."""
