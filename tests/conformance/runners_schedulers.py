"""Cases of single decisions of schedulers, put to the classes that the simulator runs."""

from __future__ import annotations

import re
import zlib
from typing import Any

from servesim.contracts import (
    MISS,
    KVAllocator,
    KVMemory,
    Limits,
    Plan,
    PlanContext,
    Request,
    Scheduler,
    State,
    build_params,
    kv_allocators,
    schedulers,
)
from servesim.contracts.ledger import Ledger
from servesim.engine.core import EngineCore
from servesim.policies.scheduling._prefill_adder import CLIP_MAX_NEW_TOKENS, Added, PrefillAdder, max_new
from servesim.policies.scheduling._sglang_order import IN_BATCH_CHECK, IN_BATCH_DEPRIORITIZE, MATCH_LIMIT
from servesim.workload.content import RunContent

Case = dict[str, Any]
AMPLE = 1 << 20


def make(name: str, params: dict[str, Any], seqs: int, memory: KVMemory, *, tokens: int = AMPLE) -> Any:
    """A scheduler on paged memory."""
    kv_class, _ = kv_allocators.resolve("paged")
    kv = kv_class(build_params("paged", kv_class.Params, {}), memory)
    cls, _ = schedulers.resolve(name)
    return cls(build_params(name, cls.Params, params), Limits(seqs, tokens, memory.max_model_len), kv)


def request(row: int, spec: dict[str, Any], prompt: int, max_tokens: int) -> Request:
    return Request(row, spec.get("id", str(row)), prompt, max_tokens, row)


def check(got: dict[str, Any], expected: dict[str, Any], case: Case) -> None:
    unknown = expected.keys() - got.keys()
    assert not unknown, f"{case['id']}: this runner does not look at {sorted(unknown)}"
    for key, value in expected.items():
        assert got[key] == value, f"{case['id']}: {key} is {got[key]}, expected {value}"


def hold(scheduler: Scheduler, decoding: Request) -> None:
    """Make a request one that has run its prompt and decodes."""
    kv: KVAllocator = scheduler.kv
    kv.admit(decoding, MISS, decoding.prompt_len, 0)
    decoding.state = State.RUNNING
    decoding.num_computed_tokens = decoding.prompt_len
    decoding.num_tokens += 1
    kv.held_tokens += decoding.prompt_len
    scheduler.running.append(decoding)


class OrcaIteration:
    """One iteration of Orca's Algorithm 1 over a pool of new requests."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def plan(self, count: int) -> Any:
        """The scheduler after an iteration over the first `count` requests."""
        config = self.case["config"]
        params = {"max_bs": config["max_bs"], "n_slots": config["n_slots"]}
        memory = KVMemory(AMPLE, 1, AMPLE)
        scheduler = make("selective", params, config["max_bs"], memory)
        for row, spec in enumerate(self.case["requests"][:count]):
            scheduler.on_arrival(request(row, spec, spec["prompt"], spec["max_new"]))
        scheduler.plan(PlanContext("selective", 0, Plan(0), scheduler.kv, Ledger(scheduler.kv)))
        return scheduler

    def run(self, case: Case) -> None:
        specs = self.case["requests"]
        scheduler = self.plan(len(specs))
        admitted = [r.name for r in scheduler.running]
        reserved = {spec["id"]: self.plan(i + 1).n_rsrv for i, spec in enumerate(specs) if spec["id"] in admitted}
        blocked = scheduler.waiting[0].name if scheduler.waiting else None
        check({"admitted": admitted, "reserved_after": reserved, "blocked": blocked}, self.case["expect"], self.case)


class StaticBatch:
    """One batch from its composition to its end, while another request waits."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def run(self, case: Case) -> None:
        limit = self.case["config"]["max_batch"]
        scheduler = make("static", {"max_batch_size": limit}, limit, KVMemory(AMPLE, 1, AMPLE))
        core = EngineCore(scheduler, scheduler.kv, check=True)
        left: list[tuple[int, str]] = []
        now = 0
        core.on_leave = lambda r: left.append((now, r.name))
        for row, spec in enumerate(self.case["requests"]):
            core.add(request(row, spec, spec["prompt"], spec["output"]), spec["output"], 0)
        core.plan(0)
        batch, padded, wasted = {r.name for r in scheduler.running}, scheduler.row_len, 0
        late = Request(len(self.case["requests"]), "late", 1, 1, 0)
        core.add(late, 1, 0)
        while not batch <= {name for _, name in left}:
            now += 1
            assert core.last_plan is not None
            wasted += core.last_plan.padded_rows
            core.commit(now)
            core.plan(now)
        got = {
            "padded_prompt_len": padded,
            "batch_decode_iterations": now,
            "all_return_together": {t for t, _ in left} == {now},
            "wasted_decode_slots": wasted,
            "next_batch_starts_after_iteration": now if scheduler.running else None,
        }
        check(got, self.case["expect"], self.case)


