"""Forward-pass metrics by hand, as SGLang declares them and as Dynamo fills them in for vLLM."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest

import servesim
from servesim.contracts.cost import Batch
from servesim.contracts.kv import Usage
from servesim.errors import UserError
from servesim.live.driver import Driver
from servesim.live.events.forward import ForwardMetrics, moments, scheduled_of
from servesim.live.recording import Recording
from servesim.live.watcher import Watcher
from servesim.records.step import Step
from servesim.run.scenario import Scenario
from tests.support.kv_wire import Subscriber
from tests.unit.live.test_driver import BEHIND_ROUTER, ONE, Clients, Seen, crowd, run, same

SGLANG: dict[str, Any] = {**ONE, "preset": "sglang"}
_names = (f"inproc://forward-{i}" for i in count())


class ScheduledRequestMetrics(msgspec.Struct, frozen=True, gc=False):
    """As in SGLang 0.5.23 (srt/observability/forward_pass_metrics.py)."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class QueuedRequestMetrics(msgspec.Struct, frozen=True, gc=False):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class ForwardPassMetrics(msgspec.Struct, frozen=True, gc=False):
    version: int = 1
    worker_id: str = ""
    dp_rank: int = 0
    counter_id: int = 0
    wall_time: float = 0.0
    scheduled_requests: ScheduledRequestMetrics = ScheduledRequestMetrics()
    queued_requests: QueuedRequestMetrics = QueuedRequestMetrics()


class Steps(Watcher):
    """The steps themselves: (plan, end, time on the GPU) in ns."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def stepped(self, step: Step, replica: int, gaps: Any) -> None:
        self.seen.append((step.planned_ns, step.end_ns, step.gpu_ns))


def heard(settings: dict[str, Any], clients: Clients) -> tuple[list[ForwardPassMetrics], Steps]:
    """Return what is published of a run, and its steps."""
    endpoint, steps = next(_names), Steps()
    hearing = Subscriber(endpoint)
    run(settings, clients, [ForwardMetrics(Scenario.of(settings), endpoint), steps])
    found = []
    for place, (topic, number, sent) in enumerate(hearing.frames()):
        found.append(msgspec.msgpack.decode(sent, type=ForwardPassMetrics))
        assert msgspec.msgpack.encode(found[-1]) == sent  # as the engine itself would encode it
        assert (topic, int.from_bytes(number, "big"), found[-1].counter_id) == (b"", place, place)
    hearing.close()
    return found, steps


async def pair(driver: Driver, seen: Seen) -> None:
    """Send a prompt of 10 tokens; while it runs, of 50 and 70 for 3 tokens each; then 80, of which 64 are cached."""
    first = [driver.submit([0] * 10, 1, 1), driver.submit([1] * 50, 3, 3), driver.submit([2] * 70, 3, 3)]
    await asyncio.gather(*map(seen.read, first))
    await asyncio.sleep(0.1)
    await seen.read(driver.submit([2] * 64 + [3] * 16, 1, 1))


Q = QueuedRequestMetrics()


FIRST, BOTH = ScheduledRequestMetrics(1, 10, 0.0, 0), ScheduledRequestMetrics(2, 120, 100.0, 0)  # lengths 60 +- 10
LAST = ScheduledRequestMetrics(1, 16, 0.0, 64)


def decodes(count: int, total: int, variance: float) -> ScheduledRequestMetrics:
    return ScheduledRequestMetrics(0, 0, 0.0, 0, count, total, variance)


def test_what_each_step_of_vllm_computes_by_hand() -> None:
    found, _ = heard(ONE, pair)
    told = [each.scheduled_requests for each in found]
    assert told == [FIRST, BOTH, decodes(2, 120, 100.0), decodes(2, 122, 100.0), LAST]
    assert [each.queued_requests for each in found] == [QueuedRequestMetrics(2, 120, 100.0), Q, Q, Q, Q]
    assert all(each.dp_rank == 0 and each.wall_time > 0 for each in found)


def test_what_each_step_of_sglang_computes_by_hand() -> None:
    """Contexts include the token of the step; requests take part in one step more than they need."""
    found, _ = heard(SGLANG, pair)
    told = [each.scheduled_requests for each in found]
    both = [decodes(2, total, 100.0) for total in (122, 124, 126)]
    assert told == [FIRST, decodes(1, 11, 0.0), BOTH, *both, LAST]
    assert found[0].queued_requests == QueuedRequestMetrics(2, 120, 100.0)


def test_times_of_sglang_are_those_on_the_gpu_and_those_of_vllm_from_end_to_end() -> None:
    found, steps = heard(SGLANG, pair)
    assert [each.wall_time for each in found] == [gpu / 1e9 for _, _, gpu in steps.seen]
    found, steps = heard(ONE, pair)
    (plan, *_), *_, (last, end, _) = steps.seen
    ends = [end for _, end, _ in steps.seen]
    spans = [ends[0] - plan, *(after - before for before, after in pairwise(ends[:4])), end - last]
    assert [each.wall_time for each in found] == [span / 1e9 for span in spans]


@pytest.mark.parametrize(("settings"), [ONE, SGLANG], ids=["vllm", "sglang"])
def test_what_waits_is_told_with_each_step(settings: dict[str, Any]) -> None:
    key = "max_running_requests" if settings is SGLANG else "max_num_seqs"
    name = "sglang" if settings is SGLANG else "vllm"

    async def three(driver: Driver, seen: Seen) -> None:
        sent = [driver.submit([row] * length, 4, 4) for row, length in enumerate((30, 50, 70))]
        await asyncio.gather(*map(seen.read, sent))

    found, _ = heard({**settings, "scheduler": {"name": name, key: 1}}, three)
    waiting = [each.queued_requests for each in found]
    assert waiting[0] == QueuedRequestMetrics(2, 120, 100.0)
    assert QueuedRequestMetrics(1, 70, 0.0) in waiting
    assert waiting[-1] == Q


@pytest.mark.parametrize("settings", [ONE, SGLANG], ids=["vllm", "sglang"])
def test_what_was_preempted_waits_to_decode(settings: dict[str, Any]) -> None:
    """SGLang counts its tokens; vLLM's preempted requests have nothing computed."""

    async def many(driver: Driver, seen: Seen) -> None:
        await asyncio.gather(*(seen.read(driver.submit([row] * 300, 600, 600)) for row in range(8)))

    engine = {"max_model_len": 1024, "num_gpu_blocks": 250}
    bold = {"scheduler": {"name": "sglang", "schedule_conservativeness": 0.1}} if settings is SGLANG else {}
    found, _ = heard({**settings, **bold, "engine": engine}, many)
    later = [each.queued_requests for each in found if each.queued_requests.num_decode_requests]
    assert later
    assert all((queued.sum_decode_kv_tokens > 300) is (settings is SGLANG) for queued in later)


