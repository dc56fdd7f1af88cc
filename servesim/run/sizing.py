"""Sizes of a scenario: the KV memory of its replicas, and the length of its longest request."""

from __future__ import annotations

from servesim.contracts import KVAllocator
from servesim.errors import UserError
from servesim.hardware import Gpu, KvGroup, MemoryBudget, ModelSpec, kv_groups, memory_budget
from servesim.hardware.draft import DraftModel
from servesim.hardware.kv import state_block_size
from servesim.hardware.memory import TP_DEGREES, NoRoom
from servesim.run.presets import facts_of
from servesim.run.scenario import Scenario
from servesim.workload.trace_stream import TraceFacts


def kv_budget(
    scenario: Scenario,
    model: ModelSpec,
    gpu: Gpu,
    allocator: type[KVAllocator],
    trace: TraceFacts,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    draft: DraftModel | None,
    pool: str | None,
) -> tuple[MemoryBudget, int | None]:
    """Return the memory budget of the run, and the number of blocks that fit under gpu_memory_utilization (None if no
    block fits, or if memory limits are ignored). Raise NoRoom, which names the smallest tp that has room, if none
    fits."""
    engine, facts = scenario.engine, facts_of(scenario.preset, scenario.engine.version, gpu.name)

    def budget(num_blocks: int | None, ignore: bool, tp: int = scenario.tp) -> MemoryBudget:
        return memory_budget(
            model,
            gpu,
            tp,
            pp=scenario.pp,
            dp=scenario.dp,
            redundant_experts=scenario.engine.num_redundant_experts if scenario.engine.enable_eplb else 0,
            dtype=scenario.dtype,
            kv_dtype=scenario.kv_dtype,
            block_size=engine.block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            num_blocks=num_blocks,
            ignore_memory=ignore,
            draft=draft,
            hybrid=allocator.grouped,
            version=_release(scenario),
            of_free=facts.engine == scenario.preset and facts.get("kv_share_of_free", False),
        )

    if engine.ignore_memory:
        everything = trace.blocks * len(layer_groups(scenario, model, allocator))
        return budget(engine.num_gpu_blocks or everything + 2, True), None

    def has_room(tp: int) -> bool:
        try:
            return bool(budget(None, False, tp))
        except UserError:
            return False

    if engine.num_gpu_blocks is None:
        try:
            fits = budget(None, False)
        except NoRoom as error:
            larger = next((tp for tp in TP_DEGREES if tp > scenario.tp and has_room(tp)), None)
            raise error.at(larger, pool) from None
        return fits, fits.num_blocks
    try:
        fitting = budget(None, False).num_blocks
    except UserError:
        fitting = None
    if fitting == engine.num_gpu_blocks:
        return budget(None, False), fitting
    return budget(engine.num_gpu_blocks, False), fitting


def _release(scenario: Scenario) -> tuple[int, int] | None:
    """Return the release of vLLM whose memory accounting is used; None (the latest known) for other systems."""
    if scenario.preset not in (None, "vllm") or scenario.engine.version is None:
        return None
    return facts_of(scenario.preset, scenario.engine.version).release


GROUPED = {"prefix-hash": "hybrid", "paged": "hybrid-paged"}
"""Equivalent allocators with a separate table for each group of layers, by allocator."""


def has_windows(model: ModelSpec) -> bool:
    """Return whether layers with KV attend only to a sliding window and free the tokens that leave it. Layers with
    chunked attention do not count: vLLM keeps their memory in one table (its hybrid KV cache manager is off for
    them)."""
    return any(layer.window for layer in model.kept_layers if layer.owns_kv)


def with_groups(scenario: Scenario, model: ModelSpec) -> Scenario:
    """Return a scenario with its KV memory laid out like vLLM's hybrid KV cache manager for a model with windows or
    states: window layers free the tokens that leave their windows, and blocks are large enough for a state. Pipeline
    stages are not supported, because their groups are unknown."""
    grouped = GROUPED.get(scenario.kv["name"])
    if model.recurrent is not None:
        if scenario.pp > 1:
            raise UserError(f"{model.name}: layers that keep a state are not modeled across pipeline stages (use pp 1)")
        name = grouped or scenario.kv["name"]
        if name not in GROUPED.values():
            return scenario
        size = state_block_size(model, scenario.engine.block_size, scenario.kv_dtype, scenario.tp)
        engine = scenario.engine.model_copy(update={"block_size": size})
        return scenario.model_copy(update={"kv": {**scenario.kv, "name": name}, "engine": engine})
    if grouped is None or not has_windows(model) or scenario.engine.disable_hybrid_kv_cache_manager or scenario.pp > 1:
        return scenario
    return scenario.model_copy(update={"kv": {**scenario.kv, "name": grouped}})


def layer_groups(scenario: Scenario, model: ModelSpec, allocator: type[KVAllocator]) -> list[KvGroup]:
    """Return the groups of layers that have their own block tables; a single group if the allocator does not support
    groups."""
    if not allocator.grouped:
        return [KvGroup(model.num_layers)]
    if scenario.pp > 1:
        raise UserError(f"kv {scenario.kv['name']}: groups of layers across pipeline stages are not modeled (use pp 1)")
    return kv_groups(model.kept_layers)


def longest_request(scenario: Scenario, model: ModelSpec, room: int) -> int:
    """Return the maximum length of a request, limited, as in vLLM, by the model's maximum and the `room` in tokens."""
    asked = scenario.engine.max_model_len
    if asked == "auto":
        return min(model.max_position, room)
    if not 1 <= asked <= model.max_position:
        raise UserError(
            f"engine.max_model_len is {asked} but must be from 1 to the {model.max_position} positions of {model.name}"
        )
    if asked > room:
        raise UserError(
            f"engine.max_model_len is {asked}, but KV memory has room for only {room} tokens (use a lower value, or "
            "auto)"
        )
    return asked
