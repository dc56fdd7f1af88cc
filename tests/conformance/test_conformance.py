"""Recorded and restated facts about real engines, replayed through our own classes field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from servesim.contracts import (
    MISS,
    KVAllocator,
    KVMemory,
    Limits,
    Request,
    State,
    build_params,
    kv_allocators,
    schedulers,
)
from servesim.engine.core import EngineCore
from tests.conformance import (
    runners_memory,
    runners_replay,
    runners_routers,
    runners_schedulers,
    runners_speculation,
    runners_tree,
)
from tests.conformance.cases import Case, Tokens, expand, make_requests, perform, value_of


def make_kv(config: dict[str, Any]) -> KVAllocator:
    keys = ("hash_lookahead_tokens", "eagle_block_drop")
    name = "prefix-hash" if config["enable_prefix_caching"] else "paged"
    cls, _ = kv_allocators.resolve(name)
    params = build_params(name, cls.Params, {k: config[k] for k in keys if k in config})
    return cls(params, KVMemory(config["num_blocks"], config["block_size"], config.get("max_model_len", 2048)))


def names(requests: Iterable[Request]) -> list[str]:
    return [r.name for r in requests]


class SchedulerRun:
    """Drives EngineCore with the script of a scheduler case."""

    ENGINE_KEYS = frozenset(
        ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "async_scheduling", "block_size", "num_blocks",
         "enable_prefix_caching", "hash_lookahead_tokens", "eagle_block_drop")
    )  # fmt: skip

    def __init__(self, case: Case) -> None:
        config = case["config"]
        self.specs = {s["id"]: s for s in case["requests"]}
        self.requests = make_requests(case["requests"])
        self.kv = make_kv(config)
        cls, _ = schedulers.resolve("vllm")
        params = build_params("vllm", cls.Params, {k: v for k, v in config.items() if k not in self.ENGINE_KEYS})
        limits = Limits(
            config["max_num_seqs"],
            config["max_num_batched_tokens"],
            config["max_model_len"],
            config.get("async_scheduling", False),
        )
        self.core = EngineCore(cls(params, limits, self.kv), self.kv, check=True)
        self.steps: list[Any] = []
        self.finished: list[str] = []
        self.core.on_leave = lambda request: self.finished.append(request.name)
        self.draft_ids: dict[Request, list[int]] = {}

    def run(self, case: Case) -> None:
        for number, op in enumerate(case["script"]):
            seen = perform(self, number, op)
            for key, expected in op.get("expect", {}).items():
                got = self.look(key, number, op, seen, expected)
                if key == "preempted":  # a set in vLLM's SchedulerOutput; their order shows in "waiting"
                    got, expected = sorted(got), sorted(expected)
                assert got == expected, f"op {number} ({op['op']}): {key} is {got}, expected {expected}"
            if "scheduled" in op.get("expect", {}):
                assert list(seen["scheduled"]) == list(op["expect"]["scheduled"]), f"op {number}: batch order"

    def op_add(self, op: dict[str, Any]) -> dict[str, Any]:
        for name in op["requests"]:
            request = self.requests[name]
            request._end_tokens = request.prompt_len + request.max_tokens
            self.core.scheduler.on_arrival(request)
        return {}

    def op_schedule(self, op: dict[str, Any]) -> dict[str, Any]:
        held = {r: len(t) for r, t in self.kv.tables.items()}  # type: ignore[attr-defined]
        step = self.core.plan(len(self.steps))
        plan = self.core.last_plan
        assert plan is not None
        self.steps.append(step)
        spec = {r.name: (self.draft_ids.get(r) or [-1] * n)[:n] for r, n in plan.drafts.items()}
        tables = self.kv.tables  # type: ignore[attr-defined]
        new = {r.name: t[held.get(r, 0) :] for r, t in tables.items() if len(t) > held.get(r, 0)}
        self.draft_ids = {}
        return {
            "scheduled": {r.name: n for r, n in plan.tokens.items()},
            "spec": spec,
            "new": names(plan.admitted),
            "resumed": names(plan.resumed),
            "preempted": names(plan.preempted),
            "hit_tokens": {r.name: r.num_computed_tokens - plan.tokens[r] for r in plan.admitted + plan.resumed},
            "new_block_ids": new,
        }

    def op_output(self, op: dict[str, Any]) -> dict[str, Any]:
        step = self.steps[op["step"]]
        if step is None:
            return {}
        assert step is self.core.in_flight[0], "outputs come in the order of their steps"
        counts = {}
        for request in step.sampled:
            ids = op["tokens"].get(request.name, [])
            counts[request] = len(ids)
            if request.state >= State.FINISHED:
                continue
            content = request.content
            assert isinstance(content, Tokens)
            for token in ids:
                if len(content.ids) >= request._end_tokens:
                    break
                content.ids.append(token)
                if token in self.specs[request.name].get("stop", []):
                    request._end_tokens = len(content.ids)
        self.core.commit(op["step"], counts)
        return {}

    def op_drafts(self, op: dict[str, Any]) -> dict[str, Any]:
        for name, ids in op["tokens"].items():
            request = self.requests[name]
            chunk = request.num_computed_tokens < request.num_tokens - 1  # drafts of unfinished prefills are dropped
            if request.state is State.RUNNING and not chunk:
                request.num_draft_tokens = len(ids)
                self.draft_ids[request] = ids
        return {}

    def op_finish(self, op: dict[str, Any]) -> dict[str, Any]:
        for name in op["ids"]:
            self.core.abort(self.requests[name], 0)
        return {}

    def op_probe(self, op: dict[str, Any]) -> dict[str, Any]:
        ids = expand(op["tokens"])
        probe = Request(1_000_000, "probe", len(ids), 1, 0, content=Tokens(ids))
        return {"hit_tokens": self.kv.lookup(probe).num_tokens}

    def op_check(self, op: dict[str, Any]) -> dict[str, Any]:
        return {}

    def look(self, key: str, number: int, op: dict[str, Any], seen: dict[str, Any], expected: Any) -> Any:
        if key in ("hit_tokens", "new_block_ids") and op["op"] == "schedule":
            return {n: seen[key].get(n) for n in expected}
        if key in seen:
            return seen[key]
        scheduler, requests = self.core.scheduler, self.requests
        views: dict[str, Callable[[], Any]] = {
            "running": lambda: names(scheduler.running),
            "waiting": lambda: names(scheduler.waiters()),
            "free_blocks": lambda: self.kv.num_free_blocks(),  # type: ignore[attr-defined]
            "block_ids": lambda: {r.name: t for r, t in self.kv.tables.items() if r.name in expected},  # type: ignore[attr-defined]
            "block_ids_prefix": lambda: {n: self.kv.tables[requests[n]][: len(ids)] for n, ids in expected.items()},  # type: ignore[attr-defined]
            "num_tokens": lambda: {n: requests[n].num_tokens for n in expected},
            "computed": lambda: {n: requests[n].num_computed_tokens for n in expected},
            "finished": lambda: [n for n in self.requests if n in self.finished],
            "spec_stats": lambda: self.spec_stats(),
            "output_tokens": lambda: {n: requests[n].content.ids[requests[n].prompt_len :] for n in expected},  # type: ignore[union-attr]
        }
        found: Callable[[], Any] = value_of(views, key, number, op)
        return found()

    def spec_stats(self) -> dict[str, Any]:
        stats = dataclasses.asdict(self.core.spec_stats)
        del stats["proposed"]  # ours
        stats["per_pos"] += [0] * (self.core.scheduler.params.num_speculative_tokens - len(stats["per_pos"]))
        return stats


class KVRun:
    """Drives an allocator alone with the script of a kv_manager case."""

    def __init__(self, case: Case) -> None:
        self.kv: Any = make_kv(case["config"])
        self.requests = make_requests(case["requests"])
        self.hits: dict[str, Any] = {}

    def run(self, case: Case) -> None:
        for number, op in enumerate(case["script"]):
            seen = perform(self, number, op)
            for key, expected in op.get("expect", {}).items():
                got = value_of(seen, key, number, op)
                if isinstance(expected, dict):
                    got = {k: got(int(k)) for k in expected}
                assert got == expected, f"op {number} ({op['op']}): {key} is {got}, expected {expected}"
            self.kv.held_tokens = sum(r.num_computed_tokens for r in self.kv.tables)
            self.kv.check_integrity()

    def op_lookup(self, op: dict[str, Any]) -> dict[str, Any]:
        hit = self.hits[op["req"]] = self.kv.lookup(self.requests[op["req"]])
        return {"hit_block_ids": self.kv.hit_blocks(hit) if hit.blocks else [], "hit_tokens": hit.num_tokens}

    def op_alloc(self, op: dict[str, Any]) -> dict[str, Any]:
        request, n, ahead = self.requests[op["req"]], op["new_tokens"], op.get("lookahead", 0)
        held = len(self.kv.tables.get(request, ()))
        if held:
            done = self.kv.grow(request, n, ahead)
        else:
            hit = self.hits[op["req"]] if op.get("use_hit") else MISS
            done = self.kv.can_admit(request, hit, n + ahead, 0, 0)
            if done:
                self.kv.admit(request, hit, n, ahead)
                request.num_computed_tokens = hit.num_tokens
                held = hit.num_tokens // self.kv.block_size
        new = self.kv.tables[request][held:] if done else None
        return {"new_block_ids": new, "num_new_blocks": len(new) if new is not None else None}

    def op_advance(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.requests[op["req"]]
        request.num_computed_tokens = op["computed"]
        assert isinstance(request.content, Tokens)
        request.content.ids.extend(op["append"])
        request.num_tokens += len(op["append"])
        return {}

    def op_free(self, op: dict[str, Any]) -> dict[str, Any]:
        for name in op["reqs"]:
            self.kv.free(self.requests[name])
        return {}

    def op_reset(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"ok": self.kv.reset_prefix_cache()}

    def op_check(self, op: dict[str, Any]) -> dict[str, Any]:
        return {
            "ref": getattr(self.kv, "refs", None),
            "hashed": getattr(self.kv, "is_cached", None),
            "free_blocks": self.kv.num_free_blocks(),
            "free_order": self.kv.free_order(),
            "num_cached_hashes": getattr(self.kv, "num_cached_hashes", lambda: 0)(),
        }


RUNNERS: dict[str, Any] = {"scheduler": SchedulerRun, "kv_manager": KVRun}
RUNNERS |= runners_memory.RUNNERS | runners_schedulers.RUNNERS | runners_speculation.RUNNERS | runners_tree.RUNNERS
RUNNERS |= runners_replay.RUNNERS | runners_routers.RUNNERS


def test_the_case_holds(case: Case, record_property: Callable[[str, Any], None]) -> None:
    run = RUNNERS[case["component"]](case)
    try:
        run.run(case)
    finally:
        if hasattr(run, "tally"):
            record_property("decisions and faults", run.tally)
