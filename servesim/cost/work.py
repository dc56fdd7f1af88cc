"""Arithmetic and memory traffic of a step: its place under the roofline."""

from __future__ import annotations

from functools import cache

from servesim.contracts.cost import Batch
from servesim.hardware.layers import Experts, dtype_bytes
from servesim.hardware.model import ModelSpec


def step_work(
    model: ModelSpec, batch: Batch, dtype: str = "bf16", kv_dtype: str = "bf16", tp: int = 1
) -> tuple[float, float]:
    """Return (FLOPs, bytes) that the GPUs of a step need together, without padding.

    FLOPs: 2 per weight that a token passes through, 2 per LM-head weight and sampled row, attention's two matrix
    products over every query-key pair (latent attention: over the compressed vectors), and the FLOPs per token of
    layers with a state. Bytes: weights once (only the experts expected to be used, with tokens routed uniformly),
    states of every sequence read and written, keys and values read for every context and written for every token, on
    each of the `tp` GPUs that holds a copy. Windows are applied to the mean context.
    """
    tokens = batch.linear_tokens
    params, data = _weights(model, dtype)
    flops = 2.0 * params * model.num_layers * tokens
    flops += 2.0 * model.hidden_size * model.vocab_size * batch.sampled
    kv_tokens = 0.0
    states = batch.decode_count + len(batch.prefill)
    indexer, scored = model.latent.indexer if model.latent is not None else None, 0.0
    attended: dict[int, tuple[float, float]] = {}
    per_pair = _flops_per_pair(model)
    for layer in model.layers:
        if layer.recurrent or not layer.mixer:
            continue
        if layer.window not in attended:
            attended[layer.window] = _attended(batch, chosen(model, layer.window))
        pairs, read = attended[layer.window]
        flops += per_pair * pairs
        kv_tokens += read + (tokens if layer.owns_kv else 0)
        if indexer is not None:
            every, of_all = _attended(batch, layer.window)
            flops += 2.0 * indexer.heads * indexer.dim * every
            scored += of_all - read
    if model.experts is not None:
        data -= _unused_bytes(model, model.experts, dtype, tokens)
    if indexer is not None:
        data += scored * indexer.key_bytes * tp  # the rest is not attended to
    data += 2.0 * states * model.state_bytes(tp) * tp  # read and written
    if model.recurrent is not None:
        of_token = 4.0 * model.recurrent.value_size * model.recurrent.key_dim
        flops += of_token * tokens * sum(layer.recurrent for layer in model.layers)
    data += kv_tokens * model.kv_bytes_per_token_per_layer(kv_dtype, tp) * tp
    return flops, data


def chosen(model: ModelSpec, window: int) -> int:
    """Return the maximum number of tokens that a query attends to in a layer with this window (0: all), but no more
    than its indexer selects."""
    if model.latent is None or model.latent.indexer is None:
        return window
    return min(window or model.latent.indexer.topk, model.latent.indexer.topk)


def _attended(batch: Batch, window: int) -> tuple[float, float]:
    """Return the number of query-key pairs and of tokens read in one layer."""
    pairs, read = decode_attended(batch, window)
    for new, past in batch.prefill:
        pairs += prefill_pairs(new, past, window)
        read += min(past, window) if window else past
    return pairs, read


def decode_attended(batch: Batch, window: int) -> tuple[float, float]:
    """Return the number of query-key pairs and of tokens read by the decoding sequences in one layer."""
    if not batch.decode_count:
        return 0.0, 0.0
    mean = batch.decode_context_sum / batch.decode_count
    read = batch.decode_count * (min(mean, window) if window else mean)
    return read * batch.queries_per_sequence, read


def prefill_pairs(new: int, past: int, window: int) -> float:
    """Return the number of query-key pairs of a prefill chunk in one layer."""
    past = min(past, window) if window else past
    own = min(new, window) if window else new
    return new * past + own * (own + 1) / 2 + (new - own) * own


def _flops_per_pair(model: ModelSpec) -> float:
    if model.latent is None:
        return 4.0 * model.q_size
    return 2.0 * model.num_heads * (model.latent.width + model.latent.kv_rank)


@cache
def _weights(model: ModelSpec, dtype: str) -> tuple[int, float]:
    """Return the weights that a token passes through in a mean layer, and the bytes of all weights that a step may
    read: embedding tables are only looked up."""
    looked_up = model.learned_positions + (0 if model.tie_embeddings else model.vocab_size)
    return model.layer_params, model.weight_bytes(dtype) - 2.0 * model.hidden_size * looked_up


def _unused_bytes(model: ModelSpec, moe: Experts, dtype: str, tokens: int) -> float:
    """Return the bytes of the experts to which no token is expected to be routed."""
    unused = 1.0 - moe.touched(tokens) / moe.count
    experts = sum(layer.experts for layer in model.layers) * moe.params(model.hidden_size)
    return unused * experts * dtype_bytes(moe.dtype or dtype)