class V0PrefillPriority:
    """What one step of vLLM V0 does in a given state of queues and memory."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def run(self, case: Case) -> None:
        config, state = self.case["config"], self.case["state"]
        size, total, free = config["block_size"], config["num_gpu_blocks"], state["free_blocks"]
        memory = KVMemory(total + 1, size, AMPLE, host_blocks=AMPLE)  # ours counts a null block
        params = {k: config[k] for k in ("watermark", "preemption_mode") if k in config}
        tokens = config["max_num_batched_tokens"]
        scheduler = make("continuous", params, config["max_num_seqs"], memory, tokens=tokens)
        self._swap_out(scheduler, state.get("swapped", []))
        self._occupy(scheduler, state["running_decodes"], total - free)
        waiting = [request(1000 + i, s, s["prompt"], s.get("max_tokens", 16)) for i, s in enumerate(state["waiting"])]
        for one in waiting:
            scheduler.on_arrival(one)
        plan = scheduler.plan(PlanContext("continuous", 0, Plan(0), scheduler.kv, Ledger(scheduler.kv)))
        prefills = [r.name for r in plan.tokens if r in waiting]
        decodes = len(plan.tokens) - len(prefills)
        kind = "prefill_only" if prefills and not decodes else "mixed" if prefills else "decode" if decodes else "none"
        expected = dict(self.case["expect"])
        if str(expected.get("step_kind", "")).startswith("decode"):
            expected["step_kind"] = "decode"
        got = {
            "step_kind": kind,
            "scheduled": prefills,
            "decodes_scheduled": decodes,
            "watermark_blocks": scheduler.reserve // size,
            "rejected": [r.name for r in plan.rejected],
            "preempted": len(plan.preempted),
            "swapped_in": len(plan.resumed),
        }
        check(got, expected, self.case)

    @staticmethod
    def _occupy(scheduler: Any, decodes: int, blocks: int) -> None:
        """Spread that many blocks over the running decodes (over one that does not run, if there are none)."""
        size = scheduler.kv.block_size
        for row in range(max(decodes, 1 if blocks else 0)):
            share = blocks // max(decodes, 1) + (row < blocks % max(decodes, 1))
            assert share, "fewer blocks in use than requests running"
            hold(scheduler, Request(row, f"running {row}", share * size - 1, 64, 0))
        del scheduler.running[decodes:]

    @staticmethod
    def _swap_out(scheduler: Any, swapped: Any) -> None:
        """`swapped`: how many, or a list of their lengths or of mappings with `tokens` or `prompt`."""
        lengths = [scheduler.kv.block_size] * swapped if isinstance(swapped, int) else swapped
        for i, spec in enumerate(lengths):
            length = spec if isinstance(spec, int) else spec.get("tokens", spec.get("prompt"))
            gone = Request(2000 + i, f"swapped {i}", length, 64, 0)
            hold(scheduler, gone)
            ctx = PlanContext("continuous", 0, Plan(0), scheduler.kv, Ledger(scheduler.kv))
            assert ctx.swap_out(scheduler.running.pop())
            scheduler.swapped.append(gone)


class RetractionOrder:
    """Who is kept when SGLang runs out of memory, and who goes first."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def run(self, case: Case) -> None:
        params = {"retraction_policy": case.get("config", {}).get("policy", "length")}
        scheduler = make("sglang", params, AMPLE, KVMemory(AMPLE, 1, AMPLE))
        running = []
        for row, spec in enumerate(case["requests"]):
            one = Request(row, spec["id"], spec["input_len"], AMPLE, row, spec.get("priority", 0))
            one.num_tokens += spec["output_len"]
            running.append(one)
        keep = [r.name for r in scheduler.retraction_order(running)]
        expected = {k: v for k, v in case.items() if k in ("expect_keep_order", "expect_first_retracted")}
        check({"expect_keep_order": keep, "expect_first_retracted": keep[-1]}, expected, case)


