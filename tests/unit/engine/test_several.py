"""Several connectors of one replica, asked in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from servesim.contracts import Request
from servesim.contracts.connector import DEFER, Connector
from servesim.engine.several import Several, joined


class Source(Connector):
    """Has some tokens, and writes down what it is told."""

    def __init__(self, tokens: int, in_step: bool = False, adds_ns: int = 0) -> None:
        self.tokens, self.in_step, self.adds_ns = tokens, in_step, adds_ns
        self.told: list[Any] = []

    def available(self, request: Request, num_tokens: int) -> int:
        self.told.append("asked")
        return self.tokens

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        self.told.append((start, stop))
        return now + 7

    def passed_over(self, request: Request) -> None:
        self.told.append("passed over")

    def join(self, replica: Any) -> None:
        self.told.append(replica)

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        return end_ns + self.adds_ns

    def preempted(self, requests: Iterable[Request]) -> int:
        return self.adds_ns


def request(row: int = 0) -> Request:
    return Request(row, f"request-{row}", prompt_len=64, max_tokens=1, arrival_ns=0)


def test_the_first_that_has_kv_loads_and_all_are_asked_and_told() -> None:
    sources = [Source(0), Source(32), Source(48)]
    one, each = Several(sources), request()
    assert one.available(each, 16) == 32
    assert one.load(each, 16, 48, 100) == 107
    assert [source.told for source in sources] == [
        ["asked", "passed over"],
        ["asked", (16, 48)],
        ["asked", "passed over"],
    ]


def test_where_none_has_any_there_is_none_and_one_that_does_not_know_makes_the_request_wait() -> None:
    assert Several([Source(0), Source(0)]).available(request(), 0) == 0
    assert Several([Source(32), Source(DEFER)]).available(request(), 0) == DEFER


def test_it_loads_in_the_step_where_the_one_that_loads_does() -> None:
    beside, within = Source(32), Source(48, in_step=True)
    one = Several([beside, within])
    one.available(request(), 0)
    assert not one.in_step
    beside.tokens = 0
    one.available(request(), 0)
    assert one.in_step


def test_a_load_is_that_of_the_request_even_if_others_were_asked_of_meanwhile() -> None:
    sources = [Source(0), Source(32)]
    one, first = Several(sources), request()
    one.available(first, 0)
    sources[0].tokens, sources[1].tokens = 16, 0
    one.available(request(1), 0)
    sources[0].tokens, sources[1].tokens = 0, 32
    one.load(first, 0, 32, 0)
    assert sources[1].told[-1] == (0, 32)


def test_ends_of_steps_add_up_and_the_longest_copy_holds_up_the_next_step() -> None:
    one = Several([Source(0, adds_ns=5), Source(0, adds_ns=30)])
    assert one.ran([], 0, 100) == 135
    assert one.preempted([]) == 30
    one.join("replica")
    assert [source.told for source in one.connectors if isinstance(source, Source)] == [["replica"], ["replica"]]


def test_one_alone_stays_itself_and_more_are_kept_in_order() -> None:
    a, b, c = Source(0), Source(0), Source(0)
    assert joined(None, a, first=False) is a
    two = joined(a, b, first=False)
    three = joined(two, c, first=True)
    assert isinstance(three, Several)
    assert three.connectors == (c, a, b)
    a.brings_token = True
    with pytest.raises(ValueError, match="first token"):
        joined(two, c, first=True)
