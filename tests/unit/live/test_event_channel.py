"""Messages over ZMQ: frames, endpoints, and those sent again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest
import zmq

from servesim.errors import UserError
from servesim.live.events.channel import BURST, HWM, KEPT, Channel, endpoint_of
from servesim.live.virtual_clock import VirtualLoop
from tests.support.kv_wire import Subscriber

_names = (f"inproc://channel-{i}" for i in itertools.count())


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


def test_an_endpoint_in_use_is_an_error() -> None:
    channel = Channel("--kv-events", "tcp://127.0.0.1:0")
    with pytest.raises(UserError, match=r"--kv-events tcp://127.0.0.1:\d+: Address already in use"):
        Channel("--kv-events", channel.endpoint)
    channel.close()
