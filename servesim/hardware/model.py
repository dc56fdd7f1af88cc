"""The shape of a dense decoder, from its Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from servesim.errors import UserError, suggest

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Bytes of one weight or KV element. Scales of quantised formats (under 1 %) are not counted."""

_UNSUPPORTED = {
    "num_local_experts": "mixture of experts",
    "num_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "moe_intermediate_size": "mixture of experts",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "linear_num_key_heads": "linear attention",
    "ssm_cfg": "a state-space model",
    "state_size": "a state-space model",
    "mamba_d_state": "a state-space model",
    "vision_config": "a multi-modal model (give the config.json of its text model)",
    "text_config": "a multi-modal model (give the config.json of its text model)",
}
_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes of a dense decoder-only transformer (GQA or MHA), all counts before tensor parallelism."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    tie_embeddings: bool = False
    gated_mlp: bool = True
    """True: gate and up projections (SwiGLU); False: one up projection (OPT)."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_norm_bias: bool = False
    """LayerNorm with weight and bias instead of RMSNorm."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 with rotary positions."""
    sliding_window: int | None = None
    """Attention window of the config in tokens, if any. Noted only: costs and memory assume full
    attention."""
    dtype: str = "bf16"
    """The precision the checkpoint is published in."""

    @classmethod
    def load(cls, name_or_path: str) -> ModelSpec:
        """A bundled model by name, or any dense decoder from a `config.json` or the folder that holds one."""
        path = Path(name_or_path)
        if path.is_dir():
            path = path / "config.json"
        if path.suffix == ".json":
            if not path.is_file():
                raise UserError(f"model config {path} does not exist")
            return cls.from_config(_read_json(path.read_text(), str(path)), path.parent.name or path.stem)
        key = name_or_path.lower()
        if key not in bundled_models():
            raise UserError(f"unknown model {name_or_path!r}{suggest(key, bundled_models())}")
        text = resources.files("servesim.hardware").joinpath(f"models/{key}.json").read_text()
        return cls.from_config(_read_json(text, key), key)

    @classmethod
    def from_config(cls, config: dict[str, Any], name: str) -> ModelSpec:
        """From the content of a Hugging Face `config.json`; what the simulator cannot price is refused."""
        where = f"model config {name}"
        _refuse_unsupported(config, where)
        kind = config.get("model_type", "")
        hidden, heads = _count(config, "hidden_size", where), _count(config, "num_attention_heads", where)
        is_opt = kind == "opt"
        bias = bool(config.get("enable_bias", True)) if is_opt else bool(config.get("attention_bias", False))
        kv_heads = config.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise UserError(f"{where}: {heads} attention heads are not a multiple of {kv_heads} KV heads")
        positions = _count(config, "max_position_embeddings", where)
        return cls(
            name=name,
            num_layers=_count(config, "num_hidden_layers", where),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate_size=_count(config, "ffn_dim" if is_opt else "intermediate_size", where),
            vocab_size=_count(config, "vocab_size", where),
            max_position=positions,
            tie_embeddings=bool(config.get("tie_word_embeddings", is_opt)),
            gated_mlp=not is_opt and kind not in ("gpt_neox", "starcoder2", "phi", "nemotron"),
            qkv_bias=bias or kind == "qwen2",
            output_bias=bias,
            mlp_bias=bias if is_opt else bool(config.get("mlp_bias", False)),
            qk_norm=kind in ("qwen3", "gemma3", "gemma3_text", "olmo2"),
            layer_norm_bias=is_opt,
            # OPT's table has two rows more than positions: its indices start at 2.
            learned_positions=positions + 2 if is_opt else 0,
            sliding_window=config.get("sliding_window") if config.get("use_sliding_window", True) else None,
            dtype=_TORCH_DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "bf16"),
        )

    @property
    def q_size(self) -> int:
        """Width of the query projection and of the attention output."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the key (or value) projection."""
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_params(self) -> int:
        """Weights of token and position embeddings and, unless tied, of the LM head."""
        tables = 1 if self.tie_embeddings else 2
        return self.hidden_size * (tables * self.vocab_size + self.learned_positions)

    @property
    def layer_params(self) -> int:
        """Weights of one decoder layer."""
        h, q, kv, inter = self.hidden_size, self.q_size, self.kv_size, self.intermediate_size
        up = 2 if self.gated_mlp else 1
        linear = h * (q + 2 * kv) + q * h + (up + 1) * h * inter
        bias = self.qkv_bias * (q + 2 * kv) + self.output_bias * h + self.mlp_bias * (up * inter + h)
        norms = 2 * h * (2 if self.layer_norm_bias else 1) + (2 * self.head_dim if self.qk_norm else 0)
        return linear + bias + norms

    @property
    def num_params(self) -> int:
        """All weights, a tied embedding counted once."""
        final_norm = self.hidden_size * (2 if self.layer_norm_bias else 1)
        return self.num_layers * self.layer_params + self.embedding_params + final_norm

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights: linear layers in `dtype`, embeddings, LM head and norms never below 2 bytes
        (vLLM leaves them unquantised)."""
        wide = max(2.0, dtype_bytes(dtype))
        rest = self.num_params - self.num_layers * self.layer_params
        return int(self.num_layers * self.layer_params * dtype_bytes(dtype) + rest * wide)

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Bytes of keys and values one token keeps on one of `tp` GPUs, all layers (at least one KV head)."""
        return int(2 * self.num_layers * kv_heads_per_gpu(self, tp) * self.head_dim * dtype_bytes(dtype))


def kv_heads_per_gpu(model: ModelSpec, tp: int) -> int:
    """KV heads on each GPU; with fewer KV heads than GPUs every GPU holds a copy of one."""
    return max(1, model.num_kv_heads // tp)


def check_tp(model: ModelSpec, tp: int) -> None:
    """Refuse a tensor-parallel degree that does not divide the model's heads."""
    if tp < 1 or model.num_heads % tp or (model.num_kv_heads % tp and tp % model.num_kv_heads):
        fits = [
            t
            for t in (1, 2, 4, 8, 16)
            if model.num_heads % t == 0 and (model.num_kv_heads % t == 0 or t % model.num_kv_heads == 0)
        ]
        raise UserError(
            f"tp = {tp} does not divide the {model.num_heads} attention and {model.num_kv_heads} KV heads "
            f"of {model.name} (choose from: {', '.join(map(str, fits))})"
        )


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element of `dtype`."""
    if dtype not in DTYPE_BYTES:
        raise UserError(f"unknown dtype {dtype!r}{suggest(dtype, DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def bundled_models() -> list[str]:
    """Names `ModelSpec.load` knows without a file."""
    folder = resources.files("servesim.hardware").joinpath("models")
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def _read_json(text: str, where: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"model config {where}: line {error.lineno} is not JSON: {error.msg}") from error
    if not isinstance(config, dict):
        raise UserError(f"model config {where} is not a JSON object")
    return config


def _count(config: dict[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise UserError(f"{where}: {key} must be a positive integer, not {value!r}")
    return value


def _refuse_unsupported(config: dict[str, Any], where: str) -> None:
    for key, what in _UNSUPPORTED.items():
        if config.get(key):
            raise UserError(f"{where}: {key} makes it {what}; only dense decoders are supported")
    if config.get("is_encoder_decoder"):
        raise UserError(f"{where}: is_encoder_decoder is set; only dense decoders are supported")
    hidden = config.get("hidden_size")
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise UserError(f"{where}: word_embed_proj_dim differs from hidden_size, which is not supported")
