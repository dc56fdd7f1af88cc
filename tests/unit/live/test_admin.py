"""Operators of a live server: who may act, what they may do, and that the offline run does the same."""

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
from servesim.live.admin import Admin
from servesim.live.app import App
from servesim.live.driver import Driver
from servesim.live.events.forward import ForwardMetrics
from servesim.live.events.kv import KVEvents
from servesim.live.metrics.dialects import dialect_of
from servesim.live.metrics.watcher import Metrics
from servesim.live.recording import Recording, save_replay
from servesim.live.virtual_clock import VirtualLoop
from servesim.live.watcher import Watcher
from servesim.run.scenario import Scenario
from servesim.run.setting_names import load_settings
from tests.unit.live.test_app import Client
from tests.unit.live.test_driver import ONE, Seen, crowd, same

pytestmark = pytest.mark.feature("failures")
TOKEN = "a-token-of-operators"
THREE: dict[str, Any] = {**ONE, "replicas": 3, "router": "smg-cache-aware"}


class Operator:
    """Someone who asks the pages of a server within the process."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def ask(self, page: str, body: Any = None, token: str | None = TOKEN) -> tuple[int, Any]:
        """Ask /admin, or a page below it with a body; return status and document."""
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        method, path = ("POST", f"/admin/{page}") if body is not None else ("GET", "/admin")
        headers = [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
        await self.app({"type": "http", "method": method, "path": path, "headers": headers}, inbox.get, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def do(self, page: str, **body: Any) -> Any:
        """Ask a page that must not refuse; return its document."""
        status, found = await self.ask(page, body)
        assert status == 200, found
        return found


Acts = Callable[[Operator, Driver, Seen], Coroutine[Any, Any, Any]]


def operated(
    settings: dict[str, Any], acts: Acts, recording: Recording | None = None, others: Sequence[Watcher] = ()
) -> tuple[Seen, Any]:
    """Run a server under operators in virtual time, with other watchers beside them; return what clients saw, and what
    `acts` returns."""
    loop, asked, made = VirtualLoop(), Scenario.of(settings), []

    def make() -> Driver:
        made.append(Driver(asked, recording=recording, watchers=watchers, operated=True))
        return made[-1]

    admin = Admin(TOKEN)
    watchers = [*others, admin]
    app = App(make, lambda row: 30, "m", watchers)
    seen = Seen(app.driver)

    async def main() -> Any:
        app.driver.start()
        found = await acts(Operator(app), app.driver, seen)
        app.driver.close()
        return found

    try:
        found = loop.run_until_complete(main())
    finally:
        loop.close()
        for watcher in watchers:
            watcher.close()
    assert not app.driver.failure
    return seen, found


def replayed(seen: Seen, recording: Recording, settings: dict[str, Any], folder: Path) -> Any:
    """The result of the files that a server writes."""
    operations = seen.driver.operations
    assert operations is not None
    recording.save(folder / "seen.jsonl")
    file = save_replay(Scenario.of(settings), folder / "seen.jsonl", operations.done)
    return servesim.simulate(load_settings(file), intervals=False)


def same_but_for_lost(seen: Seen, result: Any) -> list[int]:
    """Assert that live and offline agree, also in which answers ended with their replica and when; return those."""
    lost = {row: stream for row, stream in seen.streams.items() if stream.error}
    rows = result.requests.set_index("row")
    for row, stream in lost.items():
        request, offline = stream.request, rows.loc[row]
        assert offline.state == request.state
        assert request.state in (State.ABORTED, State.REJECTED), "by a crash, or since all breakers are open"
        assert (request.replica, request.num_output_tokens) == (offline.replica, offline.output_len)
        assert request.finished_ns + seen.driver.setup.out_ns == offline.finished_ns
        seen.streams.pop(row)
    result.requests = result.requests[~result.requests["row"].isin([*lost])]
    same(seen, result)
    return [*lost]


@pytest.mark.parametrize("more", [{}, {"scaler": "keda:target=40,min=1,max=5"}], ids=["alone", "scaled"])
def test_what_operators_did_is_done_again_offline_to_the_nanosecond(tmp_path: Path, more: dict[str, Any]) -> None:
    recording, settings = Recording(), {**THREE, **more}

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        async def operators() -> Any:
            await asyncio.sleep(1.0000000017)
            await operator.do("crash", replica=0, restart_s=1.5)
            await asyncio.sleep(0.5)
            await operator.do("slow", replica=1, for_s=0.7, factor=3)
            await operator.do("slow", replica=1, for_s=1.1, factor=2.5)
            await operator.do("add", startup_s=0.3)
            await asyncio.sleep(0.5)
            await operator.do("drain", replica=2)
            await asyncio.sleep(2)
            return await operator.do("replace", replica=1, gpu="h200", model="llama-3.2-1b", startup_s=0.2)

        acting = asyncio.create_task(operators())
        await crowd(60, 400, 0.1)(driver, seen)
        return await acting

    seen, _ = operated(settings, acts, recording)
    assert not seen.driver.streams
    last = seen.driver.cluster.replicas
    assert len(last) >= 5
    assert [replica.state for replica in last[:3]] == ["ready", "gone", "gone"]
    result = replayed(seen, recording, settings, tmp_path)
    lost = same_but_for_lost(seen, result)
    assert lost
    served = set(result.requests["replica"])
    assert {0, 1, 2, 3, 4} <= served
    pools = result.summary["pools"]
    assert [pools[name]["replicas"] for name in pools] == [len(last) - 1, 1]
    assert [*pools] == ["default", "default gpu=h200 model=llama-3.2-1b"]


@pytest.mark.feature("handoff")
@pytest.mark.parametrize("more", [{}, {"offload": "cpu=4GiB"}], ids=["alone", "offload"])
def test_what_operators_did_to_either_side_is_done_again_offline(tmp_path: Path, more: dict[str, Any]) -> None:
    pools = [{"name": "p", "role": "prefill", "replicas": 2}, {"name": "d", "role": "decode", "replicas": 2}]
    recording, settings = Recording(), {**ONE, "router": "least-requests", "pools": pools, **more}

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> None:
        async def operators() -> None:
            await asyncio.sleep(1.0000000017)
            await operator.do("crash", replica=0, restart_s=1.5)
            await asyncio.sleep(0.5)
            await operator.do("crash", replica=2, restart_s=0.5)
            await operator.do("add", pool="d", startup_s=0.3)
            await asyncio.sleep(0.5)
            await operator.do("drain", replica=3)
            await asyncio.sleep(0.5)
            await operator.do("replace", replica=1, pool="p", gpu="h200", startup_s=0.2)

        acting = asyncio.create_task(operators())
        await crowd(60, 400, 0.1)(driver, seen)
        await acting

    seen, _ = operated(settings, acts, recording)
    assert not seen.driver.streams
    assert [replica.state for replica in seen.driver.cluster.replicas] == [
        *("ready", "gone", "ready", "gone", "ready", "ready"),
    ]
    result = replayed(seen, recording, settings, tmp_path)
    assert same_but_for_lost(seen, result)
    done = result.requests[result.requests["state"] == State.FINISHED]
    assert {*done["prefill_replica"]} == {0, 1, 5}
    assert {*done["replica"]} == {2, 3, 4}


def anything(draw: random.Random, count: int) -> tuple[str, dict[str, Any]]:
    """What an operator may come up with: a page and its body."""
    index, seconds = draw.randrange(count), draw.choice([0, 0.25, 0.5])
    return draw.choice(
        [
            ("crash", {"replica": index, "restart_s": seconds}),
            ("slow", {"replica": index, "for_s": 0.25 + seconds, "factor": draw.choice([0.5, 1, 3.3])}),
            ("add", {"startup_s": seconds}),
            ("drain", {"replica": index}),
            ("replace", {"replica": index, "gpu": "h200", "startup_s": seconds}),
            ("crash", {"node": 0, "restart_s": seconds}),
            ("upgrade", {"surge": index % 2, "batch": 2, "startup_s": seconds, "grace_s": 0.1}),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_whatever_operators_do_at_whatever_times_is_done_again_offline(tmp_path: Path, seed: int) -> None:
    cluster = {"detection_s": (0, 0.2)[seed % 2], "report_every_s": (0, 0.1)[seed // 2]}
    recording, settings, draw = Recording(), {**THREE, "cluster": cluster}, random.Random(seed)

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> None:
        async def operators() -> None:
            for _ in range(14):
                await asyncio.sleep(draw.choice([0, 0.25, 0.5, draw.random()]))
                assert (await operator.ask(*anything(draw, len(driver.cluster.replicas))))[0] in (200, 409)
            await operator.do("add", startup_s=0)

        acting = asyncio.create_task(operators())
        await crowd(60, 300, 0.1)(driver, seen)
        await acting

    seen, _ = operated(settings, acts, recording)
    assert not seen.driver.streams
    assert len(seen.driver.operations.done) >= 8  # type: ignore[union-attr]
    same_but_for_lost(seen, replayed(seen, recording, settings, tmp_path))


@pytest.mark.feature("handoff")
def test_nodes_networks_and_upgrades_are_done_again_offline(tmp_path: Path) -> None:
    recording = Recording()
    settings = {**ONE, "router": "least-requests", "pd": "2x1:2x1", "cluster": {"gpus_per_node": 2}}

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        async def operators() -> Any:
            await asyncio.sleep(0.5000000013)
            await operator.do("slow_net", for_s=2, factor=50, pool="decode")
            await asyncio.sleep(0.5)
            await operator.do("crash", node=0, restart_s=0.5)
            await asyncio.sleep(1)
            await operator.do("slow", node=1, for_s=0.5, factor=2)
            return await operator.do("upgrade", pool="decode", surge=True, startup_s=0.2, grace_s=0.05)

        acting = asyncio.create_task(operators())
        await crowd(60, 400, 0.1)(driver, seen)
        return await acting

    seen, found = operated(settings, acts, recording)
    assert [text.partition(":")[0] for text in found["done"]] == ["slow_net", "crash", "slow", "upgrade"]
    assert [replica.state for replica in seen.driver.cluster.replicas] == [
        *["ready"] * 2,
        *["gone"] * 2,
        *["ready"] * 2,
    ]
    result = replayed(seen, recording, settings, tmp_path)
    lost = same_but_for_lost(seen, result)
    assert {*result.requests["replica"]} >= {2, 3, 4, 5}
    assert lost


def test_a_replacement_serves_from_the_instant_at_which_the_replaced_one_drains(tmp_path: Path) -> None:
    recording = Recording()

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        await seen.read(driver.submit([1] * 50, 20, 20))
        found = await operator.do("replace", replica=0, gpu="h200", startup_s=1)
        await seen.read(driver.submit([1] * 60, 20, 20))
        await asyncio.sleep(1)
        await seen.read(driver.submit([1] * 70, 20, 20))
        return found, await operator.ask("")

    seen, (first, (_, after)) = operated(ONE, acts, recording)
    assert [(each["state"], each["gpu"]) for each in first["replicas"]] == [("ready", "h100"), ("starting", "h200")]
    assert [each["state"] for each in after["replicas"]] == ["gone", "ready"]
    assert [stream.request.replica for stream in seen.streams.values()] == [0, 0, 1]
    add, drain = after["done"]
    at_ns = round(float(add.partition("at=")[2].partition(",")[0]) * 1e9)
    assert drain == f"drain:replica=0,at={(at_ns + 10**9 + 1) // 10**9}.{(at_ns + 1) % 10**9:09d}".rstrip("0")
    h100, h200 = (stream.request for stream in (seen.streams[0], seen.streams[2]))
    assert h200.finished_ns - h200.first_token_ns < h100.finished_ns - h100.first_token_ns
    same(seen, replayed(seen, recording, ONE, tmp_path))


def test_everything_that_watches_goes_on_with_a_replica_of_another_gpu() -> None:
    metrics = Metrics("m", dialect_of(Scenario.of(ONE)))
    events = KVEvents(Scenario.of(ONE), "tcp://127.0.0.1:0", replay="tcp://127.0.0.1:0")
    steps = ForwardMetrics(Scenario.of(ONE), "tcp://127.0.0.1:0")

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> str:
        await operator.do("replace", replica=0, gpu="h200", startup_s=0.1)
        await asyncio.sleep(1)
        await seen.read(driver.submit([1] * 60, 20, 20))
        _, page, _ = await Client(operator.app).ask("/metrics")
        return page.decode()

    seen, page = operated(ONE, acts, others=[metrics, events, steps])
    assert seen.streams[0].request.replica == 1
    assert 'vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 1.0' in page


def test_while_the_only_replica_is_down_requests_wait_for_it(tmp_path: Path) -> None:
    recording = Recording()

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        found = await operator.do("crash", replica=0, restart_s=2)
        reading = asyncio.create_task(seen.read(driver.submit([1] * 50, 20, 20)))
        await asyncio.sleep(1)
        waiting = (await operator.ask(""))[1]
        await reading
        return found, waiting

    seen, (found, waiting) = operated(ONE, acts, recording)
    assert (found["replicas"][0]["state"], waiting["waiting_in_router"]) == ("failed", 1)
    assert 2_000_000_000 < seen.first[0] < 2_100_000_000
    same(seen, replayed(seen, recording, ONE, tmp_path))


def test_an_added_replica_takes_the_time_of_a_start_by_default() -> None:
    seen, found = operated(ONE, lambda operator, driver, seen: operator.do("add"))
    (added,) = found["done"]
    start = float(added.partition("startup=")[2])
    weights = seen.driver.setup.deployment.model.weight_bytes("bf16")
    assert start == pytest.approx(58.1 + weights / 2e9)  # 24 s boot, 7.5 s compile, 17 s graphs, 9.6 s warm-up, 2 GB/s
    assert found["replicas"][1]["state"] == "starting"


@pytest.mark.parametrize(
    ("page", "body", "status", "line"),
    [
        ("crash", {}, 400, "replica is None but must be the number of a replica"),
        ("crash", {"replica": True}, 400, "replica is True but must be the number of a replica"),
        ("crash", {"replica": 3}, 404, "there is no replica 3; they are numbered from 0 to 2"),
        ("crash", {"replica": -1}, 404, "there is no replica -1"),
        ("crash", {"replica": 10**400}, 404, "there is no replica 1000"),
        ("crash", {"replica": 0, "restart_s": -1}, 400, "restart_s is -1 but must be a number from 0 to 1e7"),
        ("crash", {"replica": 0, "restart_s": "1,at=0"}, 400, "restart_s is '1,at=0' but must be a number"),
        ("crash", {"replica": 0, "restart": 5}, 400, "unknown key 'restart'"),
        ("crash", {"replica": 1}, 409, "replica 1 is gone"),
        ("crash", {"replica": 2}, 409, "replica 2 is down already"),
        ("drain", {"replica": 1}, 409, "replica 1 is gone"),
        ("slow", {"replica": 0, "for_s": 5, "factor": 0}, 400, "'slow:replica=0,"),
        ("slow", {"replica": 0, "for_s": 0, "factor": 2}, 400, "'slow:replica=0,"),
        ("slow", {"replica": 0, "for_s": 5, "factor": float("nan")}, 400, "the body is not JSON"),
        ("slow", {"replica": 0, "for_s": 1e300, "factor": 2}, 400, "for_s is 1e+300 but must be a number"),
        ("slow", {"replica": 0, "for_s": 5}, 400, "factor is None but must be a number"),
        ("add", {"gpu": "h999"}, 400, "add: unknown GPU 'h999'"),
        ("add", {"gpu": "h200,at=0"}, 400, "gpu is 'h200,at=0' but must be a name"),
        ("add", {"gpu": ""}, 400, "gpu is '' but must be a name"),
        ("add", {"pool": "b"}, 400, "add: unknown pool 'b'"),
        ("add", {"model": "llama-2-7b"}, 400, "add: engine.max_model_len is 8192 but must be from 1 to the 4096"),
        ("replace", {"replica": 0, "model": "Qwen/Qwen3-8B-FP8"}, 400, "add: the weights of Qwen/Qwen3-8B-FP8"),
        ("crash", {"node": 1}, 404, "there is no node 1; they are numbered from 0 to 0"),
        ("crash", {"node": "0"}, 400, "node is '0' but must be the number of a node"),
        ("drain", {"node": 0, "replica": 0}, 400, "replica and node are both specified"),
        ("add", {"node": 0}, 400, "unknown key 'node'"),
        ("slow_net", {"for_s": 5, "factor": 2}, 400, "slow_net has no effect: only KV between prefill and decode"),
        ("slow_net", {"for_s": 5}, 400, "factor is None but must be a number"),
        ("slow_net", {"for_s": 5, "factor": 2, "pool": "b"}, 400, "slow_net: unknown pool 'b'"),
        ("upgrade", {"batch": 0}, 400, "'upgrade:at="),
        ("upgrade", {"batch": True}, 400, "batch must be a whole number, and surge 0 or 1"),
        ("upgrade", {"surge": "yes"}, 400, "batch must be a whole number, and surge 0 or 1"),
        ("upgrade", {"grace_s": -1}, 400, "grace_s is -1 but must be a number from 0 to 1e7"),
        ("upgrade", {"gpu": "h999"}, 400, "upgrade: unknown GPU 'h999'"),
        ("nothing", {}, 404, "POST /admin/nothing is not served"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_happens(
    page: str, body: Any, status: int, line: str
) -> None:
    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        await operator.do("drain", replica=1)
        await operator.do("crash", replica=2)
        before = (await operator.ask(""))[1]
        found = await operator.ask(page, body)
        after = (await operator.ask(""))[1]
        assert {**before, "now_s": 0} == {**after, "now_s": 0}
        return found

    found_status, found = operated(THREE, acts)[1]
    message = found["error"]["message"]
    assert (found_status, message[: len(line)]) == (status, line)
    assert "\n" not in message


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("", 403), (TOKEN[:-1], 403), ("ö" * 20, 403)])
def test_only_who_has_the_token_may_look_or_act(token: str | None, status: int) -> None:
    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        looked = await operator.ask("", token=token)
        acted = await operator.ask("crash", {"replica": 0}, token=token)
        assert (await operator.ask(""))[1]["done"] == []
        return looked[0], acted[0]

    assert operated(ONE, acts)[1] == (status, status)


@pytest.mark.parametrize("token", ["", "short", "a token with spaces", "ö" * 20])
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(UserError, match="the admin token must have at least 16 printable ASCII characters"):
        Admin(token)


def test_a_server_without_a_token_has_no_such_pages() -> None:
    app = App(lambda: Driver(Scenario.of(ONE)), lambda row: 30, "m")
    status, found = asyncio.run(Operator(app).ask(""))
    assert (status, found["error"]["message"]) == (404, "GET /admin is not served")


@pytest.mark.feature("data_parallel")
def test_the_crash_of_one_rank_takes_the_others_of_its_replica() -> None:
    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        await operator.do("crash", replica=1)
        return (await operator.ask(""))[1]["replicas"]

    _, found = operated({**ONE, "model": "qwen3-30b-a3b", "dp": 2}, acts)
    assert [each["state"] for each in found] == ["failed", "failed"]


def test_the_pages_tell_what_replicas_do() -> None:
    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        reading = asyncio.create_task(seen.read(driver.submit([1] * 1000, 100, 100)))
        await operator.do("slow", replica=0, for_s=0.5, factor=4)
        await asyncio.sleep(0.3)
        busy = (await operator.ask(""))[1]
        await reading
        return busy, (await operator.ask(""))[1]

    seen, (busy, idle) = operated(ONE, acts)
    (one,) = busy["replicas"]
    assert {**one, "kv_usage": 0} == {
        "replica": 0, "state": "ready", "pool": "default", "gpu": "h100", "model": "llama-3.1-8b",
        "running": 1, "waiting": 0, "kv_usage": 0, "slowed": 4,
    }  # fmt: skip
    tokens = seen.driver.cluster.replicas[0].core.kv.capacity_tokens
    assert 1000 <= one["kv_usage"] * tokens < 1100
    assert (idle["replicas"][0]["running"], idle["replicas"][0]["slowed"]) == (0, 1)
    assert busy["done"] == idle["done"] == ["slow:replica=0,at=0.000000001,until=0.500000001,factor=4"]


def test_operators_go_on_where_the_settings_have_added_another_gpu(tmp_path: Path) -> None:
    settings = {**ONE, "cluster": {"failures": ["add:at=0.5,startup=0,gpu=h200"]}}
    recording = Recording()

    async def acts(operator: Operator, driver: Driver, seen: Seen) -> Any:
        await asyncio.sleep(1)
        found = await operator.do("replace", replica=0, gpu="h200", startup_s=0)
        await operator.do("add", gpu="a100", startup_s=0)
        await crowd(40, 40, 0)(driver, seen)
        return found

    seen, _ = operated(settings, acts, recording)
    gpus = [replica.pool for replica in seen.driver.cluster.replicas]
    assert gpus == ["default", "default gpu=h200", "default gpu=h200", "default gpu=a100"]
    same(seen, replayed(seen, recording, settings, tmp_path))
