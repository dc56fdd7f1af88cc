"""The number of KV blocks that fit, computed the way vLLM does at start-up, and vLLM's default limits by GPU.

vLLM takes `ceil(total memory * utilization)`, subtracts the weights, the peak of a profile run, memory outside torch
and, in newer releases, an estimate of its CUDA graphs, and divides the rest by the bytes of a block. Here a formula
(`peak_activation_bytes`) replaces the profile run. Errors by server: tests/validation/test_memory_model.py.
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
Version = tuple[int, int]
"""Release of vLLM: (0, 22) is 0.22."""
NON_TORCH_BYTES = int(0.13 * GIB)
"""Workspaces of cuBLAS and the attention backend, outside torch's allocator: what remains of 90 % of an H100 after the
weights, activations and KV cache of Llama-3.1-8B (in an earlier release, with no graphs subtracted). With gpt-oss-20b,
Qwen3-0.6B and Qwen3-32B, the same remains within 0.01 GiB."""
NCCL_BYTES = {1: 0, 2: 420 * 2**20, 4: 470 * 2**20, 8: 470 * 2**20}
"""NCCL and all-reduce buffers by number of GPUs: the value for two is fitted to Llama-3.3-70B TP 2 as above; more GPUs
take 50 MiB more (aiconfigurator-core 0.12.0, system descriptions)."""
TP_DEGREES = tuple(NCCL_BYTES)
"""Tensor parallelism within a node."""
STATES_PER_KV = 0.9
"""Bytes of the state pool per byte of the KV pool (SGLang's mamba_full_memory_ratio), if blocks are not laid out by
groups of layers."""
_PADDED_TO = 256
"""Multiple to which the hidden size of mxfp4 experts is padded on Hopper. Fitted to the weights of gpt-oss-20b (13.47
GiB; without padding 12.81); it yields 64.49 GiB for the weights of gpt-oss-120b (64.38 loaded)."""


SORTING = 38.3
"""Bytes per logit of a sampler that sorts: 2 for logits, 4 for a float32 copy, 12 for sorted values and int64 indices,
and the rest for scratch space of the sort, softmax and sums. Fitted to the activations of Llama-3.1-8B and Qwen3-0.6B
(1,024 sequences on an H100; 38.34 and 38.25); gpt-oss-20b and -120b, Llama-3.3-70B and Qwen3-32B come out within 0.4 %
(vocabularies of 128,256 to 201,088)."""
UNSORTED = 18.0
"""Bytes per logit of a sampler that does not sort: 2 for logits, 4 each for a float32 copy and three buffers like it.
Assumed, not measured: with it, gpt-oss-120b on an H200 (0.22) gets 1 % more blocks than it actually had."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """Memory that vLLM counts as used at start-up, which differs between releases."""

    gpu_memory_utilization: float = 0.92
    """Default share of the GPU's memory."""
    sampler_bytes_per_logit: float = UNSORTED
    """Peak bytes of the sampler in the profile run, per sequence and vocabulary entry."""
    cuda_graphs: int = int(0.15 * GIB)
    """vLLM's estimate of captured graphs, subtracted from KV memory."""


_ACCOUNTING: dict[Version, Accounting] = {
    (0, 0): Accounting(0.9, SORTING, 0),
    (0, 17): Accounting(0.9, cuda_graphs=0),
    (0, 21): Accounting(),
}
"""Rules by the first release that uses them. Samplers stopped sorting with the top-k and top-p kernels in Triton (vLLM
PR 33538); the first release with them lies between 0.15 and 0.22. Graphs have been subtracted since 0.21. Their
estimate is fitted to one server (Qwen3-14B, 0.23, 18,038 blocks on an H100); it grows with the model, at times to many
GiB (vLLM issue 45178)."""


def accounting(version: Version | None = None) -> Accounting:
    """Return the memory accounting of a release of vLLM; None: the latest known release."""
    known = max(_ACCOUNTING) if version is None else max(since for since in _ACCOUNTING if since <= version)
    return _ACCOUNTING[known]


@dataclass(frozen=True, slots=True)
class VllmDefaults:
    """vLLM's limits when the user sets none."""

    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int = 16
    gpu_memory_utilization: float = 0.92


class NoRoom(UserError):
    """Error for a GPU without room for KV blocks beside the model: the problem, and other settings to try."""

    def __init__(self, problem: str, others: tuple[str, ...], tp: str = "a larger tp") -> None:
        super().__init__(f"{problem} (try {', '.join((tp, *others))})")
        self.problem, self.others = problem, others
        self.tp: int | None = None
        """The smallest tensor parallelism of one node that has room; None if it is unknown or there is none."""

    def at(self, tp: int | None, pool: str | None) -> NoRoom:
        """Return the error with that tensor parallelism, for a named pool or for all servers."""
        flag = f"tp {tp} for pool {pool}" if pool else f"--tp {tp}"
        found = NoRoom(self.problem, self.others, flag if tp else f"--pp, as no tp up to {TP_DEGREES[-1]} fits")
        found.tp = tp
        return found


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The uses of one GPU's memory, in bytes, and the KV blocks that fit in the rest."""

    usable: int
    """Usable bytes: ceil(total * utilization), or that share of the memory that is not taken and what is taken."""
    weights: int
    activations: int
    non_torch: int
    cuda_graphs: int
    block_bytes: int
    """Bytes of one block on one GPU, all layers."""
    num_blocks: int
    """Blocks of the pool, including vLLM's null block."""
    ignored: bool = False
    """Whether the memory of the GPU was ignored."""
    state_bytes: int = 0
    """Bytes of the states of one sequence if they have a separate pool (no groups of layers)."""
    state_slots: int = 0
    """Number of sequences whose states fit in that pool; 0: there is none."""

    @property
    def taken(self) -> int:
        """Bytes that are not KV cache or states."""
        return self.weights + self.activations + self.non_torch + self.cuda_graphs


def vllm_defaults(gpu: Gpu, usage: str = "server", version: Version | None = None) -> VllmDefaults:
    """Return vLLM's max_num_batched_tokens and max_num_seqs by GPU memory; usage is "server" or "offline". The
    utilization is the default of a release (None: the latest known).

    At least 160 GB: 16384 tokens. At least 70 GB and not an A100: 16384 offline, 8192 as a server. Others: 8192
    offline, 2048 as a server. Sequences: 1024 on the two large classes, 256 on others.
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
    utilization = accounting(version).gpu_memory_utilization
    return VllmDefaults(tokens, min(sequences, tokens), gpu_memory_utilization=utilization)


def peak_activation_bytes(
    model: ModelSpec,
    tp: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    samples: bool = True,
    sampler_bytes_per_logit: float = UNSORTED,
) -> int:
    """Return the peak of the profile run: the larger of the MLP on a full batch and the sampler on full sequences.

    MLP: gate and up outputs, their product, residual and hidden state, 2 bytes each; experts: the same for every routed
    copy of a token, plus the output of that copy. Sampler (if the stage `samples`): logits of every sequence over the
    whole vocabulary, in addition to the hidden states of the batch and the hidden states to be sampled.
    """
    width = (3 if model.gated_mlp else 2) * model.intermediate_size // tp
    if model.experts is not None:
        moe = model.experts
        width = moe.per_token * (3 * moe.size // tp + model.hidden_size) + 3 * moe.shared_size // tp
    mlp = max_num_batched_tokens * (width + 2 * model.hidden_size) * 2
    if not samples:
        return mlp
    hidden = (max_num_batched_tokens + max_num_seqs) * model.hidden_size * 2
    return max(mlp, hidden + int(max_num_seqs * model.vocab_size * sampler_bytes_per_logit))


def padding_bytes(model: ModelSpec, layers: range) -> int:
    """Return the bytes of padding of mxfp4 experts in some layers, on all GPUs together."""
    moe = model.experts
    if moe is None or moe.dtype != "mxfp4":
        return 0
    missing = -model.hidden_size % _PADDED_TO
    experts = sum(model.layers[i].experts for i in layers)
    return int(experts * moe.count * 3 * missing * moe.size * dtype_bytes("mxfp4"))


def stage_weight_bytes(model: ModelSpec, layers: range, dtype: str) -> int:
    """Return the bytes of the weights of a pipeline stage that runs `layers`, on all its GPUs together: with the
    embedding on the first stage, and the LM head (a copy of a tied embedding) and final norm on the last."""
    first, last = layers.start == 0, layers.stop == model.num_layers
    if first and last:
        return model.weight_bytes(dtype)
    ends = first * (model.vocab_size + model.learned_positions) + last * (model.vocab_size + 1)
    body = sum(model.layer_bytes(model.layers[i], dtype) for i in layers)
    return int(body + ends * model.hidden_size * wide_bytes(dtype))


def expert_bytes(model: ModelSpec, layers: range, dtype: str) -> float:
    """Return the bytes of the routed experts in some layers, including padding, on all GPUs together."""
    moe = model.experts
    if moe is None:
        return 0.0
    count = sum(model.layers[i].experts for i in layers)
    return count * moe.params(model.hidden_size) * dtype_bytes(moe.dtype or dtype) + padding_bytes(model, layers)


def _weights_of_gpu(model: ModelSpec, stage: range, dtype: str, tp: int, dp: int, redundant: int) -> int:
    """Return the bytes of weights on one GPU, including its share of the routed experts and their copies among all
    ranks."""
    whole = stage_weight_bytes(model, stage, dtype) + padding_bytes(model, stage)
    if dp == 1 and not redundant:
        return whole // tp
    experts = expert_bytes(model, stage, dtype)
    copies = 1 + redundant / model.experts.count if model.experts is not None else 1.0
    return int((whole - experts) / tp + experts * copies / (tp * dp))


def memory_budget(
    model: ModelSpec,
    gpu: Gpu,
    tp: int = 1,
    *,
    pp: int = 1,
    dp: int = 1,
    redundant_experts: int = 0,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    block_size: int = 16,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    gpu_memory_utilization: float | None = None,
    num_blocks: int | None = None,
    ignore_memory: bool = False,
    hybrid: bool = False,
    draft: DraftModel | None = None,
    version: Version | None = None,
    of_free: bool = False,
) -> MemoryBudget:
    """Return the memory budget of one of `tp` GPUs; with `pp` stages, the budget of a GPU of the stage with the fewest
    blocks.

    `num_blocks` overrides the count (vLLM's num_gpu_blocks_override). `ignore_memory` assumes unlimited KV memory:
    `num_blocks` blocks, or 2^31 if not given. `hybrid`: a block belongs to a group of layers (`kv_groups`), as vLLM
    lays out models with windows in some layers; without it, every layer keeps every token (vLLM's
    disable_hybrid_kv_cache_manager), and a request has a single block table. `draft`: its weights and the KV of its
    layers are stored next to the model's, on the last stage. `version`: the release of vLLM whose accounting is used
    (None: the latest known), and whose utilization is the default. `of_free`: the utilization is the KV cache's share
    of what everything else leaves (TensorRT-LLM's free_gpu_memory_fraction), not that of all memory. `dp`:
    data-parallel ranks of `tp` GPUs, over all of which experts are spread, including `redundant_experts` additional
    copies in each layer.
    """
    counted = accounting(version)
    if gpu_memory_utilization is None:
        gpu_memory_utilization = counted.gpu_memory_utilization
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise UserError(f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization}")
    if num_blocks is not None and num_blocks < 2:
        raise UserError(f"num_blocks must be at least 2 (one of them is vLLM's null block), not {num_blocks}")
    check_tp(model, tp)
    page = page_bytes(model, block_size, kv_dtype, tp)
    budgets = []
    for stage in pipeline_layers(model.num_layers, pp):
        layers = [model.kept_layers[i] for i in stage]
        samples = stage.stop == model.num_layers
        budget = MemoryBudget(
            usable=math.ceil(gpu.memory_bytes * gpu_memory_utilization),
            weights=_weights_of_gpu(model, stage, dtype, tp, dp, redundant_experts),
            activations=peak_activation_bytes(
                model, tp, max_num_batched_tokens, max_num_seqs, samples, counted.sampler_bytes_per_logit
            ),
            non_torch=NON_TORCH_BYTES + NCCL_BYTES.get(tp * pp * dp, NCCL_BYTES[8]),
            cuda_graphs=counted.cuda_graphs,
            block_bytes=block_bytes(kv_groups(layers), page) if hybrid else page * sum(x.owns_kv for x in layers),
            num_blocks=num_blocks or 2**31,
            ignored=ignore_memory,
            state_bytes=0 if hybrid else model.state_bytes(tp),
        )
        if draft is not None and samples:
            drafts_page = page_bytes(draft.spec, block_size, kv_dtype, tp)
            budget = replace(
                budget,
                weights=budget.weights + draft.weight_bytes("bf16") // tp,
                block_bytes=budget.block_bytes + draft.kv_layers * drafts_page,
            )
        free = gpu.memory_bytes - budget.taken
        if of_free and free > 0:
            budget = replace(budget, usable=budget.taken + math.ceil(free * gpu_memory_utilization))
        ranks = "".join(f", {name} {size}" for name, size in (("pp", pp), ("dp", dp)) if size > 1)
        what = f"{model.name} ({dtype}, tp {tp}{ranks})"
        budgets.append(budget if ignore_memory else _fit(budget, what, gpu, dtype, num_blocks))
    return min(budgets, key=lambda budget: budget.num_blocks)


def _fit(budget: MemoryBudget, what: str, gpu: Gpu, dtype: str, num_blocks: int | None) -> MemoryBudget:
    """Return the budget with the blocks that fit, or raise an error that states how much memory is missing."""
    taken = budget.taken
    rest = max(budget.usable - taken, 0)
    if budget.state_bytes:
        states = int(rest * STATES_PER_KV / (1 + STATES_PER_KV))
        budget = replace(budget, state_slots=states // budget.state_bytes)
        taken, rest = taken + states, rest - states
    # A stage whose layers all attend to the KV of others keeps none itself.
    fitting = rest // budget.block_bytes if budget.block_bytes else 2**31
    if num_blocks is not None:
        # An override ignores the utilization, but cannot exceed the total memory.
        room = gpu.memory_bytes - taken
        fitting = min(num_blocks, room // budget.block_bytes if budget.block_bytes else num_blocks)
    if fitting < max(2, num_blocks or 2):
        smaller = ("--dtype fp8",) if dtype_bytes(dtype) > 1 and "fp8" in gpu.flops else ()
        need = "no KV block fits"
        if num_blocks:
            need = f"{num_blocks} KV blocks need {num_blocks * budget.block_bytes / GIB:.1f} GiB more"
        raise NoRoom(
            f"{what} on {gpu.name}: weights {budget.weights / GIB:.1f} GiB + "
            f"activations {budget.activations / GIB:.1f} GiB + overhead "
            f"{(budget.non_torch + budget.cuda_graphs) / GIB:.1f} GiB per GPU of "
            f"{budget.usable / GIB:.1f} GiB usable: {need}",
            (*smaller, "--ignore-memory"),
        )
    return replace(budget, num_blocks=int(fitting))
