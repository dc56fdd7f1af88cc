"""Use of KV memory, and the savings from shared prefixes."""

from __future__ import annotations

from typing import Any

from servesim.reports.figures.kinds import Bars, Curve, Lines
from servesim.run.simulate import simulate

KINDS = {
    "longest, reserved": "contiguous:reservation=max",
    "power of two": "contiguous:reservation=pow2",
    "length known": "contiguous:reservation=oracle",
    "paged": "paged",
}
PROMPT = 2048
COMMON = (0, 256, 512, 1024, 1536, 1920)


def reservation(machine: dict[str, Any]) -> Bars:
    """Serve one load under each memory allocation scheme, and show the memory that is used, reserved but unused, and
    lost."""
    rows = {}
    batches = {}
    for label, kv in KINDS.items():
        summary = simulate(
            **machine,
            trace="synth:rate=1,prompt=lognormal(p50=160,p95=400),output=lognormal(p50=120,p95=400)",
            rate=float("inf"),
            requests=400,
            kv=kv,
            engine={"num_gpu_blocks": 2049, "max_model_len": 2048},
            conclude=False,
        ).summary
        shares = (summary["kv"][f"{part}_share"] for part in ("used", "internal", "external"))
        rows[label] = [100 * share for share in shares]
        batches[label] = summary["engine"]["batch_size"]["mean"]
    first, last = next(iter(KINDS)), list(KINDS)[-1]
    caption = (
        "The memory has room for 32,768 tokens. If space for the longest possible request is reserved, "
        f"{batches[first]:.0f} "
        f"requests fit at a time; with pages of 16 tokens, {batches[last]:.0f} fit."
    )
    series = ("filled", "reserved and empty", "lost between")
    return Bars("reservation", "Where KV memory goes", caption, "% of the memory", rows, series, caption=caption)


def prefixes(machine: dict[str, Any]) -> Lines:
    """Serve prompts with common prefixes, with and without a prefix cache."""
    curves = []
    for label, kv in (("without a prefix cache", "paged"), ("with one", "prefix-hash")):
        found = []
        for tokens in COMMON:
            shared: dict[str, Any] = {"shape": f"share:tokens={tokens},groups=4"} if tokens else {}
            summary = simulate(
                **machine,
                trace=f"synth:rate=8,prompt={PROMPT},output=64",
                requests=160,
                kv=kv,
                conclude=False,
                **shared,
            ).summary
            found.append(summary["latency_ms"]["ttft"]["mean"])
        curves.append(Curve(label, COMMON, found))
    without, cached = curves[0].y[-1], curves[1].y[-1]
    caption = (
        f"Prompts of {PROMPT:,} tokens, 8 per second, in four groups. Where {COMMON[-1]:,} tokens are shared, the "
        f"mean time to first token is {cached:.0f} ms with a prefix cache and {without:.0f} ms without."
    )
    return Lines("prefixes", "A shared prefix", caption, "tokens in common", "mean TTFT, ms", curves, caption=caption)
