"""KV events on the wire: bytes by hand, what a subscriber can tell from them alone, replay, no effect on the run."""

from __future__ import annotations

import asyncio
import itertools
import random
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
import zmq

import servesim
from servesim.contracts.cost import Batch as StepBatch
from servesim.contracts.kv import Usage
from servesim.contracts.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from servesim.contracts.request import Request
from servesim.errors import PolicyError, UserError
from servesim.live.driver import Driver
from servesim.live.events.channel import BURST, HWM, KEPT, Channel, endpoint_of
from servesim.live.events.formats import Batch, Sglang, Vllm
from servesim.live.events.kv import KVEvents
from servesim.live.recording import Recording
from servesim.live.stream import Stream
from servesim.live.tokens import TokenContent, answer_to, tokens_of
from servesim.live.virtual_clock import VirtualLoop
from servesim.live.watcher import Watcher
from servesim.records.step import Step
from servesim.run.scenario import Scenario
from tests.support.kv_wire import BATCHES, Subscriber, WireIndex
from tests.unit.live.test_driver import APART, BEHIND_ROUTER, ONE, Clients, Seen, conversations, crowd, same

SMALL = {"max_model_len": 1024, "num_gpu_blocks": 300}
VLLM: dict[str, Any] = {**BEHIND_ROUTER, "engine": SMALL}
SGLANG: dict[str, Any] = {**VLLM, "preset": "sglang"}
_names = (f"inproc://events-{i}" for i in itertools.count())


class Answering(Driver):
    """Driver whose answers all have tokens, as those of a server have."""

    def submit(self, prompt: Any, max_tokens: int, output_len: int, answer: Any = (), **fields: Any) -> Stream:
        answer = answer or tokens_of("".join(answer_to(self.next_row, output_len)))
        return super().submit(prompt, max_tokens, output_len, answer, **fields)


def run(
    settings: dict[str, Any], clients: Clients, watchers: Sequence[Watcher] = (), recording: Recording | None = None
) -> Seen:
    """Serve clients in virtual time."""
    loop = VirtualLoop()
    driver = Answering(Scenario.of(settings), watchers=watchers, recording=recording)
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


def name(tokens: Sequence[int], before: bytes = b"") -> bytes:
    return blake2b(before + array("I", tokens).tobytes(), digest_size=16).digest()


def payload(form: Any, events: Sequence[Any], rank: int = 3) -> bytes:
    """Return the batch of these events at 1.5 s."""
    added: list[Any] = []
    for event in events:
        form.add(added, event)
    return msgspec.msgpack.encode(Batch(1.5, added, rank))


def stored(content: TokenContent, start: int, stop: int, size: int, salt: str = "") -> BlockStored:
    """Return the event of blocks [start, stop), in tokens."""
    keys = [content.prefix_key(end) for end in range(start + size, stop + 1, size)]
    parent = content.prefix_key(start) if start else None
    if salt:
        return BlockStored(tuple((salt, k) for k in keys), (salt, parent) if parent else None, size, content, start)
    return BlockStored(tuple(keys), parent, size, content, start)


