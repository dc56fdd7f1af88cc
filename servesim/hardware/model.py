"""The shape of a decoder-only transformer, from its Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from servesim.errors import UserError, suggest
from servesim.hardware.bundled import bundled_config, bundled_models, config_of
from servesim.hardware.config import changed_config, model_fields
from servesim.hardware.layers import DTYPE_BYTES, Experts, Latent, Layer, dtype_bytes, wide_bytes
from servesim.hardware.names import Named, blocks_of, named
from servesim.hardware.recurrent import Recurrent
from servesim.parsing import split_changes
from servesim.untrusted import read_text

__all__ = [
    "DTYPE_BYTES",
    "ModelSpec",
    "bundled_models",
    "check_tp",
    "dtype_bytes",
    "kv_heads_per_gpu",
    "model_named",
    "read_config",
]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes of a decoder-only transformer (MHA, GQA or latent attention; dense or mixture of experts), all counts
    before tensor parallelism."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Width of the MLP of a dense layer."""
    vocab_size: int
    max_position: int
    tie_embeddings: bool = False
    gated_mlp: bool = True
    """Whether there are gate and up projections (SwiGLU) instead of one up projection (OPT)."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_all_heads: bool = False
    """Whether there is one norm over all heads of the queries and another over all heads of the keys; tensor-parallel
    GPUs then sum their shares."""
    norms_per_layer: int = 2
    attention_sinks: bool = False
    """Whether one learned logit per head joins the softmax; its cost is negligible."""
    layer_norm_bias: bool = False
    """Whether there is a LayerNorm with weight and bias instead of RMSNorm."""
    learned_positions: int = 0
    """Rows of a learned position table, or 0 with rotary positions."""
    experts: Experts | None = None
    latent: Latent | None = None
    recurrent: Recurrent | None = None
    """Sizes of the layers that keep a state."""
    attention_gate: bool = False
    """Whether the query projection also produces a gate of the same width, by which the output of attention is
    multiplied."""
    chunked: bool = False
    """Whether windows are chunks, in which a token attends only to its own chunk. The cost of a window is then exact up
    to the end of the first chunk; beyond it, the cost is up to twice that of a chunk. vLLM keeps all tokens of such
    layers."""
    layer_kinds: tuple[Layer, ...] = ()
    """The kind of every layer; if empty, all have full attention and one MLP."""
    dtype: str = "bf16"
    """The precision in which the checkpoint is published."""
    block_scaled: bool = False
    """Whether its fp8 weights have one scale per block, which uses other kernels than one scale per tensor."""
    model_type: str = ""
    """Family that the `config.json` names, from which engines choose the code of a model."""

    @classmethod
    def load(cls, name_or_path: str) -> ModelSpec:
        """Load a bundled model by name, or a decoder from a `config.json` or the folder that holds one."""
        return cls.from_config(*read_config(name_or_path))

    @classmethod
    def from_config(cls, config: dict[str, Any], name: str) -> ModelSpec:
        """Build a spec from the content of a Hugging Face `config.json`; refuse anything the simulator cannot price."""
        return cls(name=name, **model_fields(config, f"model config {name}"))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The kind of every layer, first to last."""
        return self.layer_kinds or (Layer(),) * self.num_layers

    @property
    def kept_layers(self) -> tuple[Layer, ...]:
        """The layers as memory treats them: layers with chunked attention keep all tokens."""
        return tuple(layer._replace(window=0) for layer in self.layers) if self.chunked else self.layers

    @property
    def sliding_window(self) -> int | None:
        """The window of the layers that have one."""
        return max(layer.window for layer in self.layers) or None

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
        """Number of weights of the token and position embeddings and, unless tied, of the LM head."""
        tables = 1 if self.tie_embeddings else 2
        return self.hidden_size * (tables * self.vocab_size + self.learned_positions)

    @property
    def attention_params(self) -> int:
        """Number of weights of attention and the norms of one layer that keeps KV."""
        h, q, kv = self.hidden_size, self.q_size, self.kv_size
        norms = self.norms_per_layer * h * (2 if self.layer_norm_bias else 1)
        if self.latent is not None:
            linear = sum(n * k for n, k in self.latent.linears(h, self.num_heads))
            return linear + norms + self.latent.q_rank + self.latent.kv_rank
        bias = self.qkv_bias * (q + 2 * kv) + self.output_bias * h + self.attention_sinks * self.num_heads
        queries = 2 * q if self.attention_gate else q
        return h * (queries + 2 * kv) + q * h + bias + norms + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def mlp_params(self) -> int:
        """Number of weights of the MLP of one dense layer."""
        h, inter, up = self.hidden_size, self.intermediate_size, 2 if self.gated_mlp else 1
        return (up + 1) * h * inter + self.mlp_bias * (up * inter + h)

    @property
    def layer_params(self) -> int:
        """Number of weights that one token passes through in a layer, averaged over the layers: only the experts it is
        routed to count."""
        total = 0.0
        for layer in self.layers:
            rest, router, experts = _layer_params(self, layer)
            routed = experts * self.experts.per_token // self.experts.count if self.experts else 0
            total += rest + router + routed
        return int(total) // self.num_layers

    @property
    def num_params(self) -> int:
        """Number of weights in total, with a tied embedding counted once."""
        final_norm = self.hidden_size * (2 if self.layer_norm_bias else 1)
        layers = sum(sum(_layer_params(self, layer)) for layer in self.layers)
        return layers + self.embedding_params + final_norm

    @property
    def experts_dtype(self) -> str | None:
        """The precision of the experts, regardless of the other layers; None if there are no experts."""
        return self.experts.dtype if self.experts else None

    def layer_bytes(self, layer: Layer, dtype: str) -> float:
        """Return the bytes of the weights of one layer with linear layers in `dtype`; the router takes at least 2 bytes
        per weight."""
        linear, router, experts = _layer_params(self, layer)
        experts_bytes = experts * dtype_bytes(self.experts_dtype or dtype)
        return linear * dtype_bytes(dtype) + router * wide_bytes(dtype) + experts_bytes

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of the weights: linear layers in `dtype`; embeddings, LM head and final norm at the size
        that `wide_bytes` returns."""
        final_norm = self.hidden_size * (2 if self.layer_norm_bias else 1)
        layers = sum(self.layer_bytes(layer, dtype) for layer in self.layers)
        return int(layers + (self.embedding_params + final_norm) * wide_bytes(dtype))

    def kv_elements(self, tp: int = 1) -> int:
        """Return the number of values that one token keeps on one of `tp` GPUs in one layer with KV: key and value of
        at least one KV head. Latent attention keeps one vector that serves as both, with a copy on every GPU."""
        if self.latent is not None:
            return self.latent.width
        return 2 * kv_heads_per_gpu(self, tp) * self.head_dim

    def kv_bytes_per_token_per_layer(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Return the bytes of the values that `kv_elements` counts, plus the keys by which sparse attention chooses
        tokens."""
        if self.latent is not None:
            return self.latent.token_bytes(dtype)
        return int(self.kv_elements(tp) * dtype_bytes(dtype))

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Return the bytes of keys and values that one token keeps on one of `tp` GPUs, over all layers, ignoring
        windows."""
        return sum(layer.owns_kv for layer in self.layers) * self.kv_bytes_per_token_per_layer(dtype, tp)

    def kv_bytes(self, tokens: int, dtype: str = "bf16", tp: int = 1) -> int:
        """Return the bytes of keys, values and states that a sequence of `tokens` tokens needs on one of `tp` GPUs:
        layers with a window keep only their window, and layers that attend to another layer's KV keep nothing."""
        kept = sum(min(layer.window or tokens, tokens) for layer in self.kept_layers if layer.owns_kv)
        return kept * self.kv_bytes_per_token_per_layer(dtype, tp) + self.state_bytes(tp)

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes of the states that a sequence of any length keeps on one of `tp` GPUs, over all layers."""
        if self.recurrent is None:
            return 0
        return sum(layer.recurrent for layer in self.layers) * self.recurrent.state_bytes(tp)


@cache
def _layer_params(model: ModelSpec, layer: Layer) -> tuple[int, int, int]:
    """Return the number of weights of one layer: (attention, norms and MLP or shared expert; router; experts)."""
    attention = model.attention_params
    norms = model.norms_per_layer * model.hidden_size
    if not layer.mixer:
        attention = norms
    elif layer.recurrent and model.recurrent is not None:
        attention = model.recurrent.params(model.hidden_size) + norms
    elif not layer.owns_kv and model.latent is None:  # no key and value projections
        attention -= 2 * model.kv_size * (model.hidden_size + model.qkv_bias) + model.qk_norm * model.head_dim
    if not layer.experts or model.experts is None:
        return attention + layer.mlp * model.mlp_params, 0, 0
    moe, h = model.experts, model.hidden_size
    return attention + moe.matrices * h * moe.shared_size, moe.router_params(h), moe.params(h)


def kv_heads_per_gpu(model: ModelSpec, tp: int) -> int:
    """Return the number of KV heads on each GPU; with fewer KV heads than GPUs, every GPU holds a copy of one."""
    return 1 if model.latent else max(1, model.num_kv_heads // tp)


def check_tp(model: ModelSpec, tp: int) -> None:
    """Raise UserError for a tensor-parallel degree that does not divide the model's heads."""

    def divides(t: int) -> bool:
        kv_heads = t if model.latent else model.num_kv_heads
        states = model.recurrent is None or model.recurrent.key_heads % t == 0
        return states and model.num_heads % t == 0 and (kv_heads % t == 0 or t % kv_heads == 0)

    if tp < 1 or not divides(tp):
        fits = ", ".join(str(t) for t in (1, 2, 4, 8, 16) if divides(t))
        raise UserError(
            f"tp = {tp} does not divide the {model.num_heads} attention and {model.num_kv_heads} KV heads "
            f"of {model.name} (choose from: {fits})"
        )
    dense = any(layer.mlp and not layer.experts for layer in model.layers)
    if dense and model.intermediate_size % tp:
        raise UserError(f"tp = {tp} does not divide the {model.intermediate_size} columns of the MLP of {model.name}")


def read_config(name_or_path: str) -> tuple[dict[str, Any], str]:
    """Read the `config.json` of a bundled model, a file or a folder; return its content, with the changes appended to
    the name (`llama-3.1-8b:num_hidden_layers=4`) applied, and the model's name."""
    name_or_path, changes = split_changes(name_or_path)
    if changes:
        config, name = read_config(name_or_path)
        return changed_config(config, name, changes), name
    if not name_or_path:
        raise UserError("no model is specified: use a bundled model such as llama-3.1-8b, or a config.json")
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        if not path.is_file():
            raise UserError(f"model config {path} does not exist")
        return config_of(read_text(path), str(path)), path.parent.name or path.stem
    found = model_named(name_or_path)
    if found is None:
        near = suggest(name_or_path.rpartition("/")[2].lower(), bundled_models())
        raise UserError(f"unknown model {name_or_path!r}{near}; for any other decoder, specify its config.json")
    return bundled_config(found.model) | blocks_of(found.model) | found.changes, found.model


def model_named(name: str) -> Named | None:
    """Return what a model name refers to, whether it is a bundled name or a Hugging Face id; None if the name is
    unknown."""
    key = name.lower()
    return Named(key) if key in bundled_models() else named(name, tuple(bundled_models()))
