"""The server's API, asked in virtual time within the process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from servesim.live.app import MOST_BODY, App
from servesim.live.driver import Driver
from servesim.live.information import Information
from servesim.live.tokens import Words
from servesim.live.virtual_clock import VirtualLoop
from servesim.run.scenario import Scenario

ONE: dict[str, Any] = {"trace": "live", "model": "llama-3.1-8b", "gpu": "h100", "engine": {"max_model_len": 4096}}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Client:
    """Client of an application within the process."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def ask(
        self,
        path: str,
        body: Any = None,
        *,
        leave_after: float | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> tuple[int, bytes, int]:
        """Send a request and return status, body, and number of chunks."""
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        inbox.put_nowait({"type": "http.request", "body": raw})
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        if leave_after is not None:
            asyncio.get_running_loop().call_later(leave_after, inbox.put_nowait, {"type": "http.disconnect"})
        method = "GET" if body is None else "POST"
        await self.app({"type": "http", "method": method, "path": path, "headers": headers}, inbox.get, send)
        status = sent[0]["status"] if sent else 0
        return status, b"".join(each.get("body", b"") for each in sent), len(sent) - 1

    async def document(
        self, path: str, body: Any = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[int, Any]:
        status, found, _ = await self.ask(path, body, headers=headers)
        return status, json.loads(found)

    async def events(self, path: str, body: Any) -> list[Any]:
        status, found, _ = await self.ask(path, {**body, "stream": True})
        assert status == 200
        *events, done = found.decode().removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]


