"""The policy `transformers` against the scheduler it stands for, step by step."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")
pytest.importorskip("transformers", reason="the extra calibrate is not installed")

from transformers.generation.continuous_batching.cache import PagedAttentionCache  # noqa: E402
from transformers.generation.continuous_batching.cache_manager import (  # noqa: E402
    BlockManager,
    FullAttentionCacheAllocator,
)
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager  # noqa: E402
from transformers.generation.continuous_batching.requests import RequestState  # noqa: E402
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING  # noqa: E402

from servesim.contracts import KVMemory, Limits, Request, build_params, kv_allocators, schedulers  # noqa: E402
from servesim.engine.core import EngineCore  # noqa: E402

Steps = list[list[tuple[int, int]]]


class Blocks:
    """The engine's paged cache without its tensors."""

    allow_block_sharing = use_prefix_sharing = False
    num_full_attention_groups, num_sliding_attention_groups, max_blocks_per_request = 1, 0, 0
    config = None
    key_cache = value_cache = (torch.empty(0),)
    num_key_value_heads, head_dim, dtype = 1, 1, torch.float32
    blocks_needed = PagedAttentionCache.blocks_needed
    will_allocation_be_successful = PagedAttentionCache.will_allocation_be_successful
    blocks_in_use = PagedAttentionCache.blocks_in_use
    allocate_blocks = PagedAttentionCache.allocate_blocks
    free_blocks = PagedAttentionCache.free_blocks
    get_num_free_blocks = PagedAttentionCache.get_num_free_blocks

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size, self.num_pages = num_blocks, block_size, num_blocks * block_size
        self.group_cache_managers = [FullAttentionCacheAllocator(0, block_size, False)]
        self._block_manager = BlockManager(num_blocks, block_size, tp_on=False)


class Workload:
    """Requests as (step of arrival, prompt, output), and limits tight enough to matter."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.block_size = rng.choice([4, 8, 16])
        self.num_blocks = rng.choice([6, 10, 24, 200])
        self.tokens, self.seqs = rng.choice([5, 16, 64, 500]), rng.choice([1, 3, 8, 64])
        self.kind = rng.choice(["fifo", "fifo", "prefill_first"])
        self.margin = rng.choice([None, None, 0.0, 0.5])
        room = self.num_blocks * self.block_size - 2
        self.requests = []
        at = 0
        for _ in range(rng.randint(1, 30)):
            at += rng.choice([0, 0, 1, 5])
            prompt = rng.randint(1, min(60, room - 1))
            self.requests.append((at, prompt, rng.randint(1, min(40, room - prompt))))


def theirs(work: Workload) -> tuple[Steps, int]:
    """Steps as (row, tokens) in batch order, and evictions, of the engine's own scheduler."""
    cache = Blocks(work.num_blocks, work.block_size)
    scheduler = SCHEDULER_MAPPING[work.kind](cache, work.margin, work.seqs)
    helper = SimpleNamespace(tp_all_reduce_min=lambda x, on_cpu: x)
    manager = OffloadingManager(cache, scheduler, 0.0, 0.8, None, helper)
    waiting, steps, evicted, at = list(enumerate(work.requests)), [], 0, 0
    while waiting or scheduler.has_pending_requests():
        while waiting and waiting[0][1][0] <= at:
            row, (_, prompt, output) = waiting.pop(0)
            scheduler.add_waiting_request(RequestState(str(row), [1] * prompt, max_new_tokens=output, eos_token_id=-1))
        at += 1
        if not scheduler.has_pending_requests():
            continue
        batch = scheduler.schedule_batch(work.tokens, cache.num_pages)[0]
        while batch is None:
            count = manager.offload_requests()
            assert count, "stuck"
            evicted += count
            batch = scheduler.schedule_batch(work.tokens, cache.num_pages)[0]
        if scheduler.starved_requests:
            evicted += manager.offload_requests()
        steps.append([(int(f.state.request_id), f.query_length) for f in batch])
        for f in batch:
            f.state.position_offset += f.query_length
            if f.has_new_token and f.state.update_and_check_completion(1, None):
                scheduler.finish_request(f.state.request_id)
                scheduler.block_new_requests = False
    return steps, evicted


def ours(work: Workload) -> tuple[Steps, int]:
    """The same of the policy."""
    room = work.num_blocks * work.block_size
    paged, _ = kv_allocators.resolve("paged")
    kv = paged(build_params("paged", paged.Params, {}), KVMemory(work.num_blocks + 1, work.block_size, 2 * room))
    policy, _ = schedulers.resolve("transformers")
    params = build_params("transformers", policy.Params, {"scheduler_type": work.kind, "safety_margin": work.margin})
    core = EngineCore(policy(params, Limits(work.seqs, work.tokens, 2 * room), kv), kv, check=True)
    waiting, steps, evicted, at = list(enumerate(work.requests)), [], 0, 0
    while waiting or core.num_unfinished:
        while waiting and waiting[0][1][0] <= at:
            row, (_, prompt, output) = waiting.pop(0)
            core.add(Request(row, str(row), prompt, output, at), output, at)
        at += 1
        if not core.num_unfinished:
            continue
        step = core.plan(at)
        assert step is not None
        assert core.last_plan is not None
        steps.append([(r.row, n) for r, n in core.last_plan.tokens.items()])
        evicted += len(core.last_plan.preempted)
        core.commit(at)
    return steps, evicted


def test_the_policy_schedules_every_step_as_the_engine_does(capsys: pytest.CaptureFixture[str]) -> None:
    evictions = steps = 0
    for seed in range(400):
        work = Workload(seed)
        expected: Any = theirs(work)
        assert ours(work) == expected, f"workload {seed}"
        steps, evictions = steps + len(expected[0]), evictions + expected[1]
    with capsys.disabled():
        print(f"\ntransformers scheduler: 400 of 400 workloads, {steps} steps, {evictions} evictions, all equal")
    assert evictions > 100
