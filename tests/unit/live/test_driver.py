"""A live run is the offline run of what it recorded, to the nanosecond."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.contracts.request import State
from servesim.errors import UserError
from servesim.live.driver import Driver
from servesim.live.recording import Recording
from servesim.live.stream import Stream
from servesim.live.tokens import Words, tokens_of
from servesim.live.virtual_clock import VirtualLoop
from servesim.live.watcher import Watcher
from servesim.run.scenario import Scenario

ONE: dict[str, Any] = {"trace": "live", "model": "llama-3.1-8b", "gpu": "h100", "engine": {"max_model_len": 8192}}
BEHIND_ROUTER = {**ONE, "replicas": 2, "router": "smg-cache-aware"}
APART = {**ONE, "pools": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "replicas": 2}]}
Clients = Callable[[Driver, "Seen"], Coroutine[Any, Any, None]]


class Seen:
    """What clients saw of their answers: times in ns of the first and the last token, by row."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.streams: dict[int, Stream] = {}

    async def read(self, stream: Stream) -> None:
        row = stream.request.row
        self.streams[row] = stream
        while True:
            tokens = await stream.take()
            if tokens:
                self.first.setdefault(row, self.driver.now_ns())
                self.last[row] = self.driver.now_ns()
            if stream.ended:
                return


def run(
    settings: dict[str, Any],
    clients: Clients,
    watchers: Sequence[Watcher] = (),
    recording: Recording | None = None,
    speed: float = 1.0,
) -> Seen:
    """Serve clients in virtual time; return what they saw."""
    loop = VirtualLoop()
    driver = Driver(Scenario.of(settings), speed=speed, recording=recording, watchers=watchers)
    seen = Seen(driver)

    async def main() -> None:
        driver.start()
        await clients(driver, seen)
        driver.close()

    try:
        loop.run_until_complete(main())
    finally:
        for watcher in watchers:
            watcher.close()
        loop.close()
    assert not driver.failure
    return seen


def live(
    settings: dict[str, Any], clients: Clients, recording: Recording | None = None, speed: float = 1.0
) -> tuple[Seen, Any]:
    """Serve clients in virtual time; return what they saw and the offline result of what was recorded."""
    recording = Recording() if recording is None else recording
    seen = run(settings, clients, recording=recording, speed=speed)
    assert not seen.driver.streams
    return seen, servesim.simulate({**settings}, trace=recording.trace(), intervals=False)


def same(seen: Seen, result: Any) -> None:
    """Assert that live and offline agree for each request: its first, last and final times, hits and replica."""
    out_ns = seen.driver.setup.out_ns
    rows = result.requests.set_index("row")
    assert len(rows) == len(seen.streams)
    for row, stream in seen.streams.items():
        offline = rows.loc[row]
        if not stream.cancelled:
            assert (seen.first[row], seen.last[row]) == (offline.first_token_ns, offline.last_token_ns), row
        assert stream.cached_tokens == offline.hit_tokens, row
        request = stream.request
        assert (request.replica, request.num_output_tokens) == (offline.replica, offline.output_len), row
        assert (request.finished_ns, request.arrival_ns) == (offline.finished_ns - out_ns, offline.arrival_ns), row


def crowd(rate: float, count: int, cancelled: float) -> Clients:
    """Return clients who come at random times, with prompts that share prefixes, and some of whom leave."""

    async def clients(driver: Driver, seen: Seen) -> None:
        draw, tasks, loop = random.Random(1), [], asyncio.get_running_loop()
        systems = [[draw.randrange(1 << 20) for _ in range(draw.randrange(40, 400))] for _ in range(8)]

        async def one(at: float) -> None:
            await asyncio.sleep(at - loop.time())
            prompt = draw.choice(systems) + [draw.randrange(1 << 20) for _ in range(draw.randrange(1, 300))]
            most, patience = draw.randrange(2, 200), draw.expovariate(2)
            leaves = draw.random() < cancelled
            stream = driver.submit(prompt, most, draw.randrange(1, most + 1), priority=draw.randrange(3))
            if leaves:
                loop.call_later(patience, driver.cancel, stream)
            await seen.read(stream)

        at = 0.01
        for _ in range(count):
            at += draw.expovariate(rate)
            tasks.append(asyncio.create_task(one(at)))
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)

    return clients


@pytest.mark.parametrize("rate", [20, 100])
def test_requests_behind_a_router_with_cancellations_are_those_of_the_offline_run(rate: float) -> None:
    seen, result = live(BEHIND_ROUTER, crowd(rate, 1000, 0.2))
    assert 50 < sum(stream.cancelled for stream in seen.streams.values()) < 250
    assert len({stream.request.replica for stream in seen.streams.values()}) == 2
    same(seen, result)


@pytest.mark.feature("view_lag")
def test_views_have_their_age_again_after_an_idle_time() -> None:
    """Three bursts, 10 s apart; each shows whether the replicas' queues are still reported every 50 ms."""

    async def crowds(driver: Driver, seen: Seen) -> None:
        draw, tasks = random.Random(3), []
        for _ in range(3):
            await asyncio.sleep(10)
            for _ in range(150):
                await asyncio.sleep(draw.expovariate(100))
                prompt = [draw.randrange(1 << 20) for _ in range(draw.randrange(100, 2000))]
                tasks.append(asyncio.create_task(seen.read(driver.submit(prompt, 60, 60))))
            await asyncio.gather(*tasks)

    seen, result = live({**ONE, "replicas": 2, "router": "llm-d:prefix_weight=0"}, crowds)
    assert result.scenario.cluster.report_every_s == 0.05
    same(seen, result)