def test_batches_of_vllm_are_its_bytes() -> None:
    content = TokenContent(range(40), range(100, 120))
    links = [name(range(16))]
    links.append(name(range(16, 32), links[0]))
    links.append(name([*range(32, 40), *range(100, 108)], links[1]))
    first, second, third = (int.from_bytes(link[:8], "big") for link in links)
    rest = {"block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None}
    sent = payload(Vllm("full_attention", 0), [stored(content, 0, 32, 16), stored(content, 32, 48, 16)])
    expected = [
        {"type": "BlockStored", "block_hashes": [first, second], "parent_block_hash": None}
        | {"token_ids": [*range(32)], **rest, "extra_keys": [None, None]}
        | {"group_idx": 0, "kv_cache_spec_kind": "full_attention"},
        {"type": "BlockStored", "block_hashes": [third], "parent_block_hash": second}
        | {"token_ids": [*range(32, 40), *range(100, 108)], **rest, "extra_keys": [None]}
        | {"group_idx": 0, "kv_cache_spec_kind": "full_attention"},
    ]
    assert msgspec.msgpack.decode(sent) == [1.5, expected, 3]
    decoded = msgspec.msgpack.decode(sent, type=BATCHES["vllm"])
    assert msgspec.msgpack.encode(decoded) == sent  # as the engine itself would encode it


def test_a_stored_block_of_vllm_to_the_byte() -> None:
    """The map has the long header of one that could have all 16 keys."""
    link = name([7])
    expected = (
        b"\x93\xcb\x3f\xf8" + bytes(6) + b"\x91\xde\x00\x0b\xa4type\xabBlockStored\xacblock_hashes\x91\xcf" + link[:8]
        + b"\xb1parent_block_hash\xc0\xa9token_ids\x91\x07\xaablock_size\x01\xa7lora_id\xc0\xa6medium\xa3GPU"
        b"\xa9lora_name\xc0\xaaextra_keys\x91\xc0\xa9group_idx\x00\xb2kv_cache_spec_kind\xaefull_attention\x03"
    )  # fmt: skip
    assert link[0] >= 0x80 or int.from_bytes(link[:8], "big") >= 1 << 32  # so it takes 9 bytes
    assert payload(Vllm("full_attention", 0), [stored(TokenContent([7], ()), 0, 1, 1)]) == expected


def test_removals_of_vllm_come_one_by_one_to_the_byte() -> None:
    key, other = bytes(7) + b"\x01" + b"rest 8 b", bytes(7) + b"\x7f" + b"rest 8 b"
    sent = payload(Vllm("full_attention", 0), [BlockRemoved((key, other)), AllBlocksCleared()])
    one = b"\x84\xa4type\xacBlockRemoved\xacblock_hashes\x91%b\xa6medium\xa3GPU\xa9group_idx\x00"
    cleared = b"\x81\xa4type\xb0AllBlocksCleared"
    assert sent == b"\x93\xcb\x3f\xf8" + bytes(6) + b"\x93" + one % b"\x01" + one % b"\x7f" + cleared + b"\x03"
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(sent, type=BATCHES["vllm"])) == sent


def test_batches_of_sglang_are_its_bytes_and_what_belongs_together_is_merged() -> None:
    content, other = TokenContent(range(6), ()), TokenContent([9, 9], ())
    keys = [int.from_bytes(name(range(end))[:8], "big", signed=True) for end in range(2, 7, 2)]
    gone = (b"\xff" * 8 + bytes(8), bytes(16))
    events = [
        *(stored(content, 0, 4, 2), stored(content, 4, 6, 2), stored(other, 0, 2, 2)),
        *(BlockRemoved(gone[:1]), BlockRemoved(gone[1:]), AllBlocksCleared()),
    ]
    sent = payload(Sglang(), events)
    rest = {"block_size": 2, "lora_id": None, "medium": "GPU"}
    last = int.from_bytes(name([9, 9])[:8], "big", signed=True)
    expected = [
        {"type": "BlockStored", "block_hashes": keys, "parent_block_hash": None, "token_ids": [*range(6)], **rest},
        {"type": "BlockStored", "block_hashes": [last], "parent_block_hash": None, "token_ids": [9, 9], **rest},
        {"type": "BlockRemoved", "block_hashes": [-1, 0], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]
    assert sent == msgspec.msgpack.encode([1.5, expected, 3])
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(sent, type=BATCHES["sglang"])) == sent


def test_salts_and_lookahead_are_told_as_the_engines_do() -> None:
    content = TokenContent(range(9), ())
    event = stored(content, 0, 8, 4, "me")
    vllm = msgspec.msgpack.decode(payload(Vllm("mla_attention", 1), [event]), type=BATCHES["vllm"]).events[0]
    assert vllm.extra_keys == [("me",), None]
    assert vllm.lookahead_token_ids == [[4], [8]]
    sglang = msgspec.msgpack.decode(payload(Sglang(), [event]), type=BATCHES["sglang"]).events[0]
    assert sglang.cache_salt == "me"
    plain = msgspec.msgpack.decode(payload(Vllm("x", 0), [stored(content, 0, 8, 4)]), type=BATCHES["vllm"]).events[0]
    assert not set(vllm.block_hashes) & set(plain.block_hashes)