def served(clients: Callable[[Client], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """Run clients against a server in virtual time."""
    loop = VirtualLoop()
    scenario = Scenario.of({**ONE, **settings})
    watchers = [Information("m", scenario)]
    app = App(lambda: Driver(scenario, watchers=watchers), lambda row: 30, "m", watchers)

    async def main() -> Any:
        app.driver.start()
        found = await clients(Client(app))
        app.driver.close()
        return found

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_completion_has_the_tokens_that_were_asked_for() -> None:
    status, found = served(
        lambda c: c.document(COMPLETIONS, {"prompt": "one two", "max_tokens": 7, "ignore_eos": True})
    )
    assert status == 200
    assert found["usage"]["completion_tokens"] == 7
    assert found["usage"]["prompt_tokens"] == 2
    assert found["choices"][0]["finish_reason"] == "length"
    assert len(found["choices"][0]["text"].split()) == 7


def test_an_answer_that_nobody_limits_has_a_drawn_length() -> None:
    _, found = served(lambda c: c.document(CHAT, {"messages": [{"role": "user", "content": "hi"}]}))
    assert found["usage"]["completion_tokens"] == 30
    assert found["choices"][0]["finish_reason"] == "stop"
    assert not found["choices"][0]["message"]["content"].startswith(" ")


def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 20, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = served(lambda c: c.document(COMPLETIONS, body))[1]
    *chunks, last = served(lambda c: c.events(COMPLETIONS, {**body, "stream_options": options}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == list(range(1, 21))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 19 + ["length"]


def test_the_next_turn_of_a_chat_hits_what_was_said() -> None:
    async def clients(client: Client) -> list[int]:
        messages, hits = [{"role": "user", "content": "word " * 100}], []
        for _ in range(2):
            _, found = await client.document(CHAT, {"messages": messages, "max_tokens": 100, "ignore_eos": True})
            messages += [found["choices"][0]["message"], {"role": "user", "content": "and then"}]
            hits.append((found["usage"]["prompt_tokens_details"]["cached_tokens"], found["usage"]["total_tokens"]))
        return hits

    (first, said), (second, _) = served(clients)
    assert first == 0
    assert said - 32 < second <= said


def test_a_stop_text_ends_the_answer_after_min_tokens_and_is_not_shown() -> None:
    async def clients(client: Client) -> None:
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
        words = Words(0, 20)
        stop = {**body, "stop": [words.text(4, 7)[2:-1], "nowhere"]}  # from within one token to within another
        again = (await client.document(COMPLETIONS, stop))[1]
        chunks = await client.events(COMPLETIONS, {**body, "stop": Words(1, 20).text(19, 20)})
        later = (await client.document(COMPLETIONS, {**body, "stop": "a", "min_tokens": 5}))[1]
        assert again["choices"][0]["text"] == words.text(0, 4) + words.text(4, 7)[:2]
        assert again["choices"][0]["finish_reason"] == "stop"
        assert again["usage"]["completion_tokens"] == 7
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == Words(1, 20).text(0, 19)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"  # though max_tokens are reached
        assert later["usage"]["completion_tokens"] > 5

    served(clients)


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        (COMPLETIONS, b"{", 400, "the body is not JSON"),
        (COMPLETIONS, b"[" * 100_000, 400, "the body is not JSON"),
        (COMPLETIONS, [], 400, "the body is not a JSON object"),
        (COMPLETIONS, {}, 400, "prompt must be one text or one list of token ids (integers from 0), and not empty"),
        (COMPLETIONS, {"prompt": [-1]}, 400, "prompt must be one text or one list of token ids"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens is 0 but must be an integer of at least 1"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": True}, 400, "max_tokens is True but must be an integer"),
        (COMPLETIONS, {"prompt": [1] * 5000}, 400, "this model's maximum context length is 4096 tokens"),
        (COMPLETIONS, {"prompt": "a", "n": 129}, 400, "n is 129 but must be at most 128"),
        (COMPLETIONS, {"prompt": "a", "stop": 1}, 400, "stop must be a text or a list of texts"),
        (CHAT, {"messages": "a"}, 400, "messages must be a list of objects, and not empty"),
        (CHAT, None, 405, "/v1/chat/completions is asked by POST"),
        (COMPLETIONS, b"x" * (MOST_BODY + 1), 413, f"the body has more than {MOST_BODY} bytes"),
        ("/nowhere", None, 404, "GET /nowhere is not served"),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line(path: str, body: Any, status: int, line: str) -> None:
    found_status, found = served(lambda c: c.document(path, body))
    assert found_status == status
    assert found["error"]["message"].startswith(line)
    assert "\n" not in found["error"]["message"]


def test_pages_for_gateways() -> None:
    async def clients(client: Client) -> None:
        assert (await client.ask("/health"))[0] == 200
        assert (await client.document("/load"))[1] == {"server_load": 0}
        assert (await client.document("/v1/models"))[1]["data"][0]["max_model_len"] == 4096
        tokens = (await client.document("/tokenize", {"prompt": "some longer words"}))[1]
        assert tokens["count"] == len(tokens["tokens"])
        assert (await client.document("/detokenize", tokens))[1] == {"prompt": "some longer words"}
        info = (await client.document("/server_info"))[1]
        assert (info["context_length"], info["max_running_requests"], info["tp_size"]) == (4096, 1024, 1)
        assert (await client.document("/get_server_info"))[1] == info
        assert (await client.document("/get_model_info"))[1]["model_path"] == "m"
        body = {"prompt": "some longer words", "max_tokens": 5, "model": "m"}
        rendered = (await client.document("/v1/completions/render", body))[1]
        assert [each["token_ids"] for each in rendered] == [tokens["tokens"]]
        assert rendered[0]["sampling_params"] == {"max_tokens": 5}
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        expected = (await client.document("/tokenize", chat))[1]["tokens"]
        assert (await client.document("/v1/chat/completions/render", chat))[1]["token_ids"] == expected

    served(clients)


def test_a_client_that_vanishes_frees_its_place() -> None:
    async def clients(client: Client) -> None:
        body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        await client.ask(COMPLETIONS, body, leave_after=0.5)
        await asyncio.sleep(0.1)
        driver = client.app.driver
        assert not driver.streams
        assert driver.cluster.replicas[0].num_running == 0
        assert asyncio.get_running_loop().time() < 1

    served(clients)


POLICY = """
from servesim.policies.scheduling.vllm import Vllm

class Fails(Vllm):
    name = "fails"
    failed = []

    def plan(self, ctx):
        if ctx.now > 200_000_000 and not self.failed:
            self.failed.append(1)
            raise ValueError("no more")
        return super().plan(ctx)
"""


def test_a_policy_that_raises_ends_its_requests_with_500_and_a_line_not_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails.py").write_text(POLICY)

    async def clients(client: Client) -> None:
        body = {"prompt": "a", "max_tokens": 100, "ignore_eos": True}
        whole, streamed = await asyncio.gather(
            client.document(COMPLETIONS, body), client.ask(COMPLETIONS, {**body, "stream": True})
        )
        assert whole[0] == 500
        assert "no more" in whole[1]["error"]["message"]
        assert "\n" not in whole[1]["error"]["message"]
        assert streamed[0] == 200  # it had begun, so the error is its last event
        error, done = streamed[1].decode().removesuffix("\n\n").split("\n\n")[-2:]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
        assert done == "data: [DONE]"
        assert (await client.document(COMPLETIONS, body))[0] == 200

    served(clients, scheduler=f"{tmp_path / 'fails.py'}:Fails")
    (line,) = capsys.readouterr().err.splitlines()
    assert "no more" in line
    assert line.endswith("its answers end with status 500, and the next request restarts it")


def test_while_the_server_drains_answers_end_and_new_ones_are_refused() -> None:
    async def clients(client: Client) -> tuple[int, int]:
        going = asyncio.create_task(client.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 50, "ignore_eos": True}))
        await asyncio.sleep(0.1)
        client.app.draining = True
        refused = await client.ask(COMPLETIONS, {"prompt": "a"})
        return (await going)[0], refused[0]

    assert served(clients) == (200, 503)
