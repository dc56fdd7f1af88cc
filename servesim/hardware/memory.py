"""The number of KV blocks that fit, computed the way vLLM does at start-up, and vLLM's default limits by GPU.

vLLM takes `ceil(total memory * utilization)`, subtracts the weights, the peak of a profile run, memory
outside torch and an estimate of its CUDA graphs, and divides the rest by the bytes of a block. The profile
run is replaced here by a formula (`peak_activation_bytes`). Two constants are set on recorded H100 servers:
memory outside torch on Llama-2-7B (vLLM 0.15.1), the graphs on Qwen3-14B (0.23.0). With them the block counts
of Llama-2-70B TP 4 and CodeLlama-34B TP 2 come out within 1 % too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from servesim.errors import UserError
from servesim.hardware.draft import DraftModel
from servesim.hardware.gpu import Gpu
from servesim.hardware.kv import block_bytes, kv_groups, page_bytes
from servesim.hardware.layers import dtype_bytes, pipeline_layers, wide_bytes
from servesim.hardware.model import ModelSpec, check_tp

GIB = 2**30
NON_TORCH_BYTES = int(0.19 * GIB)
"""Workspaces of cuBLAS and the attention backend, outside torch's allocator."""
NCCL_BYTES = {1: 0, 2: 342 * 2**20, 4: 392 * 2**20, 8: 392 * 2**20}
"""NCCL buffers by number of GPUs (aiconfigurator-core 0.12.0, system descriptions)."""
CUDA_GRAPH_BYTES = int(0.09 * GIB)
"""vLLM's own estimate of its captured graphs (subtracted since it counts them in the utilization)."""
_SAMPLER_BYTES_PER_LOGIT = 18
"""Logits in 2 bytes, a float32 copy, and its sorted values and int64 indices (top-k and top-p)."""


@dataclass(frozen=True, slots=True)
class VllmDefaults:
    """vLLM's limits when the user sets none."""

    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int = 16
    gpu_memory_utilization: float = 0.92


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The uses of one GPU's memory, in bytes, and the KV blocks that fit in the rest."""

    usable: int
    """ceil(total * utilization)."""
    weights: int
    activations: int
    non_torch: int
    cuda_graphs: int
    block_bytes: int
    """Bytes of one block on one GPU, all layers."""
    num_blocks: int
    """Blocks of the pool, vLLM's null block included."""
    ignored: bool = False
    """True: the memory of the GPU was not looked at."""


def vllm_defaults(gpu: Gpu, usage: str = "server") -> VllmDefaults:
    """Return vLLM's max_num_batched_tokens and max_num_seqs by GPU memory; usage is "server" or "offline".

    At least 160 GB: 16384 tokens. At least 70 GB and not an A100: 16384 offline, 8192 as a server.
    Others: 8192 offline, 2048 as a server. Sequences: 1024 on the two large classes, 256 on others.
    """
    if usage not in ("server", "offline"):
        raise UserError(f'usage must be "server" or "offline", not {usage!r}')
    offline = usage == "offline"
    if gpu.memory_bytes >= 160 * GIB:
        tokens, sequences = 16384, 1024
    elif gpu.memory_bytes >= 70 * GIB and not gpu.name.startswith("a100"):
        tokens, sequences = (16384 if offline else 8192), 1024
    else:
        tokens, sequences = (8192 if offline else 2048), 256
    return VllmDefaults(tokens, min(sequences, tokens))


