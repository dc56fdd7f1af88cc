"""Several answers to one prompt (n > 1), live."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import servesim
from servesim.live.driver import Driver
from servesim.live.recording import Recording
from servesim.live.stream import Stream
from servesim.live.tokens import Words
from servesim.live.virtual_clock import VirtualLoop
from servesim.run.scenario import Scenario
from tests.unit.live.test_app import CHAT, COMPLETIONS, Client, served

ONE: dict[str, Any] = {"trace": "live", "model": "llama-3.1-8b", "gpu": "h100", "engine": {"max_model_len": 8192}}
TWO: dict[str, Any] = {"replicas": 2, "router": "smg-cache-aware"}
FORMS: dict[str, dict[str, Any]] = {
    "children": {**ONE, **TWO},
    "prefix-first": {**ONE, **TWO, "scheduler": "sglang", "kv": "prefix-radix"},
    "fork": {**ONE, **TWO, "scheduler": "continuous", "kv": "paged"},
    "children, tight": {**ONE, "engine": {"max_model_len": 1024, "num_gpu_blocks": 200}},
    "children, drafts": {**ONE, "speculation": "ngram"},
    "children, predicted": {**ONE, "scheduler": "sjf", "predictor": "random:error=0.5"},
}
CRASHES = {"failures": ["crash:replica=0,at=1.5,restart=0.2", "crash:replica=1,at=2.5,restart=0.1"]}
FAILING = {
    f"{form}, crashes": {**FORMS[form], "router": "least-outstanding", "cluster": CRASHES}
    for form in ("children", "prefix-first", "fork")
}


async def _read(stream: Stream, driver: Driver, seen: dict[tuple[int, int], tuple[int, int]]) -> None:
    first = -1
    while not stream.ended:
        if await stream.take() and first < 0:
            first = driver.now_ns()
    parent = stream.request.parent
    key = (parent.number, stream.request.sample) if parent is not None else (stream.request.row, 0)
    if not stream.cancelled and not stream.error:
        seen[key] = (first, driver.now_ns())


@pytest.mark.feature("failures")
@pytest.mark.parametrize("form", FAILING)
def test_samples_are_those_of_the_offline_run_where_replicas_crash(form: str) -> None:
    assert_like_offline(form, FAILING[form], 5)


@pytest.mark.parametrize(("form", "seed"), [(form, seed) for form in FORMS for seed in (3, 11, 13)])
def test_samples_are_those_of_the_offline_run(form: str, seed: int) -> None:
    assert_like_offline(form, FORMS[form], seed)


def assert_like_offline(form: str, settings: dict[str, Any], seed: int) -> None:
    recording, loop = Recording(), VirtualLoop()
    driver = Driver(Scenario.of(settings), recording=recording)
    assert driver.setup.cores[0].scheduler.samples in form
    seen: dict[tuple[int, int], tuple[int, int]] = {}

    async def one(draw: random.Random, at: float) -> None:
        await asyncio.sleep(at)
        prompt = [draw.randrange(50) for _ in range(40)] + [draw.randrange(1 << 20) for _ in range(200)]
        row, count = driver.next_row, draw.choice([1, 1, 2, 5])
        patience = draw.choice([0.004, 0.0055, 0.05, 0.4]) if draw.random() < 0.3 else None
        streams = driver.submit_samples(prompt, 100, [Words(row, draw.randrange(1, 100), i) for i in range(count)])
        if patience is not None:
            for stream in streams:
                asyncio.get_running_loop().call_later(patience, driver.cancel, stream)
        await asyncio.gather(*(_read(stream, driver, seen) for stream in streams))

    async def main() -> None:
        draw, at, tasks = random.Random(seed), 0.01, []
        driver.start()
        for _ in range(200):
            at += draw.expovariate(40)
            tasks.append(asyncio.create_task(one(draw, at)))
        await asyncio.gather(*tasks)
        driver.close()

    loop.run_until_complete(main())
    loop.close()
    result = servesim.simulate({**settings}, trace=recording.trace(), intervals=False)
    rows = result.requests.set_index("row")
    assert sum(rows.samples) > 350
    assert any(rows.samples == 5)
    whole = {
        number: [seen.get((number, sample)) for sample in range(samples + (samples > 1))][samples > 1 :]
        for number, samples in rows.samples.items()
        if samples
    }
    whole = {number: times for number, times in whole.items() if None not in times}
    assert len(whole) > 120
    for number, times in whole.items():
        row = rows.loc[number]
        assert min(first for first, _ in times) == row.first_token_ns
        assert max(last for _, last in times) == row.last_token_ns
    assert not driver.streams


def test_every_answer_has_its_own_text_and_length() -> None:
    body = {"prompt": "tell me", "max_tokens": 20, "ignore_eos": True, "n": 3}
    whole = served(lambda c: c.document(COMPLETIONS, body))[1]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len({choice["text"] for choice in whole["choices"]}) == 3
    assert whole["usage"]["completion_tokens"] == 60
    assert whole["usage"]["prompt_tokens"] == 2
    options = {"include_usage": True}
    *chunks, last = served(lambda c: c.events(COMPLETIONS, {**body, "stream_options": options}))
    for index, choice in enumerate(whole["choices"]):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(each["text"] for each in mine) == choice["text"]
        assert [each["finish_reason"] for each in mine] == [None] * (len(mine) - 1) + ["length"]
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize(("n", "told", "tokens"), [(1, "57", 57), (2, "57", 114), (3, "5,6,7", 18), (1, "5000", 1000)])
def test_a_header_gives_the_lengths_of_answers(n: int, told: str, tokens: int) -> None:
    headers = [(b"x-output-tokens", told.encode())]
    body = {"messages": [{"role": "user", "content": "hi"}], "n": n}
    if told == "5000":
        body["max_tokens"] = 1000
    _, found = served(lambda c: c.document(CHAT, body, headers=headers))
    assert found["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize("told", ["", "0", "many", "1,2", "-3", "99999999999"])
def test_a_bad_header_gets_one_line(told: str) -> None:
    status, found = served(
        lambda c: c.document(COMPLETIONS, {"prompt": "a", "n": 3}, headers=[(b"x-output-tokens", told.encode())])
    )
    assert (status, found["error"]["message"].split(" is ")[0]) == (400, "x-output-tokens")


@pytest.mark.feature("handoff")
def test_a_deployment_that_cannot_serve_samples_says_so() -> None:
    async def clients(client: Client) -> tuple[int, Any, int]:
        status, found = await client.document(COMPLETIONS, {"prompt": "a", "n": 2})
        return status, found, (await client.ask(COMPLETIONS, {"prompt": "a"}))[0]

    status, found, after = served(clients, pd="1x1:1x1")
    assert status == 400
    assert "several samples of a request (n > 1) cannot have their prompt computed apart" in found["error"]["message"]
    assert after == 200
