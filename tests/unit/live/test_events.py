"""KV events on the wire: what a subscriber can tell from them alone, no effect on the run."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app
from servesim.contracts.request import Request
from servesim.errors import UserError
from servesim.live.driver import Driver
from servesim.live.events.kv import KVEvents
from servesim.live.recording import Recording
from servesim.live.tokens import TokenContent
from servesim.live.watcher import Watcher
from servesim.run.scenario import Scenario
from tests.support.kv_wire import BATCHES, Subscriber, WireIndex
from tests.unit.live.test_driver import APART, BEHIND_ROUTER, ONE, Seen, conversations, crowd, run, same

SMALL = {"max_model_len": 1024, "num_gpu_blocks": 300}
VLLM: dict[str, Any] = {**BEHIND_ROUTER, "engine": SMALL}
SGLANG: dict[str, Any] = {**VLLM, "preset": "sglang"}
_names = (f"inproc://events-{i}" for i in itertools.count())


class Law(Watcher):
    """Asserts, whenever a replica publishes, that what was published is what its cache can find."""

    def __init__(self, subscriber: Subscriber, engine: str) -> None:
        self.subscriber, self.engine = subscriber, engine
        self.indices: dict[int, WireIndex] = {}
        self.numbers: dict[int, int] = {}
        self.times: list[float] = []
        self.asked: list[list[int]] = []
        self.compared = self.steps = 0

    def close(self) -> None:
        self.subscriber.close()

    def join(self, cluster: Any) -> None:
        self.replicas = cluster.replicas

    def stepped(self, step: Any, replica: int, gaps: Any) -> None:
        self.steps += 1
        frames = self.subscriber.frames()
        for _, number, sent in frames:
            batch = msgspec.msgpack.decode(sent, type=BATCHES[self.engine])
            rank = msgspec.msgpack.decode(sent)[2]
            assert rank == replica
            assert int.from_bytes(number, "big") == self.numbers.get(rank, 0)
            self.numbers[rank] = self.numbers.get(rank, 0) + 1
            self.times.append(batch.ts)
            self.indices.setdefault(rank, WireIndex()).add(batch)
        if frames or self.engine == "vllm":
            self.compare(replica)

    def compare(self, replica: int) -> None:
        index, kv = self.indices.setdefault(replica, WireIndex()), self.replicas[replica].core.kv
        held = kv.tree.total if self.engine == "sglang" else sum(map(len, kv.cached()))
        assert sum(index.copies.values()) == held
        for tokens in self.asked[-20:]:
            again = Request(10**6, "again", len(tokens), 1, 0, content=TokenContent(tokens, ()))
            assert kv.lookup(again).num_tokens == index.match(tokens[:-1])
            self.compared += 1


def published(settings: dict[str, Any], engine: str, **more: Any) -> tuple[KVEvents, Law]:
    """Return a publisher of two replicas, and a law that hears them."""
    endpoint = next(_names)
    law = Law(Subscriber(endpoint, f"{endpoint}_dp1"), engine)
    return KVEvents(Scenario.of(settings), endpoint, wall=lambda: 1000.0, **more), law


@pytest.mark.parametrize(("settings", "engine"), [(VLLM, "vllm"), (SGLANG, "sglang")], ids=["vllm", "sglang"])
def test_what_was_published_is_what_each_cache_can_find(settings: dict[str, Any], engine: str) -> None:
    events, law = published(settings, engine)

    async def clients(driver: Driver, seen: Seen) -> None:
        draw, tasks = random.Random(1), []
        systems = [[draw.randrange(1 << 32) for _ in range(draw.randrange(20, 300))] for _ in range(12)]
        for row in range(150):
            await asyncio.sleep(draw.expovariate(25))
            length = draw.randrange(1, 80)
            prompt = draw.choice(systems) + [draw.randrange(1 << 32) for _ in range(draw.randrange(1, 200))]
            answer = [draw.randrange(1 << 32) for _ in range(length)]
            law.asked.append(prompt + answer)
            stream = driver.submit_samples(prompt, length, [answer])[0]
            tasks.append(asyncio.create_task(seen.read(stream)))
            if row % 10 == 3:
                asyncio.get_running_loop().call_later(0.1, driver.cancel, stream)
        await asyncio.gather(*tasks)

    run(settings, clients, [events, law])
    assert law.compared > 3000
    assert all(index.told > 50 and index.removed > 50 for index in law.indices.values())
    assert len(law.indices) == 2
    assert law.times == sorted(law.times)
    assert 1000 < law.times[0] < law.times[-1] < 1020
    assert sum(law.numbers.values()) < law.steps


@pytest.mark.parametrize(("settings", "engine"), [(VLLM, "vllm"), (SGLANG, "sglang")], ids=["vllm", "sglang"])
def test_token_ids_alone_predict_the_hits_of_each_prompt(settings: dict[str, Any], engine: str) -> None:
    """One conversation at a time, so that no other request changes the cache in between."""
    events, law = published(settings, engine)
    hits = []

    async def clients(driver: Driver, seen: Seen) -> None:
        draw, said = random.Random(2), [[1] * 100, [2] * 70, [3]]
        for _ in range(60):
            turn = draw.randrange(3)
            prompt = said[turn][:700] + [draw.randrange(1 << 32) for _ in range(draw.randrange(1, 30))]
            answer = [draw.randrange(1 << 32) for _ in range(draw.randrange(1, 60))]
            guess = [law.indices.setdefault(i, WireIndex()).match(prompt[:-1]) for i in range(2)]
            stream = driver.submit_samples(prompt, len(answer), [answer])[0]
            await seen.read(stream)
            assert stream.cached_tokens == guess[stream.request.replica]
            hits.append(stream.cached_tokens)
            said[turn] = prompt + answer
            await asyncio.sleep(0.1)

    run(settings, clients, [events, law])
    assert sum(hit > 100 for hit in hits) > 20


@pytest.mark.parametrize("router", ["dynamo-kv", "llm-d-precise", "smg-cache-aware"])
def test_a_listening_router_and_a_publisher_together_leave_the_run_as_it_is(router: str) -> None:
    settings, recording = {**BEHIND_ROUTER, "router": router}, Recording()
    events, law = published(settings, "vllm")
    seen = run(settings, crowd(40, 300, 0.1), [events, law], recording)
    assert sum(law.numbers.values()) > 100
    same(seen, servesim.simulate(settings, trace=recording.trace(), intervals=False))


@pytest.mark.feature("handoff")
def test_prefill_and_decode_apart_publish_as_three_engines_and_are_still_the_offline_run() -> None:
    recording, endpoint = Recording(), next(_names)
    hearing = Subscriber(endpoint, f"{endpoint}_dp1", f"{endpoint}_dp2")
    seen = run(APART, conversations(10), [KVEvents(Scenario.of(APART), endpoint)], recording)
    assert {msgspec.msgpack.decode(sent)[2] for _, _, sent in hearing.frames()} == {0, 1, 2}
    hearing.close()
    same(seen, servesim.simulate(APART, trace=recording.trace(), intervals=False))


def test_without_a_publisher_no_cache_reports_anything() -> None:
    driver = Driver(Scenario.of(ONE))
    assert driver.cluster.replicas[0].core.kv.on_event is None


@pytest.mark.feature("failures")
def test_after_a_crash_numbers_begin_again_with_all_blocks_cleared() -> None:
    settings = {**BEHIND_ROUTER, "cluster": {"failures": ["crash:replica=0,at=2,restart=1"]}}
    endpoint = next(_names)
    hearing = Subscriber(endpoint)
    run(settings, crowd(40, 200, 0.0), [KVEvents(Scenario.of(settings), endpoint, wall=lambda: 1000.0)])
    heard = [
        (int.from_bytes(n, "big"), msgspec.msgpack.decode(sent, type=BATCHES["vllm"]))
        for _, n, sent in hearing.frames()
    ]
    hearing.close()
    again = [number for number, _ in heard].index(0, 1)
    assert [number for number, _ in heard] == [*range(again), *range(len(heard) - again)]
    assert heard[again][1].ts == 1002
    assert [type(event).__name__ for event in heard[again][1].events] == ["AllBlocksCleared"]
    assert again > 10
    assert len(heard) - again > 10
    index = WireIndex()
    for _, batch in heard:
        index.add(batch)
    assert index.told


@pytest.mark.parametrize(
    ("settings", "endpoint", "error"),
    [
        (ONE, "127.0.0.1:5557", "--kv-events is '127.0.0.1:5557' but must be like tcp://127.0.0.1:5557"),
        (ONE, "tcp://127.0.0.1", "but must be like"),
        ({**ONE, "preset": "tgi"}, "tcp://127.0.0.1:0", "--kv-events: the format of tgi is unknown"),
        ({**ONE, "kv": "paged"}, "tcp://127.0.0.1:0", "--kv-events: kv paged has no prefix cache"),
        (VLLM, "tcp://127.0.0.1:65535", "--kv-events tcp://127.0.0.1:65536: ports end at 65535"),
    ],
)
def test_what_cannot_be_published_is_refused_in_one_line(settings: dict[str, Any], endpoint: str, error: str) -> None:
    made: list[KVEvents] = []

    def make() -> None:
        made.append(KVEvents(Scenario.of(settings), endpoint))
        Driver(Scenario.of(settings), watchers=made)

    with pytest.raises(UserError) as raised:
        make()
    for events in made:
        events.close()
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_of_kv_events_without_an_endpoint_are_refused_in_one_line() -> None:
    for option in ("--kv-events-topic", "--kv-events-replay"):
        done = CliRunner().invoke(app, ["serve", "--model", "llama-3.1-8b", "--gpu", "h100", option, "tcp://*:0"])
        assert isinstance(done.exception, UserError)
        assert str(done.exception) == "--kv-events-topic and --kv-events-replay require --kv-events"
