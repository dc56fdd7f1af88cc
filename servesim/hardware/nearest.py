"""Details for error messages: the layers of a `config.json` that cannot be priced, and the nearest bundled model."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from servesim.hardware.bundled import bundled_config, bundled_models

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_LINEAR = frozenset(("linear_attention", "mamba", "gated_deltanet", "kda", "recurrent", "conv"))
"""Values in `layer_types` for layers that keep a state instead of keys and values."""


def nearest(config: Mapping[str, Any]) -> str:
    """Return the bundled model whose sizes are nearest to a config's, comparing the logarithms of hidden size, layers,
    heads and experts, among models that also have (or also lack) experts. Return an empty string if the config states
    too little."""
    own = _text_of(config)
    mine = _sizes(own)
    if "hidden_size" not in mine or "num_hidden_layers" not in mine:
        return ""
    found: list[tuple[float, str]] = []
    for name in bundled_models():
        its = _sizes(bundled_config(name))
        its.setdefault("num_key_value_heads", its["num_attention_heads"])
        alike = (its["experts"] > 1) == (mine["experts"] > 1)
        found.append((sum(log(mine[k] / its[k]) ** 2 for k in its if k in mine) + 100.0 * (not alike), name))
    return min(found)[1]


def layers_of(config: Mapping[str, Any], key: str) -> str:
    """Return a description of the layers that a key of a config applies to: `layers 0-2, 4-6, ... (36 of 48)`, or all
    of them. Return an empty string if the config does not specify them."""
    own = _text_of(config)
    count = own.get("num_hidden_layers")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= 10_000:
        return ""
    chosen = _chosen(own, key, count)
    if len(chosen) == count:
        return f"all {count} layers"
    if not chosen:
        return ""
    runs: list[list[int]] = []
    for i in chosen:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    said = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:3])
    return f"layers {said}{', ...' if len(runs) > 3 else ''} ({len(chosen)} of {count})"


def _chosen(config: Mapping[str, Any], key: str, count: int) -> list[int]:
    """Return the layers that keep a state, or an empty list if the config does not specify them."""
    if key.startswith("index"):
        return list(range(count))
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == count:
        chunked = key == "attention_chunk_size"
        return [i for i, kind in enumerate(types) if (kind == "chunked_attention" if chunked else kind in _LINEAR)]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) == count:
        return [i for i, kind in enumerate(pattern) if kind == "M"]
    every = config.get("full_attention_interval")
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return [i for i in range(count) if (i + 1) % every]
    return []


def _text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's config from a multimodal config; return any other config unchanged."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    def size(key: str) -> int:
        value = config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    found = {key: size(key) for key in _SIZES if size(key)}
    return found | {"experts": max([1, *(size(key) for key in _EXPERTS)])}
