"""Replays recorded from Dynamo's simulator (ai-dynamo-runtime 1.6.1): every request's worker and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from servesim.contracts.kv_events import KVEvent
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView
from servesim.policies.routing.dynamo_kv import DynamoKV, DynamoKVParams
from servesim.workload.trace import Content, Trace
from servesim_lab.dynamo.cost import Fixed
from servesim_lab.dynamo.pd import ReplayedApart, replay_apart
from servesim_lab.dynamo.replay import MockEngine, Replayed, replay
from servesim_lab.dynamo.scaling import ScaledRoundRobin, most_workers
from tests.conformance.cases import Case

TIMES = ("first_admit_ms", "first_token_ms", "last_token_ms")
TIMES_APART = (
    "prefill_admit",
    "source_held",
    "destination_reserved",
    "destination_activated",
    "source_released",
    "first_token",
    "last_token",
)
WITHIN_MS = 1e-3


class RecordedKV(DynamoKV):
    """The choices that were recorded, each of which must be among those of least cost. That simulator's router hears of
    blocks when the step ends that computes them; here it is told when the step is planned, and notes it then."""

    def __init__(self, choices: Sequence[int], workers: int) -> None:
        super().__init__(DynamoKVParams(), workers)
        self.choices, self.among = choices, range(workers)
        self.outside: list[str] = []
        self.coming: list[list[KVEvent]] = [[] for _ in range(workers)]

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:
        self.coming[replica] += events

    def on_prefill_done(self, request: Request, replica: int) -> None:
        super().on_prefill_done(request, replica)
        super().on_kv_events(replica, self.coming[replica])
        self.coming[replica] = []

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        costs = self.costs(request, self.counters(request), self.among)
        choice = self.choices[request.row]
        if costs[[*self.among].index(choice)] > costs.min():
            self.outside.append(f"request {request.row}: costs {costs}, recorded {choice}")
        return choice


class ClusterReplay:
    """A replay by aggregated workers, in both modes. Under round robin (scaled or not) servesim chooses the workers;
    under the KV router, which breaks ties at random, they are those recorded, if each is among those of least cost."""

    def __init__(self, case: Case) -> None:
        self.case = case
        arguments = case["options"]["extra_engine_args"]
        assert arguments.keys() <= {"engine", "startup_time"}, f"this runner does not know all of {list(arguments)}"
        self.engine = MockEngine.of(arguments["engine"])
        self.startup_ns = round(arguments.get("startup_time", 0) * 1e9)
        self.start_ms = case["trace"][0]["timestamp"]
        self.trace = trace_of(case["trace"], case["block_size"])

    def run(self, case: Case) -> None:
        reference = self.replay("reference")
        while late := self.after_their_step(reference):
            self.trace.arrival_ns[late] += 1
            reference = self.replay("reference")
        self.check(reference, "reference")
        self.check(self.replay("fast"), "fast")

    def replay(self, mode: str) -> Replayed:
        self.chooser = self.router()
        return replay(self.trace, self.engine, self.chooser.num_replicas, router=self.chooser, mode=mode)

    def check(self, replayed: Replayed, mode: str) -> None:
        wrong, count = self.differences(replayed), len(self.case["per_request"])
        assert not wrong, f"{mode}: {count - len(wrong)} of {count} requests equal; first of the others: {wrong[0]}"
        if isinstance(self.chooser, ScaledRoundRobin):
            self.check_lifecycle(self.chooser, replayed)
        else:
            assert not self.chooser.outside, f"{len(self.chooser.outside)} outside: {self.chooser.outside[0]}"

    def router(self) -> ScaledRoundRobin | RecordedKV:
        workers = self.case["topology"]["num_workers"]
        if self.case["options"]["router_mode"] != "round_robin":
            return RecordedKV([each["decode_worker_idx"] for each in self.case["per_request"]], workers)
        targets = [(round(each["at_ms"] * 1e6), each["target_decode"]) for each in self.case.get("scaling_targets", ())]
        return ScaledRoundRobin(targets, workers, self.startup_ns)

    def differences(self, replayed: Replayed) -> list[str]:
        """Return the requests that came out otherwise, the first in time first."""
        found = []
        for row, each in enumerate(self.case["per_request"]):
            got = {name: getattr(replayed, name[:-2] + "ns")[row] / 1e6 for name in TIMES}
            late = [name for name in TIMES if abs(got[name] - each[name]) > WITHIN_MS]
            got |= {
                "decode_worker_idx": replayed.worker[row],
                "readmission_count": replayed.readmissions[row],
                "reused_input_tokens": replayed.first_reused_tokens[row],
            }
            wrong = late + [name for name in ("decode_worker_idx", "readmission_count") if got[name] != each[name]]
            if not each["readmission_count"] and got["reused_input_tokens"] != each["reused_input_tokens"]:
                wrong.append("reused_input_tokens")  # else the most of all admissions is recorded
            if wrong:
                first = min(min(got[name], each[name]) for name in late or TIMES[:1])
                told = ", ".join(f"{name} {got[name]}, recorded {each[name]}" for name in wrong)
                found.append((first, f"request {row}: {told}"))
        return [told for _, told in sorted(found)]

    def check_lifecycle(self, router: ScaledRoundRobin, replayed: Replayed) -> None:
        """Compare when each worker started, was ready, drained and went."""
        recorded = [
            (record["at_ms"], change["worker_id"], change["state"])
            for record in self.case.get("lifecycle", ())
            for change in record["transitions"]
        ]
        router.advance(int(replayed.last_token_ns.max()))
        found = [(change.ns / 1e6, change.worker, change.state) for change in router.workers.changes]
        for ms, worker, state in list(found):
            if state == "draining":
                served = replayed.last_token_ns[replayed.worker == worker].max(initial=0) / 1e6
                found.append((max(ms, served), worker, "removed"))
        assert len(found) == len(recorded), f"{found} instead of {recorded}"
        for got, expected in zip(sorted(found), sorted(recorded), strict=True):
            assert got[1:] == expected[1:], f"{got} instead of {expected}"
            assert abs(got[0] - expected[0]) <= WITHIN_MS, f"{got} instead of {expected}"

    def after_their_step(self, replayed: Replayed) -> list[int]:
        """Return the rows that arrive at the very end of a step in whole ns, but after it on the recorded clock, which
        is floating-point ms, summed up step by step. 1 ns later they no longer join the next step."""
        timing, rows = self.engine.timing_model, self.case["trace"]
        if not isinstance(timing, Fixed):
            return []  # such ties do not come up
        parts = {round(ms * 1e6): (ms,) for ms in (timing.prefill, timing.decode)}
        sent_ms = [row["timestamp"] - rows[0]["timestamp"] for row in rows]
        sent_ns = (self.trace.arrival_ns - self.trace.arrival_ns[0]).tolist()
        found: list[int] = []
        for worker in range(self.chooser.num_replicas):
            arrived = {sent_ns[row]: row for row in np.flatnonzero(replayed.worker == worker).tolist()}
            last_ns, now_ms = -1, 0.0
            for start, end in replayed.steps(worker):
                if start != last_ns:  # it was idle until one arrived, or until KV had come
                    now_ms = sent_ms[arrived[start]] if start in arrived else start / 1e6
                for ms in parts.get(end - start, (timing.prefill, timing.decode)):
                    now_ms += ms
                last_ns = end
                if end in arrived and now_ms < sent_ms[arrived[end]]:
                    found.append(arrived[end])
        return found


def trace_of(rows: Sequence[Case], block_size: int) -> Trace:
    """Return recorded rows as a trace."""
    runs = [(h, min(block_size, r["input_length"] - i * block_size)) for r in rows for i, h in enumerate(r["hash_ids"])]
    ids, lengths = (np.array([run[i] for run in runs], dtype=np.int64) for i in (0, 1))
    offsets = np.cumsum([0] + [len(row["hash_ids"]) for row in rows])
    return Trace.from_lengths(
        "recorded",
        arrival_ns=np.array([round(row["timestamp"] * 1e6) for row in rows], dtype=np.int64),
        prompt_len=np.array([row["input_length"] for row in rows], dtype=np.int64),
        output_len=np.array([row["output_length"] for row in rows], dtype=np.int64),
        content=Content(offsets, ids, lengths),
    )


class RecordedOfRole(RecordedKV):
    """Recorded choices among the workers of one role."""

    def __init__(self, choices: Sequence[int], among: range, workers: int) -> None:
        super().__init__(choices, workers)
        self.among = among


class ClusterReplayApart:
    """A replay by prefill workers and decode workers, in both modes; routers as above, one for each kind."""

    def __init__(self, case: Case) -> None:
        self.case = case
        options, topology = case["options"], case["topology"]
        self.engines, self.startup_ns = [], []
        for kind in ("prefill", "decode"):
            arguments = options[f"{kind}_engine_args"]
            assert arguments.keys() <= {"engine", "startup_time"}, f"this runner does not know all of {list(arguments)}"
            self.engines.append(MockEngine.of(arguments["engine"]))
            self.startup_ns.append(round(arguments.get("startup_time", 0) * 1e9))
        self.trace = trace_of(case["trace"], case["block_size"])
        self.workers = [topology["num_prefill_workers"], topology["num_decode_workers"]]

    def run(self, case: Case) -> None:
        for mode in ("reference", "fast"):
            routers = self.routers()
            replayed = replay_apart(self.trace, *self.engines, *routers, *self.most, mode=mode)
            wrong, count = self.differences(replayed), len(case["per_request"])
            assert not wrong, f"{mode}: {count - len(wrong)} of {count} requests equal; first of the others: {wrong[0]}"
            for router in routers:
                assert not getattr(router, "outside", []), f"{len(router.outside)} outside: {router.outside[0]}"

    def routers(self) -> list[Any]:
        prefill, decode = self.workers
        if self.case["options"]["router_mode"] != "round_robin":
            chosen = [
                [each[f"{kind}_worker_idx"] for each in self.case["per_request"]] for kind in ("prefill", "decode")
            ]
            self.most, workers = self.workers, prefill + decode
            return [
                RecordedOfRole(chosen[0], range(prefill), workers),
                RecordedOfRole([prefill + worker for worker in chosen[1]], range(prefill, workers), workers),
            ]
        targets: list[list[tuple[int, int]]] = [[], []]
        for each in self.case.get("scaling_targets", ()):
            for pool, kind in zip(targets, ("prefill", "decode"), strict=True):
                if each[f"target_{kind}"] is not None:
                    pool.append((round(each["at_ms"] * 1e6), each[f"target_{kind}"]))
        self.most = [most_workers(*args) for args in zip(targets, self.workers, self.startup_ns, strict=True)]
        firsts = (0, self.most[0])
        return [ScaledRoundRobin(*args) for args in zip(targets, self.workers, self.startup_ns, firsts, strict=True)]

    def differences(self, replayed: ReplayedApart) -> list[str]:
        """Return the requests that came out otherwise, the first in time first."""
        found = []
        for row, each in enumerate(self.case["per_request"]):
            got = {f"{name}_ms": getattr(replayed, f"{name}_ns")[row] / 1e6 for name in TIMES_APART}
            late = [name for name in got if abs(got[name] - each[name]) > WITHIN_MS]
            got |= {
                "prefill_worker_idx": replayed.prefill_worker[row],
                "decode_worker_idx": replayed.decode_worker[row],
                "readmission_count": replayed.readmissions[row],
                "reused_input_tokens": replayed.first_reused_tokens[row],
            }
            wrong = late + [name for name in list(got)[len(TIMES_APART) :] if got[name] != each[name]]
            if wrong:
                first = min(min(got[name], each[name]) for name in late or ("prefill_admit_ms",))
                told = ", ".join(f"{name} {got[name]}, recorded {each[name]}" for name in wrong)
                found.append((first, f"request {row}: {told}"))
        return [told for _, told in sorted(found)]


def cluster_replay(case: Case) -> ClusterReplay | ClusterReplayApart:
    """Return the runner of a replay."""
    return ClusterReplayApart(case) if "prefill_engine_args" in case["options"] else ClusterReplay(case)


RUNNERS = {"cluster_replay": cluster_replay}
