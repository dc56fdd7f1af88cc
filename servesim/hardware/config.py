"""Conversion of a Hugging Face `config.json` into the shapes of a decoder; unsupported parts are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.errors import UserError, shown, suggest
from servesim.hardware.layers import Experts, Indexer, Latent, Layer
from servesim.hardware.nearest import layers_of, nearest
from servesim.hardware.recurrent import layers_with_states, recurrent_of
from servesim.untrusted import parse_yaml

_UNSUPPORTED = {
    "ssm_cfg": "a state-space model",
    "state_size": "a state-space model",
    "mamba_d_state": "a state-space model",
    "vision_config": "a multi-modal model (specify the config.json of its text model)",
    "text_config": "a multi-modal model (specify the config.json of its text model)",
    "indexer_types": "sparse attention whose layers share an index (GLM-5.2)",
    "index_topk_freq": "sparse attention whose layers share an index",
    "moe_latent_size": "a model with experts that work in a latent space (Nemotron 3 Super and Ultra)",
    "routed_expert_hidden_size": "a model with experts that work in a latent space (Kimi-K3)",
    "attn_res_block_size": "a model with attention over earlier layers (Kimi-K3)",
    "attention_chunk_size": "chunked attention",
    "altup_num_inputs": "a model with alternating updates (Gemma 3n)",
    "hidden_size_per_layer_input": "a model with embeddings in every layer (Gemma 3n, Gemma 4)",
    "global_head_dim": "a model whose full-attention layers have different heads (Gemma 4)",
}
KNOWN_TYPES = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"),
        *("gpt_oss", "opt", "deepseek_v2", "deepseek_v3", "kimi_k2", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe"),
        *("phi3", "olmo", "olmo2", "granite", "internlm2", "internlm3", "smollm3", "starcoder2", "gemma3"),
        *("gpt_neox", "phi", "nemotron", "minimax_m2", "glm4", "glm4_moe", "seed_oss", "ernie4_5", "ernie4_5_moe"),
        *("olmoe", "granitemoe", "stablelm", "cohere", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        *("nemotron_h", "kimi_linear", "deepseek_v32", "glm_moe_dsa", "llama4_text"),
    )
)
"""Values of `model_type` whose decoders consist of parts that servesim prices: attention with grouped heads, and a
dense MLP or experts in each layer. A config.json without `model_type` is accepted, because it does not claim to be
anything else."""
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True, "linear_attention": False}
_LLAMA4 = "llama4_text"
_QWEN_NEXT = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SHARED_COUNTS = ("n_shared_experts", "num_shared_expert", "num_shared_experts")
_SHARED_SIZES = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
_TOPK = ("moe_topk", "num_experts_per_token")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_POSITIVE = (
    "num_key_value_heads",
    "head_dim",
    "attention_head_dim",
    "cla_share_factor",
    "decoder_sparse_step",
    "interleave_moe_layer_step",
)
_WHOLE = (
    *_EXPERT_COUNTS, "sliding_window", "sliding_window_pattern", "max_window_layers", "moe_intermediate_size",
    *_SHARED_SIZES, *_SHARED_COUNTS, "first_k_dense_replace",
    "num_kv_shared_layers", "kv_lora_rank", "q_lora_rank",
)  # fmt: skip
"""Keys that may be missing or null, and must otherwise be whole numbers."""
MOST_LAYERS = 10_000
_KINDS = {"layer_types": list, "mlp_only_layers": list, "quantization_config": dict, "model_type": str}


def model_fields(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of `ModelSpec` except its name."""
    _refuse_unsupported(config, where)
    _check_types(config, where)
    _refuse_unknown(config, where)
    kind = config.get("model_type") or ""
    hidden, heads = _count(config, "hidden_size", where), _count(config, "num_attention_heads", where)
    is_opt = kind == "opt"
    bias = bool(config.get("enable_bias", True)) if is_opt else bool(config.get("attention_bias", False))
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise UserError(f"{where}: {heads} attention heads are not a multiple of {kv_heads} KV heads")
    head_dim = config.get("head_dim") or config.get("attention_head_dim") or hidden // heads
    if not head_dim:
        raise UserError(f"{where}: hidden_size {hidden} is less than the number of attention heads, {heads}")
    positions = _count(config, "max_position_embeddings", where)
    experts, recurrent = _experts(config, kind, where), recurrent_of(config, where)
    layers = _layers(config, experts is not None, where)
    return {
        "num_layers": _count(config, "num_hidden_layers", where, MOST_LAYERS),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": _dense_width(config, is_opt, layers, where),
        "vocab_size": _count(config, "vocab_size", where),
        "max_position": positions,
        "tie_embeddings": bool(config.get("tie_word_embeddings", is_opt or kind.startswith("gemma"))),
        "gated_mlp": not is_opt and kind not in ("gpt_neox", "starcoder2", "phi", "nemotron", "nemotron_h"),
        "qkv_bias": bias or kind in ("qwen2", "qwen2_moe"),
        "output_bias": bias,
        "mlp_bias": bias if is_opt else bool(config.get("mlp_bias", False)),
        "qk_norm": kind in (*_QWEN_NEXT, "qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2")
        or bool(config.get("use_qk_norm")),
        "qk_norm_all_heads": config.get("qk_norm_type") == "per_layer",
        "norms_per_layer": 4 if kind.startswith(("gemma2", "gemma3")) else 1 if kind == "nemotron_h" else 2,
        "attention_sinks": kind == "gpt_oss",
        "layer_norm_bias": is_opt,
        # OPT's table has two more rows than positions: its indices start at 2.
        "learned_positions": positions + 2 if is_opt else 0,
        "experts": experts,
        "latent": _latent(config, where),
        "chunked": kind == _LLAMA4,
        "recurrent": recurrent,
        "attention_gate": bool(config.get("attn_output_gate", kind == "qwen3_next")),
        "layer_kinds": layers if recurrent is None else layers_with_states(config, layers, where),
        "dtype": _TORCH_DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "bf16"),
        "block_scaled": bool((config.get("quantization_config") or {}).get("weight_block_size")),
        "model_type": kind,
    }


