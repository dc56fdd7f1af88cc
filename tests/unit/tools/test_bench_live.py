"""The benchmark of the live server: what its client reads, and its arithmetic. Runs without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from benchmarks import live, live_faults
from benchmarks.live_client import Answer, Load, Seen, request_of
from servesim.live.tokens import Words


class Wire:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        pass


def seen_of(*parts: bytes, check_words: bool = False) -> Seen:
    """Return what a client sees of an answer that comes in these parts."""

    async def read() -> Seen:
        seen = Seen(0, 0.0)
        answer = Answer(b"asked", seen, check_words)
        wire: Any = Wire()
        answer.connection_made(wire)
        assert wire.written == b"asked"
        for part in parts:
            answer.data_received(part)
        answer.connection_lost(None)
        return seen

    return asyncio.run(read())


def event(text: str, row: int = 3) -> bytes:
    document = {"id": f"cmpl-{row}", "choices": [{"index": 0, "text": text}]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b'data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":16}}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_tokens_are_counted_by_their_spaces_wherever_the_bytes_are_cut() -> None:
    whole = HEAD + event(" a") + event(" b c") + END + DONE
    for cut in range(1, len(whole)):
        seen = seen_of(whole[:cut], whole[cut:])
        assert (seen.status, seen.row, seen.chunks, seen.tokens) == (200, 3, 2, 3)
        assert (seen.usage, seen.cached, seen.error) == (3, 16, "")


def test_an_answer_without_an_end_or_with_an_error_is_told() -> None:
    assert seen_of(HEAD, event(" a")).error == "status 200, and the connection ended"
    assert seen_of(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}").error == "status 503, and the connection ended"
    assert seen_of(HEAD, DONE).error == "no tokens"


def test_words_out_of_order_are_noticed() -> None:
    words = Words(3, 3).pieces(0, 3)
    right = [HEAD, *map(event, words), END, DONE]
    assert seen_of(*right, check_words=True).in_order
    right[2], right[3] = right[3], right[2]
    assert not seen_of(*right, check_words=True).in_order


def test_a_request_says_how_long_it_is() -> None:
    head, _, body = request_of([1, 2], 5).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["max_tokens"] == 5


def test_percentiles_are_of_the_values() -> None:
    assert live.spread(np.arange(101)) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}


def test_every_part_is_named_by_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(live.PARTS) == ["closeness", "delay", "cpu", "streams", "faults"]
    with pytest.raises(SystemExit):
        live.main(["speed"])
    assert "unknown part speed; there are closeness, delay, cpu, streams, faults" in capsys.readouterr().err


def test_a_load_travels_as_json() -> None:
    load = Load(8000, requests=3, texts=["a"])
    assert Load(**json.loads(json.dumps(load.__dict__))) == load


def test_bodies_are_wrong_in_several_ways() -> None:
    assert {status for _, status in live_faults.MALFORMED.values()} == {400}
    assert live_faults.post([1]).endswith(b"\r\n\r\n[1]")