def peak_activation_bytes(
    model: ModelSpec, tp: int, max_num_batched_tokens: int, max_num_seqs: int, samples: bool = True
) -> int:
    """Return the peak of the profile run: the larger of the MLP on a full batch and the sampler on full sequences.

    MLP: gate and up outputs, their product, residual and hidden state, 2 bytes each; experts: the same for every
    routed copy of a token, and its output. Sampler (where the stage `samples`): logits of every sequence over the
    whole vocabulary.
    """
    width = (3 if model.gated_mlp else 2) * model.intermediate_size // tp
    if model.experts is not None:
        moe = model.experts
        width = moe.per_token * (3 * moe.size // tp + model.hidden_size) + 3 * moe.shared_size // tp
    mlp = max_num_batched_tokens * (width + 2 * model.hidden_size) * 2
    sampler = max_num_seqs * model.vocab_size * _SAMPLER_BYTES_PER_LOGIT
    return max(mlp, sampler if samples else 0)


def stage_weight_bytes(model: ModelSpec, layers: range, dtype: str) -> int:
    """Return the bytes of the weights of a pipeline stage that runs `layers`, all its GPUs together: the embedding on
    the first stage, LM head (a copy of a tied embedding) and final norm on the last."""
    first, last = layers.start == 0, layers.stop == model.num_layers
    if first and last:
        return model.weight_bytes(dtype)
    ends = first * (model.vocab_size + model.learned_positions) + last * (model.vocab_size + 1)
    body = sum(model.layer_bytes(model.layers[i], dtype) for i in layers)
    return int(body + ends * model.hidden_size * wide_bytes(dtype))


def memory_budget(
    model: ModelSpec,
    gpu: Gpu,
    tp: int = 1,
    *,
    pp: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    block_size: int = 16,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    gpu_memory_utilization: float = 0.92,
    num_blocks: int | None = None,
    ignore_memory: bool = False,
    hybrid: bool = False,
    draft: DraftModel | None = None,
) -> MemoryBudget:
    """Return the memory budget of one of `tp` GPUs; with `pp` stages, of a GPU of the stage where the fewest blocks
    fit.

    `num_blocks` overrides the count (vLLM's num_gpu_blocks_override). `ignore_memory` asks what would happen with
    unlimited KV memory: `num_blocks` blocks, or 2^31 when none are given. `hybrid`: a block is one of a group of layers
    (`kv_groups`), as vLLM lays out models with windows in some layers; without it every layer keeps every token (vLLM's
    disable_hybrid_kv_cache_manager), and one block table is all a request has. `draft`: its weights and the KV of its
    layers lie beside the model's, on the last stage.
    """
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise UserError(f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization}")
    if num_blocks is not None and num_blocks < 2:
        raise UserError(f"num_blocks must be at least 2 (one of them is vLLM's null block), not {num_blocks}")
    check_tp(model, tp)
    page = page_bytes(model, block_size, kv_dtype, tp)
    budgets = []
    for stage in pipeline_layers(model.num_layers, pp):
        layers = [model.layers[i] for i in stage]
        samples = stage.stop == model.num_layers
        budget = MemoryBudget(
            usable=math.ceil(gpu.memory_bytes * gpu_memory_utilization),
            weights=stage_weight_bytes(model, stage, dtype) // tp,
            activations=peak_activation_bytes(model, tp, max_num_batched_tokens, max_num_seqs, samples),
            non_torch=NON_TORCH_BYTES + NCCL_BYTES.get(tp * pp, NCCL_BYTES[8]),
            cuda_graphs=CUDA_GRAPH_BYTES,
            block_bytes=block_bytes(kv_groups(layers), page) if hybrid else page * sum(x.owns_kv for x in layers),
            num_blocks=num_blocks or 2**31,
            ignored=ignore_memory,
        )
        if draft is not None and samples:
            drafts_page = page_bytes(draft.spec, block_size, kv_dtype, tp)
            budget = replace(
                budget,
                weights=budget.weights + draft.weight_bytes("bf16") // tp,
                block_bytes=budget.block_bytes + draft.kv_layers * drafts_page,
            )
        what = f"{model.name} ({dtype}, tp {tp}{f', pp {pp}' if pp > 1 else ''})"
        budgets.append(budget if ignore_memory else _fit(budget, what, gpu, dtype, num_blocks))
    return min(budgets, key=lambda budget: budget.num_blocks)


def _fit(budget: MemoryBudget, what: str, gpu: Gpu, dtype: str, num_blocks: int | None) -> MemoryBudget:
    """Return the budget with the blocks that fit, or raise an error that says how much memory is missing."""
    taken = budget.weights + budget.activations + budget.non_torch + budget.cuda_graphs
    # a stage whose layers all attend the KV of another one keeps none itself
    fitting = (budget.usable - taken) // budget.block_bytes if budget.block_bytes else 2**31
    if num_blocks is not None:
        # An override ignores the utilization, but cannot exceed the memory there is.
        room = gpu.memory_bytes - taken
        fitting = min(num_blocks, room // budget.block_bytes if budget.block_bytes else num_blocks)
    if fitting < max(2, num_blocks or 2):
        hints = ["a larger tp", "--ignore-memory"]
        if dtype_bytes(dtype) > 1 and "fp8" in gpu.flops:
            hints.insert(1, "dtype fp8")
        need = "no KV block fits"
        if num_blocks:
            need = f"{num_blocks} KV blocks need {num_blocks * budget.block_bytes / GIB:.1f} GiB besides"
        raise UserError(
            f"{what} on {gpu.name}: weights {budget.weights / GIB:.1f} GiB + "
            f"activations {budget.activations / GIB:.1f} GiB + overhead "
            f"{(budget.non_torch + budget.cuda_graphs) / GIB:.1f} GiB per GPU of "
            f"{budget.usable / GIB:.1f} GiB usable: {need} (try {', '.join(hints)})"
        )
    return replace(budget, num_blocks=int(fitting))