def _dense_width(config: dict[str, Any], is_opt: bool, layers: tuple[Layer, ...], where: str) -> int:
    """Return the width of a dense MLP, or 0 if every layer has experts and no such width is stated."""
    key = "ffn_dim" if is_opt else "intermediate_size"
    if config.get("model_type") == _LLAMA4:
        key = "intermediate_size_mlp"
    if config.get(key) is None and all(layer.experts for layer in layers):
        return 0
    return _count(config, key, where)


def changed_config(config: dict[str, Any], name: str, changes: Mapping[str, str]) -> dict[str, Any]:
    """Return the `config.json` of a model with some keys changed, their values parsed as YAML; raise UserError for a
    key that is never read."""
    values = {key: parse_yaml(text, f"model.{key}") for key, text in changes.items()}
    read = _Reading(config | values)
    model_fields(read, f"model config {name}")
    for key in values:
        if key not in read.keys_read:
            raise UserError(f"model.{key}: not used by {name}{suggest(key, read.keys_read)}")
    return config | values


class _Reading(dict[str, Any]):
    """A config that records which of its keys were read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.keys_read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)


def _experts(config: dict[str, Any], kind: str, where: str) -> Experts | None:
    count = next((config[key] for key in _EXPERT_COUNTS if config.get(key)), 0)
    if not count:
        return None
    size = config.get("moe_intermediate_size") or _count(config, "intermediate_size", where)
    shared_experts = next((config[key] for key in _SHARED_COUNTS if config.get(key)), 0)
    shared_experts = 1 if kind == _LLAMA4 else shared_experts
    shared = next((config[key] for key in _SHARED_SIZES if config.get(key)), shared_experts * size)
    return Experts(
        count=count,
        per_token=_count(config, next((k for k in _TOPK if k in config), "num_experts_per_tok"), where),
        size=size,
        shared_size=shared,
        gated=kind != "nemotron_h",
        bias=kind == "gpt_oss",
        dtype=_experts_dtype(config.get("quantization_config") or {}),
    )


def _experts_dtype(quantized: dict[str, Any]) -> str | None:
    """Return the format of experts that are quantized while attention is not, or None if all layers have the same
    format."""
    if quantized.get("quant_method") == "mxfp4":
        return "mxfp4"
    if not any("self_attn" in str(name) for name in quantized.get("ignore") or ()):
        return None
    if quantized.get("quant_algo") == "NVFP4":
        return "nvfp4"
    groups = quantized.get("config_groups")
    weights = [
        g.get("weights") or {} for g in (groups.values() if isinstance(groups, dict) else ()) if isinstance(g, dict)
    ]
    return "int4" if any((w.get("num_bits"), w.get("type")) == (4, "int") for w in weights) else None


def _latent(config: dict[str, Any], where: str) -> Latent | None:
    if not config.get("kv_lora_rank"):
        if config.get("index_topk"):
            raise UserError(
                f"{where}: index_topk indicates sparse attention, which is not supported without kv_lora_rank"
            )
        return None
    return Latent(
        kv_rank=_count(config, "kv_lora_rank", where),
        rope_dim=_count(config, "qk_rope_head_dim", where),
        nope_dim=_count(config, "qk_nope_head_dim", where),
        v_dim=_count(config, "v_head_dim", where),
        q_rank=config.get("q_lora_rank") or 0,
        indexer=_indexer(config, where),
    )


def _indexer(config: dict[str, Any], where: str) -> Indexer | None:
    if not config.get("index_topk"):
        return None
    heads, dim = (_count(config, key, where) for key in ("index_n_heads", "index_head_dim"))
    return Indexer(heads, dim, _count(config, "index_topk", where))


def _layers(config: dict[str, Any], experts: bool, where: str) -> tuple[Layer, ...]:
    """Return the kind of every layer."""
    count = _count(config, "num_hidden_layers", where, MOST_LAYERS)
    windows, dense = _windows(config, count, where), _dense_layers(config, count)
    shared = _kv_shared(config, count, where)
    return tuple(Layer(windows[i], experts and i not in dense, i not in shared) for i in range(count))


def _windows(config: dict[str, Any], count: int, where: str) -> list[int]:
    if config.get("model_type") == _LLAMA4:  # chunked attention, every fourth layer full
        chunk = _count(config, "attention_chunk_size", where)
        return [chunk if (i + 1) % 4 else 0 for i in range(count)]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    types = config.get("layer_types")
    if types is not None:
        unknown = [t for t in types if t not in list(_LAYER_TYPES)]
        if unknown:
            raise UserError(f"{where}: layers of type {shown(unknown[0])} are not supported")
        if len(types) != count:
            raise UserError(f"{where}: layer_types lists {len(types)} of {count} layers")
        slides = [_LAYER_TYPES[t] for t in types]
    elif config.get("sliding_window_pattern"):  # one full layer closes every such group
        slides = [(i + 1) % config["sliding_window_pattern"] != 0 for i in range(count)]
    elif config.get("model_type") == "gemma2":
        slides = [i % 2 == 0 for i in range(count)]
    else:
        slides = [i >= (config.get("max_window_layers") or 0) for i in range(count)]
        if not window:
            return [0] * count
    if any(slides) and not window:
        raise UserError(f"{where}: some layers use a sliding window, but sliding_window is {shown(window)}")
    return [int(window or 0) if s else 0 for s in slides]


def _dense_layers(config: dict[str, Any], count: int) -> set[int]:
    """Return the layers of a mixture-of-experts model that have a dense MLP instead."""
    dense = set(range(config.get("first_k_dense_replace") or 0)) | set(config.get("mlp_only_layers") or [])
    every = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step") or 1
    return dense | {i for i in range(count) if (i + 1) % every}


def _kv_shared(config: dict[str, Any], count: int, where: str) -> set[int]:
    """Return the layers that attend to the KV of an earlier one: the last ones (num_kv_shared_layers), or all but the
    first of every group (cla_share_factor, if use_cla is set)."""
    last = config.get("num_kv_shared_layers") or 0
    if not 0 <= last < count:
        raise UserError(f"{where}: num_kv_shared_layers must be from 0 to {count - 1}, not {last}")
    factor = (config.get("cla_share_factor") or 1) if config.get("use_cla") else 1
    return set(range(count - last, count)) | {i for i in range(count) if i % factor}


def _check_types(config: dict[str, Any], where: str) -> None:
    for keys, least, what in ((_POSITIVE, 1, "a positive integer"), (_WHOLE, 0, "a whole number")):
        for key in keys:
            value = config.get(key)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UserError(f"{where}: {key} must be {what} or null, not {shown(value)}")
    for key, kind in _KINDS.items():
        if config.get(key) is not None and not isinstance(config[key], kind):
            raise UserError(f"{where}: {key} must be a {kind.__name__} or null, not {shown(config[key])}")


def _count(config: dict[str, Any], key: str, where: str, most: int = 1 << 40) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UserError(f"{where}: {key} must be a positive integer, not {shown(value)}")
    if value > most:
        raise UserError(f"{where}: {key} is {value} but must be at most {most:,}")
    return value


def _refuse_unknown(config: dict[str, Any], where: str) -> None:
    """Raise UserError for an architecture that servesim does not support, because the cost of its layers is unknown."""
    kind = config.get("model_type")
    if kind and kind not in KNOWN_TYPES:
        raise UserError(
            f"{where}: model_type {shown(kind)} is unknown{suggest(str(kind), KNOWN_TYPES, 70)}. If the layers match "
            'a known type, set that type in a copy of the file ("model_type": "llama" for a dense decoder)'
            + (f"; nearest in size: {near}" if (near := nearest(config)) else "")
        )


def _refuse_unsupported(config: dict[str, Any], where: str) -> None:
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else {}  # unsupported keys there matter more than a wrapper
    for key, what in [*(pair for pair in _UNSUPPORTED.items() if text.get(pair[0])), *_UNSUPPORTED.items()]:
        if key == "attention_chunk_size" and config.get("model_type") == _LLAMA4:
            continue
        if config.get(key) or text.get(key):
            which = "" if key in ("vision_config", "text_config") else layers_of(config, key)
            found = f"{where}: {key} indicates {what}, which is not supported" + (f": {which}" if which else "")
            near = nearest(config)
            raise UserError(found + (f"; {near} is the supported model nearest in size" if near else ""))
    if config.get("is_encoder_decoder"):
        raise UserError(f"{where}: is_encoder_decoder is set; only decoders are supported")
    hidden = config.get("hidden_size")
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise UserError(f"{where}: word_embed_proj_dim differs from hidden_size, which is not supported")