def conversations(count: int) -> Clients:
    """Return clients who hold conversations, each turn of which quotes all that was said before; they begin alike."""

    async def clients(driver: Driver, seen: Seen) -> None:
        draw, loop = random.Random(2), asyncio.get_running_loop()
        system = [draw.randrange(1 << 20) for _ in range(200)]

        async def one(at: float) -> None:
            await asyncio.sleep(at - loop.time())
            said = system[: draw.randrange(100, 200)]
            for _ in range(draw.randrange(1, 6)):
                said = said + [draw.randrange(1 << 20) for _ in range(draw.randrange(1, 120))]
                length = draw.randrange(2, 120)
                answer = Words(driver.next_row, length)
                assert tokens_of(answer.text(0, length)) == list(answer)
                await seen.read(driver.submit(said, length, length))
                said = [*said, *answer]
                await asyncio.sleep(draw.expovariate(1))

        await asyncio.gather(*(asyncio.create_task(one(0.2 * i)) for i in range(count)))

    return clients


@pytest.mark.parametrize(
    "settings", [BEHIND_ROUTER, pytest.param(APART, marks=pytest.mark.feature("handoff"))], ids=["router", "apart"]
)
def test_conversations_hit_what_was_said_as_in_the_offline_run(settings: dict[str, Any]) -> None:
    seen, result = live(settings, conversations(40))
    same(seen, result)
    assert sum(stream.cached_tokens > 300 for stream in seen.streams.values()) > 20


@pytest.mark.feature("handoff")
@pytest.mark.parametrize("rate", [20, 100])
def test_prefill_and_decode_apart_are_those_of_the_offline_run(rate: float) -> None:
    seen, result = live(APART, crowd(rate, 1000, 0.2))
    assert any(stream.cancelled for stream in seen.streams.values())
    same(seen, result)


def test_oracles_of_the_future_are_refused() -> None:
    with pytest.raises(UserError, match="needs to know future requests, which a live server cannot know"):
        Driver(Scenario.of({**ONE, "kv": "prefix-oracle"}))


@pytest.mark.feature("failures")
def test_a_replica_that_crashes_ends_the_same_answers_as_in_the_offline_run() -> None:
    settings = {**BEHIND_ROUTER, "cluster": {"failures": ["crash:replica=0,at=2,restart=1"]}}
    seen, result = live(settings, crowd(40, 200, 0.1))
    rows = result.requests.set_index("row")
    lost = [row for row, stream in seen.streams.items() if stream.error]
    assert lost
    assert all(rows.loc[row].state == State.ABORTED for row in lost)
    whole = [row for row, stream in seen.streams.items() if row not in lost and not stream.cancelled]
    assert len(whole) > 100
    assert [seen.last[row] for row in whole] == [rows.loc[row].last_token_ns for row in whole]


def test_a_recorded_file_is_replayed_with_the_same_prefixes_and_no_text(tmp_path: Path) -> None:
    recording = Recording()
    seen, _ = live(ONE, crowd(40, 100, 0.3), recording)
    recording.save(tmp_path / "seen.jsonl")
    again = servesim.simulate({**ONE, "trace": str(tmp_path / "seen.jsonl")}, intervals=False)
    same(seen, again)
    assert any(stream.cached_tokens for stream in seen.streams.values())
    row = json.loads((tmp_path / "seen.jsonl").read_text().splitlines()[1])
    assert not {"text", "tokens", "prompt"} & set(row)


def test_a_late_loop_delays_what_clients_are_told_and_nothing_else() -> None:
    async def clients(driver: Driver, seen: Seen) -> None:
        stream = driver.submit([1] * 50, 40, 40)
        await asyncio.sleep(0.1)
        loop: Any = asyncio.get_running_loop()
        loop._jump.ahead += 0.15
        await seen.read(stream)

    seen, result = live(ONE, clients)
    offline = result.requests.iloc[0]
    assert seen.driver.late.run_ns > 100_000_000
    assert seen.last[0] > offline.last_token_ns - 1
    assert seen.streams[0].request.finished_ns + seen.driver.setup.out_ns == offline.finished_ns


def test_at_another_speed_the_run_is_still_that_of_what_was_recorded() -> None:
    seen, result = live(ONE, crowd(20, 50, 0.2), speed=0.1)
    same(seen, result)


@pytest.mark.parametrize("when", [0.0, 0.001, 0.006, 0.02])
def test_a_client_may_leave_at_once_in_the_front_end_in_the_queue_or_while_it_is_served(when: float) -> None:
    async def clients(driver: Driver, seen: Seen) -> None:
        streams = [driver.submit([row] * 2000, 50, 50) for row in range(4)]
        asyncio.get_running_loop().call_later(when, driver.cancel, streams[1])
        await asyncio.gather(*map(seen.read, streams))
        await asyncio.sleep(1)

    seen, result = live(ONE, clients)
    assert seen.streams[1].request.state is State.ABORTED
    same(seen, result)