def test_sglang_publishes_after_prefills_every_40th_other_step_and_when_idle() -> None:
    decode, prefill = (
        Step(0, StepBatch(1, prompts=prompts), [], Usage(0, 0, 0, 0)) for prompts in ([], [(1, 0, 1, 1)])
    )
    sglang = Sglang()
    assert [sglang.due(decode, False) for _ in range(80)] == [*[False] * 39, True] * 2
    assert sglang.due(prefill, False)
    assert sglang.due(decode, True)
    assert [sglang.due(decode, False) for _ in range(39)] == [*[False] * 38, True]
    assert Vllm("full_attention", 0).due(decode, False)


def test_a_cache_that_does_not_tell_content_is_an_error() -> None:
    with pytest.raises(PolicyError, match="its BlockStored has no content"):
        Vllm("full_attention", 0).add([], BlockStored((b"1" * 16,), None, 16))


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
            stream = driver.submit(prompt, length, length, answer)
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
            stream = driver.submit(prompt, len(answer), len(answer), answer)
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


def asked_again(channel: Channel, *requests: Sequence[bytes]) -> list[list[bytes]]:
    """Return what a client is sent that asks for missed messages."""
    client = zmq.Context.instance().socket(zmq.DEALER)
    client.set_hwm(0)
    client.connect(channel.replay_endpoint)
    loop = VirtualLoop()

    async def main() -> None:
        channel.answer(asyncio.get_running_loop())
        for frames in requests:
            client.send_multipart(frames)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    found = []
    while client.poll(0):
        found.append(client.recv_multipart())
    client.close(linger=0)
    channel.close()
    loop.close()
    return found


def test_missed_messages_are_sent_again_in_order_with_an_end() -> None:
    channel = Channel("--kv-events", next(_names), b"topic", next(_names))
    for number in range(3 * BURST):
        channel.send(b"%d" % number)
    bad = [b"", b"", (0).to_bytes(8, "big")]
    found = asked_again(channel, bad, [b"", (BURST - 50).to_bytes(8, "big")], [b"", (10**6).to_bytes(8, "big")])
    missed = [[b"", b"topic", n.to_bytes(8, "big"), b"%d" % n] for n in range(BURST - 50, 3 * BURST)]
    end = [b"", b"", b"\xff" * 8, b""]
    assert found == [*missed, end, end]


def test_only_the_last_messages_are_kept_and_none_of_before_a_restart() -> None:
    channel = Channel("--kv-events", next(_names), b"", next(_names))
    for _ in range(KEPT + 5):
        channel.send(b"old")
    assert [number for number, _ in channel._kept] == list(range(5, KEPT + 5))
    channel.restart()
    channel.send(b"new")
    found = asked_again(channel, [b"", bytes(8)])
    assert found == [[b"", b"", bytes(8), b"new"], [b"", b"", b"\xff" * 8, b""]]


def test_a_subscriber_over_tcp_gets_topic_number_and_payload() -> None:
    channel = Channel("--kv-events", "tcp://127.0.0.1:0", b"kv-events")
    assert channel._pub.get_hwm() == HWM
    hearing = Subscriber(channel.endpoint)
    for _ in range(100):  # a subscription takes a moment
        channel.send(b"x")
        if hearing.socket.poll(10):
            break
    topic, number, sent = hearing.frames()[0]
    assert (topic, sent) == (b"kv-events", b"x")
    assert int.from_bytes(number, "big") < channel.number
    hearing.close()
    channel.close()


def test_endpoints_are_offset_as_those_of_data_parallel_ranks() -> None:
    assert endpoint_of("tcp://127.0.0.1:5557", 0) == "tcp://127.0.0.1:5557"
    assert endpoint_of("tcp://*:5557", 3) == "tcp://*:5560"
    assert endpoint_of("tcp://127.0.0.1:0", 3) == "tcp://127.0.0.1:0"
    assert endpoint_of("inproc://cache", 2) == "inproc://cache_dp2"


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


def test_an_endpoint_in_use_is_an_error() -> None:
    channel = Channel("--kv-events", "tcp://127.0.0.1:0")
    with pytest.raises(UserError, match=r"--kv-events tcp://127.0.0.1:\d+: Address already in use"):
        Channel("--kv-events", channel.endpoint)
    channel.close()
