"""Publisher of forward-pass metrics: what each step of each replica computes, and what waits.

Record and frames, version 1: SGLang 0.5.23, srt/observability/forward_pass_metrics.py, which are also those that Dynamo
1.6 publishes for vLLM (dynamo/vllm/instrumented_scheduler.py). Where the two fill in a field differently, the engine
decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from servesim.contracts.part import ClusterView
from servesim.contracts.request import State
from servesim.contracts.router import ReplicaState
from servesim.live.events.channel import Channel, channel_of, check_endpoint
from servesim.live.events.engines import engine_of
from servesim.live.watcher import Gap, Watcher
from servesim.records.step import Step
from servesim.run.pools import pool_scenarios
from servesim.run.scenario import Scenario

OPTION = "--forward-metrics"
VERSION = 1
HEARTBEAT_S = 1.0
"""Time in s without a message after which an idle replica sends an empty one."""
NS = 1e9


class Scheduled(msgspec.Struct, frozen=True, gc=False):
    """Requests of a step."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class Queued(msgspec.Struct, frozen=True, gc=False):
    """Requests that wait."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class ForwardPass(msgspec.Struct, frozen=True, gc=False):
    """A step. `wall_time`: its duration in s of simulated time."""

    version: int
    worker_id: str
    dp_rank: int
    counter_id: int
    wall_time: float
    scheduled_requests: Scheduled
    queued_requests: Queued


class _Moments(NamedTuple):
    num: int
    total: int
    square: int

    @property
    def variance(self) -> float:
        """Variance of the whole population."""
        return max(self.num * self.square - self.total**2, 0) / self.num**2 if self.num else 0.0


class _Sender:
    """Publisher of one replica."""

    def __init__(self, channel: Channel, sglang: bool) -> None:
        self.channel, self.sglang = channel, sglang
        self.last_ns = 0
        """End of the last step."""
        self.sent_s = 0.0
        """Time of the loop of the last message."""


class ForwardMetrics(Watcher):
    """Watcher that publishes each step of each replica, replica i on port + i."""

    def __init__(self, scenario: Scenario, endpoint: str) -> None:
        """Raise UserError for an invalid endpoint, and for an engine that has no such metrics."""
        check_endpoint(OPTION, endpoint)
        self._endpoint = endpoint
        for pool in pool_scenarios(scenario):
            engine_of(pool.scenario, OPTION)
        self._senders: dict[int, _Sender] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._runs = False
        self._encode = msgspec.msgpack.Encoder().encode

    @property
    def endpoints(self) -> list[str]:
        """Endpoints by replica."""
        return [sender.channel.endpoint for sender in self._senders.values()]

    def announced(self) -> str:
        return f"publishing forward-pass metrics at {', '.join(self.endpoints)}"

    def join(self, cluster: ClusterView) -> None:
        self._replicas, self._pool_of = cluster.replicas, cluster.fleet.pool_of

    def core_made(self, replica: Any) -> None:
        """Begin at number 0, with the sockets that a replica had before a crash."""
        index, sender = replica.index, self._senders.get(replica.index)
        if sender is None:
            channel = channel_of(OPTION, self._endpoint, index, running=self._runs)
            if channel is None:
                return
            sglang = engine_of(self.driver.scenario_of(self._pool_of[index]), OPTION) == "sglang"
            sender = self._senders[index] = _Sender(channel, sglang)
        sender.channel.restart()
        sender.last_ns = 0

    def start(self) -> None:
        self._loop, self._runs = asyncio.get_running_loop(), True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    def stepped(self, step: Step, replica: int, gaps: Sequence[Gap]) -> None:
        sender = self._senders.get(replica)
        if sender is None or not step.batch.linear_tokens:
            return
        since = max(sender.last_ns, step.planned_ns)  # Dynamo: from one step's end to the next, or from the plan
        wall_ns = step.gpu_ns if sender.sglang else step.end_ns - since
        sender.last_ns = step.end_ns
        queued = queued_of(self._replicas[replica], sender.sglang)
        self._send(replica, sender, wall_ns / NS, scheduled_of(step, sender.sglang), queued)

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Close the socket of a replica that is gone for good, as its process would."""
        if state == "gone" and (sender := self._senders.pop(index, None)) is not None:
            sender.channel.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for sender in self._senders.values():
            sender.channel.close()
        self._senders.clear()

    def _send(self, index: int, sender: _Sender, wall_s: float, scheduled: Scheduled, queued: Queued) -> None:
        sender.sent_s = self._loop.time()
        number = sender.channel.number
        sender.channel.send(self._encode(ForwardPass(VERSION, "", index, number, wall_s, scheduled, queued)))

    def _beat(self) -> None:
        """Let replicas that are idle say that they are there."""
        for index, sender in self._senders.items():
            replica, silent_s = self._replicas[index], self._loop.time() - sender.sent_s
            if replica.up and silent_s >= HEARTBEAT_S and not replica.core.num_unfinished:
                self._send(index, sender, 0.0, Scheduled(), Queued())
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)


def scheduled_of(step: Step, sglang: bool) -> Scheduled:
    """Return what a step computed. The context of a decoding request includes the step's token in SGLang, unless it
    verifies drafts; in vLLM it does not. The variance of contexts includes the drafts that are verified."""
    batch = step.batch
    prefill = moments(length for _, _, length, _ in batch.prompts)
    count, total = batch.sampled, batch.sampled_context
    decoding, square, context = batch.decode_count, batch.decode_context_sumsq, batch.decode_context_sum
    for new, past, _, known in batch.prompts:
        if (after := past + new) >= known:  # it samples too, but is no decode
            count, total = count - 1, total - after
            if new == 1:
                decoding, square, context = decoding - 1, square - after * after, context - after
    if not sglang or step.drafts:
        total -= count + batch.drafts
    return Scheduled(
        prefill.num,
        sum(new for new, _, _, _ in batch.prompts),
        prefill.variance,
        sum(past for _, past, _, _ in batch.prompts),
        count,
        total,
        _Moments(decoding, context, square).variance,
    )


def queued_of(replica: Any, sglang: bool) -> Queued:
    """Return what waits at a replica: requests to be prefilled, and requests that were preempted or, in SGLang's decode
    role, were prefilled elsewhere."""
    core, prefill, decode = replica.core, [], []
    decoding = sglang and replica.role == "decode"
    for request in core.scheduler.waiters():
        if decoding or (request.num_output_tokens if sglang else request.state is State.PREEMPTED):
            decode.append(request.num_tokens if sglang else request.num_computed_tokens)
        else:
            prefill.append(request.prompt_len if sglang else request.num_tokens)
    if decoding:
        decode += [request.num_tokens for request in core.fetched if request.state is State.LOADING]
    first, later = moments(prefill), moments(decode)
    return Queued(first.num, first.total, first.variance, later.num, later.total, later.variance)


def moments(values: Iterable[int]) -> _Moments:
    """Return count, sum and sum of squares."""
    count = total = square = 0
    for value in values:
        count, total, square = count + 1, total + value, square + value * value
    return _Moments(count, total, square)
