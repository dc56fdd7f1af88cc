"""Real routers in front of four servers: every request is answered, and as much of the prompts is found in prefix
caches as with our router of that name on the same requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import servesim
from benchmarks.live_server import Server, server
from servesim.workload.trace import Content, Trace

pytestmark = pytest.mark.live
DEPLOYMENT = {"model": "llama-3.1-8b", "gpu": "h100"}
SPEED = 0.5
SERVERS = 4
GROUPS, EACH, PER_S = 12, 8, 8
"""Groups of prompts with a common beginning, prompts in each, and requests a simulated second."""
COMMON, OUTPUT = 512, 48
"""Tokens of the common beginning, and of an answer."""
ROUTERS = {
    "sglang-router cache_aware": (
        ("bin/python", "-m", "sglang_router.launch_router", "--policy", "cache_aware"),
        "sglang-cache-aware",
    ),
    "sglang-router round_robin": (
        ("bin/python", "-m", "sglang_router.launch_router", "--policy", "round_robin"),
        "round-robin",
    ),
    "smg cache_aware": (("bin/smg", "launch", "--policy", "cache_aware"), "smg-cache-aware:version=1.13.0"),
    "vllm-router cache_aware": (("bin/vllm-router", "--policy", "cache_aware"), "vllm-router-cache-aware"),
}
"""Commands in the environment, and our router."""


@dataclass
class Sent:
    """One request, and what came of it."""

    group: int
    text: str
    tokens: int
    """Tokens of the prompt. No two prompts have as many, so recordings tell which server got it."""
    at: float = 0.0
    cached: int = -1
    output: int = -1


def requests() -> list[Sent]:
    """Return the requests in the order of sending. A word of four letters is a token, wherever it stands."""
    draw = random.Random(7)

    def words(count: int) -> str:
        return " ".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(count))

    groups = [words(COMMON) for _ in range(GROUPS)] * EACH
    order = draw.sample(range(len(groups)), len(groups))
    found = []
    for number, index in enumerate(order):
        tail = 33 + number
        found.append(Sent(index % GROUPS, f"{groups[index]} {words(tail)}", COMMON + tail))
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def router(environment: Path, command: tuple[str, ...], workers: list[str], log: Path) -> Iterator[str]:
    """Run a router in front of the workers; give its address once it lists a model."""
    port = free_port()
    program = [str(environment / command[0]), *command[1:]]
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        process = subprocess.Popen([*program, *where, "--worker-urls", *workers], stdout=out, stderr=out)
        try:
            until = time.monotonic() + 90
            while not _serves(url):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _serves(url: str) -> bool:
    try:
        return (
            httpx.get(f"{url}/health", timeout=5).status_code
            == httpx.get(f"{url}/v1/models", timeout=5).status_code
            == 200
        )
    except httpx.HTTPError:
        return False


async def send(url: str, model: str, sent: list[Sent]) -> None:
    """Send the requests at PER_S a simulated second, streamed."""
    draw = random.Random(8)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one(request: Sent, after_s: float) -> None:
            await asyncio.sleep(after_s)
            body: dict[str, Any] = {"model": model, "prompt": request.text, "max_tokens": OUTPUT, "ignore_eos": True}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            request.at = time.monotonic()
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200, await answer.aread()
                lines = [line async for line in answer.aiter_lines() if line]
            assert lines.pop() == "data: [DONE]"
            usage = json.loads(lines[-1].removeprefix("data: "))["usage"]
            request.cached = usage["prompt_tokens_details"]["cached_tokens"]
            request.output = usage["completion_tokens"]

        due = np.cumsum([draw.expovariate(PER_S * SPEED) for _ in sent])
        await asyncio.gather(*map(one, sent, due))


def recorded(sent: list[Sent]) -> Trace:
    """Return the requests as a trace, with the times at which they were sent."""
    sent.sort(key=lambda request: request.at)
    count = len(sent)
    prompt = np.array([request.tokens for request in sent], dtype=np.int64)
    runs = [((request.group + 1, COMMON), (1000 + row, request.tokens - COMMON)) for row, request in enumerate(sent)]
    ids, lengths = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    at = np.array([(request.at - sent[0].at) * SPEED * 1e9 for request in sent]).astype(np.int64)
    output = np.full(count, OUTPUT, dtype=np.int64)
    return Trace(
        name="sent", arrival_ns=at, prompt_len=prompt, output_len=output, max_tokens=output.copy(),
        priority=np.zeros(count, dtype=np.int64), stop=np.zeros(count, dtype=bool),
        content=Content(np.arange(count + 1, dtype=np.int64) * 2, ids.copy(), lengths.copy()),
    )  # fmt: skip


def servers(stack: ExitStack, folder: Path) -> list[Server]:
    flags = [f"--{name}={value}" for name, value in DEPLOYMENT.items()]
    records = [f"--record={folder / f'{number}.jsonl'}" for number in range(SERVERS)]
    return [stack.enter_context(server([*flags, f"--speed={SPEED}", record])) for record in records]


def chosen(folder: Path, sent: list[Sent]) -> tuple[list[int], int]:
    """Return the server that got each request, and the tokens that the recordings' runs find in prefix caches."""
    where, hits = {}, 0
    for number in range(SERVERS):
        if (record := folder / f"{number}.jsonl").exists():  # not where no request came
            seen = servesim.simulate(trace=str(record), **DEPLOYMENT, intervals=False).requests
            where |= dict.fromkeys(seen.prompt_len.tolist(), number)
            hits += int(seen.hit_tokens.sum())
    return [where[request.tokens] for request in sent], hits


def agreement(real: list[int], ours: list[int]) -> float:
    """Return the share of equal choices, with the servers named so that it is largest: routers number them their own
    way."""
    names = itertools.permutations(range(SERVERS))
    return max(sum(a == name[b] for a, b in zip(real, ours, strict=True)) for name in names) / len(real)


@pytest.mark.parametrize("name", ROUTERS)
def test_a_real_router_finds_as_many_prefixes_as_ours(
    name: str, environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, policy = ROUTERS[name]
    sent = requests()
    with ExitStack() as stack:
        running = servers(stack, tmp_path)
        urls = [each.url for each in running]
        with router(environment, command, urls, tmp_path / "router.log") as url:
            (listed,) = {model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]}
            assert listed == running[0].model  # routers learn it from pages such as /model_info
            asyncio.run(send(url, running[0].model, sent))
        for each in running:
            each.stop()
    assert {request.output for request in sent} == {OUTPUT}
    trace = recorded(sent)
    real, hits = chosen(tmp_path, sent)
    assert hits == sum(request.cached for request in sent)
    ours = servesim.simulate(trace=trace, **DEPLOYMENT, replicas=SERVERS, router=policy, intervals=False).requests
    total = int(trace.prompt_len.sum())
    rates = hits / total, int(ours.hit_tokens.sum()) / total
    same = agreement(real, ours.sort_values("row").replica.tolist())
    with capsys.disabled():
        print(f"\n{name}: {rates[0]:.1%} of prompts cached, ours {rates[1]:.1%}; {same:.0%} of choices equal")
    assert rates[0] == pytest.approx(rates[1], abs=0.02)
