"""Replay of recorded routing choices, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, routers
from servesim.errors import UserError
from servesim.untrusted import read_text


@dataclass(frozen=True)
class Params:
    """Parameters of a scripted router."""

    file: str = ""
    """Text file of whitespace-separated replica indices, in the order in which requests are routed."""


@routers.register("scripted")
class Scripted(Router):
    """Router whose n-th decision, retries included, is the file's n-th index. It raises UserError if the file has too
    few indices or names a nonexistent replica."""

    blind = True
    Params = Params

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        if not params.file:
            raise UserError(
                "router scripted: the file of choices is missing; write, for example, scripted:file=choices.txt"
            )
        try:
            self._choices = [int(word) for word in read_text(Path(params.file)).split()]
        except ValueError as error:
            raise UserError(f"router scripted: {params.file}: {error}") from None
        if wrong := [choice for choice in self._choices if not 0 <= choice < num_replicas]:
            raise UserError(
                f"router scripted: {params.file}: chooses replica {wrong[0]}, but replicas are numbered from 0 to "
                f"{num_replicas - 1}"
            )
        self._next = 0

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        if self._next == len(self._choices):
            raise UserError(
                f"router scripted: {self.params.file} has only {self._next} choices, but there are more requests"
            )
        self._next += 1
        return self._choices[self._next - 1]
