"""Claims of lecture texts about memory: KV cache, weights by format, attention matrices, and allocator waste."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servesim.hardware import Gpu, ModelSpec, bundled_models
from servesim.hardware.footprint import Load, changed, fit
from servesim.hardware.layers import dtype_bytes

from . import Bars, Given, Outcome, Row, amount, experiment
from .lengths import poisson, sharegpt
from .pagedattention import Bench, Run

GB, GIB, MB, KB = 1e9, 2**30, 1e6, 1e3


@experiment(
    "memory",
    group="memory",
    claim="KV cache by attention, weights by format, attention matrices, and what contiguous and paged memory waste",
    source="lecture texts on efficient inference; Kwon et al., SOSP 2023",
)
def memory(given: Given) -> Outcome:
    """Compute every figure from model shapes and the memory of simulated servers."""
    outcome = Outcome()
    _formula(outcome, given)
    _seventy(outcome, given)
    _smaller(outcome, given)
    _kinds(outcome, given)
    _weights(outcome, given)
    _quantised(outcome, given)
    _naive_attention(outcome, given)
    waste(outcome, given)
    outcome.notes = [
        "GB are 10^9 and GiB 2^30 bytes; texts often say GB and mean GiB",
        "waste: OPT-13B with 12 GiB of KV memory on one A100-40G, ShareGPT lengths, more requests than fit: whatever "
        "holds no token state is waste, since requests wait for it",
    ]
    return outcome


def _formula(outcome: Outcome, given: Given) -> None:
    models = [ModelSpec.load(name) for name in bundled_models()]
    plain = [m for m in models if m.latent is None and not m.sliding_window and all(x.owns_kv for x in m.layers)]
    tokens, batch, size = 4096, 8, dtype_bytes(given["kv_dtype"])
    agree = sum(
        batch * m.kv_bytes(tokens, given["kv_dtype"])
        == 2 * m.num_layers * m.num_kv_heads * m.head_dim * tokens * batch * size
        for m in plain
    )
    outcome.holds(
        "KV bytes",
        "2 x layers x KV heads x head size x tokens x batch x bytes",
        f"the same for {agree} of {len(plain)} models",
        agree == len(plain),
        otherwise="corrected",
        note=f"{len(models) - len(plain)} other bundled models have latents or windows, and keep less",
    )


def _seventy(outcome: Outcome, given: Given) -> None:
    grouped, all_heads = ModelSpec.load(given["seventy"]), changed(given["seventy"], given["multi_head"])
    many, dtype = given["many"], given["kv_dtype"]
    long, long_grouped = all_heads.kv_bytes(32_000, dtype), grouped.kv_bytes(32_000, dtype)
    short, crowd = grouped.kv_bytes(4096, dtype), many["sequences"] * grouped.kv_bytes(many["context"], dtype)
    outcome.near("70B, 64 KV heads, 32,000 tokens", 84, long / GB, "GB", within=0.01)
    outcome.near("70B, 8 KV heads, 32,000 tokens", 10.5, long_grouped / GB, "GB", within=0.01)
    outcome.near("70B, 8 KV heads, 4,096 tokens", 1.34, short / GB, "GB", within=0.01)
    crowded = f"{many['sequences']} x {many['context']:,} tokens"
    outcome.near(f"70B, 8 KV heads, {crowded}", 172, crowd / GB, "GB", within=0.01, otherwise="corrected")
    full = f"with 64 KV heads {amount(all_heads.kv_bytes(4096, dtype) / GB, 'GB')}"
    for published in (2.5, 40.0):
        outcome.near("70B, 4,096 tokens", published, short / GB, "GB", within=0.05, otherwise="corrected", note=full)
    weights = grouped.weight_bytes("bf16")
    outcome.holds(
        "70B: 84 GB of KV against the weights",
        "larger than the weights themselves",
        f"{amount(long / GB)} GB of KV, {amount(weights / GB)} GB of weights in bf16",
        long > weights,
        otherwise="corrected",
        cause=f"it is true of {crowded}: {amount(crowd / GB, 'GB')}",
    )


def _smaller(outcome: Outcome, given: Given) -> None:
    eight, seven, dtype = ModelSpec.load(given["eight"]), ModelSpec.load(given["seven"]), given["kv_dtype"]
    outcome.near("Llama-3-8B, a token", 2.5e6, eight.kv_bytes_per_token(dtype), "B", within=0.05, otherwise="corrected")
    long = eight.kv_bytes(131_072, dtype)
    outcome.near("Llama-3-8B, 131,072 tokens", 320, long / GB, "GB", within=0.05, otherwise="corrected")
    for what, published, size in (
        ("Llama-3-8B, 131,072 tokens, another text", 16, long),
        ("7B, 4,096 tokens", 2, seven.kv_bytes(4096, dtype)),
    ):
        outcome.holds(what, f"{published} GB", _both(size), abs(size / GIB / published - 1) < 0.01, note="GB for GiB")


def _kinds(outcome: Outcome, given: Given) -> None:
    """Add the number of values cached per token and layer by kind of attention; the text counts only keys."""
    models = {kind: changed(given["seventy"], settings) for kind, settings in given["attention"].items()}
    note = "the text counts keys alone; values are cached too"
    for kind, keys in (("MHA", 8192), ("GQA-8", 1024), ("MQA", 128)):
        found = models[kind].kv_elements()
        outcome.near(f"numbers a token and layer, {kind}", keys, found, otherwise="corrected", cause=note)
    mha, mla = models["MHA"].kv_elements(), models["MLA"].kv_elements()
    outcome.near("numbers a token and layer, MLA", 576, mla, note="one latent serves as key and value")
    outcome.near("MHA to MLA", 14, mha / mla, "x", within=0.05, otherwise="corrected")
    grouped, window, shared = (
        models[k] for k in ("GQA-8", "GQA-8, window of 4,096", "GQA-8, shared by pairs of layers")
    )
    kept = window.kv_bytes(32_768) / window.kv_bytes_per_token()
    outcome.near("tokens kept of 32,768, window of 4,096", 4096, kept)
    ratio = shared.kv_bytes_per_token() / grouped.kv_bytes_per_token()
    outcome.near("KV of layers that share it by pairs", 0.5, ratio, "x")
    sizes = {kind: model.kv_bytes(32_768) / 32_768 / KB for kind, model in models.items()}
    outcome.figures.append(
        Bars(
            name="kv-by-attention",
            title="KV cache of a token, 70B, all layers",
            alt="; ".join(f"{kind}: {amount(size, 'kB')}" for kind, size in sizes.items()) + ".",
            x_label="kB a token at 32,768 tokens, 16 bits",
            rows={kind: [size] for kind, size in sizes.items()},
        )
    )


def _weights(outcome: Outcome, given: Given) -> None:
    seventy, seven = ModelSpec.load(given["seventy"]), ModelSpec.load(given["seven"])

    def plain(model: ModelSpec, weights: str) -> float:
        return model.num_params * dtype_bytes(weights) / GB

    for weights, published in (("fp32", 280.0), ("bf16", 140.0), ("fp8", 70.0), ("int8", 70.0), ("int4", 35.0)):
        outcome.near(f"70B weights in {weights}", published, plain(seventy, weights), "GB", within=0.02)
    cards = [Gpu.load(name) for name in given["consumer_gpus"]]
    on = [fit(seventy, card, 1, "int4", Load(context=1, kv_dtype=given["kv_dtype"])) for card in cards]
    held = sum(one.num_blocks > 0 for one in on)
    sizes = " and ".join(amount(card.memory_bytes / GB) for card in cards)
    outcome.holds(
        "70B in int4 on one consumer GPU",
        "it fits",
        f"{amount(on[0].weight_bytes / GB)} GB against {sizes} GB of memory",
        held > 0,
        otherwise="corrected",
        cause=f"{', '.join(card.name for card in cards)}; embeddings and LM head in 16 bits",
    )
    for weights, published in (("int8", 7.0), ("int4", 3.5), ("q4_k_m", 4.0), ("int3", 2.6)):
        outcome.near(f"7B weights in {weights}", published, plain(seven, weights), "GB", within=0.05)
    low, high = plain(seven, "ternary"), seven.weight_bytes("ternary") / GB
    outcome.near(
        "7B weights in 1.58 bits",
        1.5,
        (low, high),
        "GB",
        within=0.05,
        note="all weights at 1.58 bits, and with embeddings and LM head in 16",
    )
    times = dtype_bytes("bf16") / dtype_bytes("int3")
    outcome.near("3 bits instead of 16", 4, times, "x less", within=0.05, otherwise="corrected")


def round_trip(values: Sequence[float], bits: int = 8) -> float:
    """Return the largest error of a symmetric quantization divided by the largest magnitude (LLM.int8(), arXiv
    2208.07339)."""
    x = np.asarray(values, dtype=np.float64)
    scale = float(np.abs(x).max()) / (2 ** (bits - 1) - 1)
    return float(np.abs(np.rint(x / scale) * scale - x).max())


def _quantised(outcome: Outcome, given: Given) -> None:
    what = f"int8 round trip of [{', '.join(f'{v:g}' for v in given['quantised'])}]: largest error"
    note = "half a step of 1/127"
    outcome.near(what, 0.001, round_trip(given["quantised"]), within=0.1, otherwise="corrected", note=note)


def _naive_attention(outcome: Outcome, given: Given) -> None:
    """Add the attention scores of all token pairs when written to memory."""
    asked, heads = given["naive_attention"], ModelSpec.load(given["seventy"]).num_heads
    tokens, long, tile = asked["tokens"], asked["long_tokens"], asked["tile"]
    head = tokens**2 * dtype_bytes("fp16")
    outcome.near(f"attention matrix, {tokens:,} tokens, a head in fp16", 134, head / MB, "MB", within=0.01)
    layer = heads * head
    what = f"attention matrices, {tokens:,} tokens, a layer of {heads} heads"
    outcome.holds(what, "about 8 GB", _both(layer), abs(layer / GIB / 8 - 1) < 0.05)
    size = long**2 * dtype_bytes("fp32")
    outcome.near(f"attention matrix, {long:,} tokens, a head in fp32", 4.3, size / GB, "GB", within=0.01)
    tiled = tile**2 * dtype_bytes("fp16") / KB
    outcome.near(f"a tile of {tile} x {tile} in fp16", 131, tiled, "kB", within=0.01)


def waste(outcome: Outcome, given: Given) -> dict[str, Run]:
    """Add the KV memory without token state while requests wait, and the number of requests held, by allocator."""
    asked = given["waste"]
    trace = poisson("sharegpt", sharegpt(asked["requests"], 0), float(asked["rate"]), 0)
    bench = Bench(asked, 0.0)
    runs = {name: bench.serve(name, trace) for name in asked["systems"]}
    for name, run in runs.items():
        wasted, inside = 100 * (1 - run.used), f"{amount(100 * run.reserved, '%')} allocated and not filled"
        what = f"KV memory wasted, {name}"
        if name in ("contiguous, max", "contiguous, pow2", "contiguous, oracle"):
            outcome.near(what, (60, 80), wasted, "%", within=0.05, note=inside)
        elif name == "paged":
            outcome.near(what, 4, wasted, "%", within=0.25, note=inside)
        else:
            outcome.add(Row(what, "-", amount(wasted, "%"), "shown", inside))
    cause = "the paper has 4.3 x against reservations of the whole context, at a rate that does not fill paged memory"
    for name in ("oracle", "pow2", "max"):
        ratio = runs["paged"].batch / runs[f"contiguous, {name}"].batch
        what = f"requests held, paged to contiguous, {name}"
        outcome.near(what, (2, 4), ratio, "x", cause=cause)
    outcome.figures += _figures(runs)
    return runs


def _figures(runs: dict[str, Run]) -> list[Bars]:
    shares = {name: [100 * r.used, 100 * r.reserved, 100 * (1 - r.used - r.reserved)] for name, r in runs.items()}
    series = ("token states", "allocated and not filled", "not allocated")
    said = "; ".join(f"{name}: {amount(parts[0], '%')} token states" for name, parts in shares.items())
    held = "; ".join(f"{name}: {run.batch:.1f}" for name, run in runs.items())
    return [
        Bars("held", "Requests held", held + ".", "requests an iteration", {n: [r.batch] for n, r in runs.items()}),
        Bars("waste", "What the KV memory holds while requests wait", said + ".", "% of the memory", shares, series),
    ]


def _both(size: float) -> str:
    return f"{size / GIB:.2f} GiB = {amount(size / GB, 'GB')}"
