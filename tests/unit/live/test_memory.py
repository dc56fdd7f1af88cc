"""A live server keeps nothing of requests that have left."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from servesim.contracts.request import Request
from servesim.engine.replica import UNREAD
from servesim.live.driver import Driver
from servesim.live.stream import Stream
from servesim.live.virtual_clock import VirtualLoop
from servesim.run.scenario import Scenario

ONE: dict[str, Any] = {"trace": "live", "model": "llama-3.1-8b", "gpu": "h100", "engine": {"max_model_len": 8192}}
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "two replicas": {**ONE, "replicas": 2, "router": "least-requests"},
    "llm-d": {**ONE, "replicas": 2, "router": "llm-d"},
    "apart": {**ONE, "pools": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]},
    "sglang": {**ONE, "scheduler": "sglang", "kv": "prefix-radix"},
    "ranks": {**ONE, "model": "qwen3-30b-a3b", "dp": 2, "ep": 2},
}
NEEDS = {"apart": ["handoff"], "ranks": ["data_parallel"]}
"""Features that a deployment uses."""


async def _read(stream: Stream) -> None:
    while not stream.ended:
        await stream.take()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.feature(each) for each in NEEDS.get(name, ())]) for name in DEPLOYMENTS],
)
def test_requests_that_have_left_are_forgotten(name: str) -> None:
    loop = VirtualLoop()
    driver = Driver(Scenario.of(DEPLOYMENTS[name]))

    async def one(number: int) -> None:
        await asyncio.sleep(number / 20)
        stream = driver.submit([number % 3] * 100 + [number] * 60, 30, 20)
        if number % 5 == 0:
            asyncio.get_running_loop().call_later(0.05, driver.cancel, stream)
        await _read(stream)

    async def main() -> None:
        driver.start()
        await asyncio.gather(*(one(number) for number in range(200)))
        await asyncio.sleep(1000)  # longer than any lease
        driver.close()

    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, Request) and each.num_output_tokens]
    assert len(left) <= UNREAD, left[:5]