class PrefillAdmissionBudget:
    """SGLang's PrefillAdder over a pool in a given state."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def run(self, case: Case) -> None:
        config = case["config"]
        page, pool = config["page_size"], config["pool_free_plus_evictable"]
        assert config.get("clip_max_new", CLIP_MAX_NEW_TOKENS) == CLIP_MAX_NEW_TOKENS
        scheduler = make("sglang", {}, AMPLE, KVMemory(pool // page + 1, page, AMPLE))
        running = []
        for row, spec in enumerate(case["running"]):
            one = Request(row, f"running {row}", 1, spec["max_new"], 0)
            one.num_tokens += spec["output_len"]
            running.append(one)
        adder = PrefillAdder(
            scheduler.kv,
            running,
            sum(max_new(one) for one in running),
            config["new_token_ratio"],
            config["max_prefill_tokens"],
            config["chunked_prefill_size"],
        )
        got: dict[str, Any] = {"initial_remaining_total": adder.remaining, "admit": [], "reject": {}, "chunked": {}}
        for row, spec in enumerate(case["waiting"]):
            one = Request(100 + row, spec["id"], spec["extend"], spec["max_new"], row)
            grant = adder.add(one, MISS, 0)
            if isinstance(grant, Added):
                got["reject"][one.name] = grant.name
                break
            got["admit"].append(one.name)
            got[f"remaining_after_{one.name}"] = adder.remaining
            if grant.chunked:
                got["chunked"][one.name] = grant.tokens
            if adder.state() is not Added.CONTINUE:
                break
        check(got, case["expect"], case)


class QueueOrder:
    """SGLang's waiting queue over a prefix cache that holds of each prompt as much as the case says."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def run(self, case: Case) -> None:
        config = case["config"]
        assert config.get("waiting_limit", MATCH_LIMIT) == MATCH_LIMIT
        assert config.get("in_batch_check", IN_BATCH_CHECK) == IN_BATCH_CHECK
        assert config.get("in_batch_deprioritize", IN_BATCH_DEPRIORITIZE) == IN_BATCH_DEPRIORITIZE
        kv_class, _ = kv_allocators.resolve("prefix-radix")
        kv = kv_class(build_params("kv", kv_class.Params, {}), KVMemory(AMPLE, 1, AMPLE))
        waiting = []
        for row, spec in enumerate(case["waiting"]):
            runs = self._runs(row, spec)
            length = sum(n for _, n in runs)
            one = Request(row, spec["id"], length, spec.get("max_new", 16), row, spec.get("priority", 0))
            one.content = RunContent(row, runs)
            self._cache(kv, one, spec["matched"])
            waiting.append(one)
        cls, _ = schedulers.resolve("sglang")
        params = build_params("sglang", cls.Params, {"schedule_policy": config["policy"]})
        scheduler: Any = cls(params, Limits(AMPLE, AMPLE, AMPLE), kv)
        for one in waiting:
            scheduler.on_arrival(one)
            assert kv.lookup(one).num_tokens == case["waiting"][one.row]["matched"]
        scheduler._sort()
        check({"expect_order": [r.name for r in scheduler.waiters()]}, {"expect_order": case["expect_order"]}, case)

    @staticmethod
    def _runs(row: int, spec: dict[str, Any]) -> list[tuple[int, int]]:
        """`P40+u1`: 40 tokens called P40, then some called u1. What is not a capital and a number is as long as need
        be, and another prompt's only if it has the same name."""
        runs = []
        for part in spec["prompt"].split("+"):
            shared = re.fullmatch(r"[A-Z]+(\d+)", part)
            length = int(shared.group(1)) if shared else spec["matched"] + 64
            runs.append((zlib.crc32(part.encode()), length))
        return runs

    @staticmethod
    def _cache(kv: KVAllocator, like: Request, tokens: int) -> None:
        """Leave the first tokens of a prompt in the cache."""
        if not tokens:
            return
        past = Request(AMPLE + like.row, "past", tokens, 1, 0, content=like.content)
        hit = kv.lookup(past)
        kv.admit(past, hit, tokens - hit.num_tokens, 0)
        past.state, past.num_computed_tokens = State.RUNNING, tokens
        kv.publish(past, tokens)
        kv.free(past)


RUNNERS = {
    "retraction_order": RetractionOrder,
    "prefill_admission_budget": PrefillAdmissionBudget,
    "queue_order_lpm": QueueOrder,
    "orca_iteration": OrcaIteration,
    "static_batch": StaticBatch,
    "vllm_v0_prefill_priority": V0PrefillPriority,
}