def test_an_idle_engine_says_each_second_that_it_is_there() -> None:
    async def clients(driver: Driver, seen: Seen) -> None:
        await asyncio.sleep(2.5)
        await pair(driver, seen)
        await asyncio.sleep(3.2)

    found, steps = heard(SGLANG, clients)
    empty = [not each.wall_time for each in found]
    assert empty == [True, True, *[False] * len(steps.seen), True, True]  # after 1, 2, 4 and 5 s
    assert found[0] == ForwardPassMetrics()


def test_drafts_do_not_count_as_context_nor_as_requests() -> None:
    """Three requests of contexts 10, 20 and 30 verify 2 drafts each: 13, 23 and 33 tokens after the step."""
    batch = Batch(9, decode_count=3, decode_context_sum=69, decode_context_sumsq=13**2 + 23**2 + 33**2, sampled=3)
    batch.sampled_context, batch.drafts = 69, 6
    step = Step(0, batch, [], Usage(0, 0, 0, 0), drafts={None: 2})  # type: ignore[dict-item]
    for sglang in (False, True):
        found = scheduled_of(step, sglang)
        assert (found.num_decode_requests, found.sum_decode_kv_tokens) == (3, 60)
        assert found.var_decode_kv_tokens == pytest.approx(200 / 3)


def test_a_last_chunk_of_one_token_is_a_prefill() -> None:
    batch = Batch(2, decode_count=2, decode_context_sum=41 + 11, decode_context_sumsq=41**2 + 11**2, sampled=2)
    batch.sampled_context, batch.prompts = 52, [(1, 40, 41, 41)]
    found = scheduled_of(Step(0, batch, [], Usage(0, 0, 0, 0)), False)
    assert (found.num_prefill_requests, found.sum_prefill_tokens, found.sum_prefill_kv_tokens) == (1, 1, 40)
    assert (found.num_decode_requests, found.sum_decode_kv_tokens, found.var_decode_kv_tokens) == (1, 10, 0)


def test_the_variance_of_nothing_is_nothing() -> None:
    assert moments([]).variance == moments([5]).variance == 0
    assert moments([1, 2, 6]).variance == pytest.approx(14 / 3)


def test_metrics_leave_the_run_as_it_is() -> None:
    recording, endpoint = Recording(), next(_names)
    hearing = Subscriber(endpoint, f"{endpoint}_dp1")
    seen = run(BEHIND_ROUTER, crowd(40, 200, 0.1), [ForwardMetrics(Scenario.of(BEHIND_ROUTER), endpoint)], recording)
    found = [msgspec.msgpack.decode(sent, type=ForwardPassMetrics) for _, _, sent in hearing.frames()]
    hearing.close()
    assert {each.dp_rank for each in found} == {0, 1}
    same(seen, servesim.simulate(BEHIND_ROUTER, trace=recording.trace(), intervals=False))


def test_an_engine_without_such_metrics_is_refused() -> None:
    with pytest.raises(UserError, match="--forward-metrics: the format of orca is unknown"):
        ForwardMetrics(Scenario.of({**ONE, "preset": "orca"}), "tcp://127.0.0.1:0")
