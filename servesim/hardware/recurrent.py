"""Layers that keep a state of constant size instead of keys and values: gated delta rule, Kimi delta attention, Mamba2.

Each consists of a short convolution and a recurrence over matrices, one per head
(vllm/model_executor/models/qwen3_next.py and layers/kda.py, layers/mamba/mamba_mixer2.py). The position and width of
these layers are read from `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servesim.errors import UserError, shown
from servesim.hardware.layers import DTYPE_BYTES, Layer

GDN, KDA, MAMBA2 = "gdn", "kda", "mamba2"
_STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_PARTS = {"M": "mixer", "*": "mixer", "E": "mlp", "-": "mlp"}
"""Nemotron-H's layers: Mamba2, attention, experts, MLP."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Widths of a layer with a state, before tensor parallelism."""

    kind: str
    """Kind of layer. `gdn`: the gated delta rule of Qwen3-Next and Qwen3.5; `kda`: Kimi delta attention; `mamba2`."""
    key_heads: int
    """Number of query and key heads; in Mamba2, number of groups."""
    value_heads: int
    key_dim: int
    """Width of a key; in Mamba2, the state size."""
    value_dim: int
    kernel: int
    """Number of tokens that the convolution spans."""
    state_dtype: str = "bf16"
    """Format of the state matrices; the convolution's cached inputs take 2 bytes per value."""

    @property
    def key_size(self) -> int:
        """Width of the keys, and of the queries."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of the values, of their gate, and of the layer's output before its projection."""
        return self.value_heads * self.value_dim

    def linears(self, hidden: int, tp: int = 1) -> list[tuple[int, int]]:
        """Return (output width, input width) of each projection on one of `tp` GPUs, with the output projection last.
        In `kda`, decay and gate are low-rank projections whose rank is the width of one head; their first factor is
        replicated on every GPU."""
        keys, values, heads = self.key_size // tp, self.value_size // tp, self.value_heads // tp
        out = (hidden, values)
        if self.kind == KDA:
            rank = (self.value_dim, hidden)
            low = [rank, (keys, self.value_dim), rank, (values, self.value_dim)]
            return [(2 * keys + values, hidden), *low, (heads, hidden), out]
        if self.kind == MAMBA2:
            return [(2 * keys + 2 * values + heads, hidden), out]
        return [(2 * keys + 2 * values, hidden), (2 * heads, hidden), out]

    def params(self, hidden: int) -> int:
        """Return the number of weights of the layer: projections, convolution, a decay and a bias per head, and the
        output norm."""
        channels = 2 * self.key_size + self.value_size
        biases = {GDN: 2 * self.value_heads, KDA: self.value_heads + self.key_size, MAMBA2: 3 * self.value_heads}
        norm = self.value_size if self.kind == MAMBA2 else self.value_dim
        convolution = channels * (self.kernel + (self.kind == MAMBA2))
        return sum(n * k for n, k in self.linears(hidden)) + convolution + biases[self.kind] + norm

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes that one sequence keeps on one of `tp` GPUs: the matrices, and the previous tokens that the
        convolution still needs."""
        matrices = self.value_heads * self.key_dim * self.value_dim * DTYPE_BYTES[self.state_dtype]
        return int(matrices + 2 * (self.kernel - 1) * (2 * self.key_size + self.value_size)) // tp


def recurrent_of(config: Mapping[str, Any], where: str) -> Recurrent | None:
    """Return the widths of the layers with a state in a config, or None if there are no such layers; raise UserError
    for widths that are not positive integers."""
    kda = config.get("linear_attn_config")
    if kda is not None and not isinstance(kda, Mapping):
        raise UserError(f"{where}: linear_attn_config must be an object, not {shown(kda)}")
    dtype = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    if dtype is not None and dtype not in list(_STATE_DTYPES):
        raise UserError(f"{where}: unsupported state format {shown(dtype)} (choose from: {', '.join(_STATE_DTYPES)})")

    def count(key: str, of: Mapping[str, Any] = config) -> int:
        value = of.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 1 << 20:
            raise UserError(f"{where}: {key} must be a positive integer, not {shown(value)}")
        return value

    if config.get("linear_num_key_heads"):
        keys, values = count("linear_num_key_heads"), count("linear_num_value_heads")
        widths = keys, values, count("linear_key_head_dim"), count("linear_value_head_dim")
        found = Recurrent(GDN, *widths, count("linear_conv_kernel_dim"), _STATE_DTYPES[dtype or "bfloat16"])
    elif kda:
        heads, dim = count("num_heads", kda), count("head_dim", kda)
        # The state is float32 regardless of the model's format.
        found = Recurrent(KDA, heads, heads, dim, dim, count("short_conv_kernel_size", kda), "fp32")
    elif config.get("hybrid_override_pattern"):
        widths = count("n_groups"), count("mamba_num_heads"), count("ssm_state_size"), count("mamba_head_dim")
        found = Recurrent(MAMBA2, *widths, count("conv_kernel"), _STATE_DTYPES[dtype or "bfloat16"])
    else:
        return None
    if found.value_heads % found.key_heads:
        raise UserError(
            f"{where}: the number of heads with a state, {found.value_heads}, is not a multiple of {found.key_heads}"
        )
    return found


def layers_with_states(config: Mapping[str, Any], layers: tuple[Layer, ...], where: str) -> tuple[Layer, ...]:
    """Return `layers` with the layers that keep a state marked as such and, for Nemotron-H, with the parts that each
    layer lacks marked too; raise UserError if the config does not specify which layers keep a state."""
    pattern, count = config.get("hybrid_override_pattern"), len(layers)
    if pattern is not None:
        if not isinstance(pattern, str) or len(pattern) != count or set(pattern) - set(_PARTS):
            raise UserError(f"{where}: hybrid_override_pattern must have M, *, E or - for each of {count} layers")
        return tuple(
            Layer(0, mark == "E", mark == "*", mark == "M", _PARTS[mark] == "mixer", _PARTS[mark] == "mlp")
            for mark in pattern
        )
    states = _states(config, count)
    if not states:
        raise UserError(f"{where}: some layers keep a state, but the config does not list which ones (layer_types)")
    if min(states) < 0 or max(states) >= count:
        raise UserError(f"{where}: some of the layers listed as keeping a state are not among the {count} layers")
    return tuple(
        layer._replace(owns_kv=False, recurrent=True, window=0) if i in states else layer
        for i, layer in enumerate(layers)
    )


def _states(config: Mapping[str, Any], count: int) -> set[int]:
    kda = config.get("linear_attn_config")
    if isinstance(kda, Mapping):
        stated = kda.get("kda_layers")
        return {i - 1 for i in stated if isinstance(i, int)} if isinstance(stated, list) else set()
    types = config.get("layer_types")
    if isinstance(types, list):
        return {i for i, kind in enumerate(types) if kind == "linear_attention"}
    every = config.get("full_attention_interval")
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return {i for i in range(count) if (i + 1) % every}
    return set()
