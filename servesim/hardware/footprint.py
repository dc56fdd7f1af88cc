"""Memory of a model: KV cache by layer and token, weights by format, and the GPUs it fits on.

GB are 10^9 bytes. Only memory is considered, not whether a GPU supports arithmetic in a format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from servesim.errors import UserError
from servesim.hardware.gpu import Gpu
from servesim.hardware.kv import kv_groups, state_block_size
from servesim.hardware.layers import dtype_bytes
from servesim.hardware.memory import GIB, TP_DEGREES, MemoryBudget, memory_budget, vllm_defaults
from servesim.hardware.model import ModelSpec, check_tp, read_config

FORMATS = ("fp32", "bf16", "fp8", "int8", "int4", "q4_k_m", "int3", "ternary")
FORMATS_TRIED = ("bf16", "fp8", "int4")
"""The formats in which the model is sized on each GPU by default."""
KV_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")


def kv_format(name: str) -> str:
    """Return the KV format that an option means: `auto` is vLLM's, which is bf16 under weights of any format."""
    return "bf16" if name == "auto" else name


@dataclass(frozen=True, slots=True)
class Load:
    """The load that KV memory must hold, and its KV format."""

    context: int = 4096
    """Tokens per sequence, prompt and output together."""
    sequences: int = 1
    kv_dtype: str = "bf16"
    block_size: int = 16
    memory_utilization: float = 0.92

    def check(self) -> None:
        """Raise UserError for an invalid value."""
        for name in ("context", "sequences", "block_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.memory_utilization <= 1:
            raise UserError(f"memory_utilization must be above 0 and at most 1, not {self.memory_utilization:g}")
        if self.kv_dtype not in KV_FORMATS:
            raise UserError(f"unknown kv_dtype {self.kv_dtype!r} (choose from: {', '.join(KV_FORMATS)})")


@dataclass(frozen=True, slots=True)
class Fit:
    """A model on `tp` GPUs of one kind, with the memory budget that vLLM computes at start-up."""

    gpu: str
    weights: str
    tp: int
    weight_bytes: int
    """Bytes of weights on each GPU."""
    num_blocks: int = 0
    """Blocks that can be allocated (without vLLM's null block)."""
    kv_tokens: int = 0
    """Tokens that those blocks hold without sharing."""
    sequences: int = 0
    """Number of sequences of the load's context that fit at the same time."""
    reason: str = ""
    """Reason why no block fits."""


def changed(name_or_path: str, settings: dict[str, Any]) -> ModelSpec:
    """Return a model with some keys of its `config.json` replaced; raise UserError for a key that is missing there and
    has no effect."""
    config, name = read_config(name_or_path)
    model = ModelSpec.from_config({**config, **settings}, name)
    if "num_key_value_heads" in settings and model.latent is not None:
        raise UserError(f"{name} has latent attention: the number of KV heads has no effect on its cache")
    for key in settings:
        others = {k: value for k, value in settings.items() if k != key}
        if key not in config and _builds({**config, **others}, model):
            raise UserError(f"{key} is not a key of the config.json of {name}, and setting it has no effect")
    said = ", ".join(f"{key}={value}" for key, value in settings.items())
    return replace(model, name=f"{name} ({said})") if settings else model


def _builds(config: dict[str, Any], model: ModelSpec) -> bool:
    """Return whether a config describes exactly this model."""
    try:
        return ModelSpec.from_config(config, model.name) == model
    except UserError:
        return False


def attention_kind(model: ModelSpec) -> str:
    """Return the standard term for how the heads share keys and values."""
    if model.latent is not None:
        chosen = f", {model.latent.indexer.topk} tokens chosen" if model.latent.indexer is not None else ""
        return f"MLA, a latent of {model.latent.kv_rank} + {model.latent.rope_dim} numbers{chosen}"
    if model.recurrent is not None:
        states = sum(layer.recurrent for layer in model.layers)
        return f"{states} layers keep a state ({model.recurrent.kind}); GQA with {model.num_kv_heads} KV heads"
    if model.num_kv_heads == model.num_heads:
        return "MHA"
    return "MQA" if model.num_kv_heads == 1 else f"GQA with {model.num_kv_heads} KV heads"


def fit(model: ModelSpec, gpu: Gpu, tp: int, weights: str, load: Load) -> Fit:
    """Return the room for KV cache alongside the weights; raise UserError for a `tp` that does not divide the heads."""
    check_tp(model, tp)
    limits, groups = vllm_defaults(gpu), kv_groups(model.kept_layers)
    load = replace(load, block_size=state_block_size(model, load.block_size, load.kv_dtype, tp))

    def budget(ignore: bool) -> MemoryBudget:
        return memory_budget(
            model,
            gpu,
            tp,
            dtype=weights,
            kv_dtype=load.kv_dtype,
            block_size=load.block_size,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            gpu_memory_utilization=load.memory_utilization,
            ignore_memory=ignore,
            hybrid=True,
        )

    try:
        found = budget(False)
    except UserError:
        short = budget(True)
        needed = short.weights + short.activations + short.non_torch + short.cuda_graphs
        reason = f"needs {needed / GIB:.1f} GiB plus KV blocks, but only {short.usable / GIB:.1f} GiB is usable"
        return Fit(gpu.name, weights, tp, short.weights, reason=reason)
    blocks = found.num_blocks - 1
    each = sum(group.blocks(load.context, load.block_size) for group in groups)
    kv_tokens = blocks // len(groups) * load.block_size
    return Fit(gpu.name, weights, tp, found.weights, blocks, kv_tokens, blocks // each)


def fits(
    model: ModelSpec, gpus: Sequence[Gpu], formats: Sequence[str], load: Load, degrees: Sequence[int] = ()
) -> list[Fit]:
    """Fit a model on each GPU in each format: at the smallest TP degree that holds the load (the largest if none does),
    or at each of the given `degrees`."""
    found = []
    for gpu in gpus:
        for weights in formats:
            tried = [fit(model, gpu, tp, weights, load) for tp in degrees or _degrees(model)]
            enough = [one for one in tried if one.sequences >= load.sequences]
            found += tried if degrees else [(enough or tried[-1:])[0]]
    return found


def _degrees(model: ModelSpec) -> list[int]:
    found = []
    for tp in TP_DEGREES:
        try:
            check_tp(model, tp)
        except UserError:
            continue
        found.append(tp)
    return found


def footprint(
    model: ModelSpec,
    gpus: Sequence[Gpu],
    load: Load,
    formats: Sequence[str] = (),
    degrees: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the complete output of `servesim size` for a model, ready for JSON: bytes, tokens, counts."""
    load.check()
    kinds = Counter((layer.window, layer.owns_kv) for layer in model.kept_layers if layer.mixer and not layer.recurrent)
    groups = kv_groups(model.kept_layers)
    load = replace(load, block_size=state_block_size(model, load.block_size, load.kv_dtype))
    kv = {
        "dtype": load.kv_dtype,
        "elements_per_token_per_layer": model.kv_elements(),
        "bytes_per_token_per_layer": model.kv_bytes_per_token_per_layer(load.kv_dtype),
        "bytes_per_token": model.kv_bytes_per_token(load.kv_dtype),
        "layers": [{"layers": n, "window": window, "keeps": keeps} for (window, keeps), n in kinds.items()],
        "state_bytes": model.state_bytes(),
        "bytes": load.sequences * model.kv_bytes(load.context, load.kv_dtype),
        "blocks": load.sequences * sum(group.blocks(load.context, load.block_size) for group in groups),
    }
    weights = [
        {
            "format": name,
            "bits": dtype_bytes(name) * 8,
            "all_bytes": int(model.num_params * dtype_bytes(name)),
            "loaded_bytes": model.weight_bytes(name),
        }
        for name in formats or FORMATS
    ]
    return {
        "model": model.name,
        "params": model.num_params,
        "num_layers": model.num_layers,
        "attention": attention_kind(model),
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position": model.max_position,
        "load": asdict(load),
        "kv": kv,
        "weights": weights,
        "fits": [asdict(one) for one in fits(model, gpus, formats or FORMATS_TRIED, load, degrees)],
    }
