"""Page of `servesim size`: the memory that models need, and the GPUs that can hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from servesim.reports.figures.described import draw
from servesim.reports.figures.kinds import Bars
from servesim.reports.page import Block, Page, Section, Table
from servesim.reports.words import gpu_of, name_of

Footprint = Mapping[str, Any]
"""Result of servesim.hardware.footprint.footprint."""
GPUS_DRAWN = 12


def size_page(models: Sequence[Footprint], notes: Sequence[str]) -> Page:
    """Return the page: the answer for each model first, then KV cache, weights and GPUs."""
    load = models[0]["load"]
    sections = [Section("Answer", [Block("list", "", [answer(one) for one in models], wide=True)])]
    for i, one in enumerate(models):
        fit_at_all = any(row["sequences"] for row in one["fits"])
        drawn = []
        if fit_at_all:
            drawn.append(Block("drawing", "", replace(draw(f"sequences-{i}", _bars(one)), wide=True)))
        known = [Block("table", "Memory", _memory(one)), Block("table", "Weights by format", _weights(one))]
        fits = Block("table", "GPUs", _fits(one), wide=True, text=_how_to_read(one))
        sections.append(Section(name_of(one["model"]), [*known, *drawn, fits]))
    sections.append(Section("How sure this is", [Block("list", "", list(notes), wide=True)]))
    return Page(
        "experiment",
        "size",
        "Memory of " + ", ".join(name_of(one["model"]) for one in models),
        f"{load['sequences']:,} sequence{'s' * (load['sequences'] != 1)} of {load['context']:,} tokens at a time",
        [
            ("KV cache", load["kv_dtype"]),
            ("block", f"{load['block_size']} tokens"),
            ("share of a GPU's memory", f"{load['memory_utilization']:.0%}"),
        ],
        values={"tiles": [], "sections": sections},
    )


def answer(one: Footprint) -> str:
    """Return a sentence that names the GPUs on which the load fits, fewest first."""
    load, name = one["load"], name_of(one["model"])
    held = [row for row in one["fits"] if row["sequences"] >= load["sequences"]]
    what = f"{load['sequences']:,} sequence{'s' * (load['sequences'] != 1)} of {load['context']:,} tokens"
    if not held:
        return f"{name}: none of the {len(one['fits'])} deployments below has room for {what}."
    fewest = min(row["tp"] for row in held)
    tightest = sorted((row for row in held if row["tp"] == fewest), key=lambda row: int(row["sequences"]))
    least = [f"{gpu_of(row['gpu'])} in {row['weights']} ({row['sequences']:,})" for row in tightest]
    verb = "is" if len(least) == 1 else "are"
    more = f" and {len(least) - 6} with more room" if len(least) > 6 else ""
    return (
        f"{name}: {len(held)} of the {len(one['fits'])} deployments below have room for {what}. The smallest of "
        f"these deployments use {fewest} GPU{'s' * (fewest != 1)}, and the tightest of these {verb} "
        f"{', '.join(least[:6])}{more}."
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e10 else f"{size / 1e9:.2f} GB"


def _memory(one: Footprint) -> Table:
    kv, load = one["kv"], one["load"]
    keep = sum(kind["layers"] for kind in kv["layers"] if kind["keeps"])
    rows = [
        ("weights", f"{one['params'] / 1e9:.2f} billion"),
        ("layers", f"{one['num_layers']:,}"),
        ("attention", one["attention"]),
        ("KV of a token in one layer", f"{kv['bytes_per_token_per_layer']:,} B"),
        (f"KV of a token in the {keep} layers that store it", f"{kv['bytes_per_token']:,} B"),
        (f"KV of {load['sequences']:,} × {load['context']:,} tokens", _gigabytes(kv["bytes"])),
        ("that is", f"{kv['blocks']:,} blocks"),
        ("positions it supports", f"{one['max_position']:,}"),
    ]
    return Table("Memory", ("", ""), rows)


def _weights(one: Footprint) -> Table:
    rows = [
        (row["format"], f"{row['bits']:g}", _gigabytes(row["all_bytes"]), _gigabytes(row["loaded_bytes"]))
        for row in one["weights"]
    ]
    return Table("Weights by format", ("format", "bits", "all in it", "as loaded"), rows)


def _fits(one: Footprint) -> Table:
    load = one["load"]
    rows = [
        (
            gpu_of(row["gpu"]),
            row["weights"],
            str(row["tp"]),
            _gigabytes(row["weight_bytes"]),
            f"{row['kv_tokens']:,}",
            f"{row['sequences']:,}",
            "holds it" if row["sequences"] >= load["sequences"] else row["reason"] or "too few",
        )
        for row in one["fits"]
    ]
    columns = ("GPU", "weights", "GPUs", "weights on each", "KV tokens", f"sequences of {load['context']:,}", "")
    return Table("GPUs", columns, rows, (False, False, True, True, True, True, False))


def _how_to_read(one: Footprint) -> str:
    context, most = one["load"]["context"], one["max_position"]
    beyond = f" The model supports {most:,} positions, fewer than {context:,}." if context > most else ""
    return (
        "The number of GPUs is the smallest of 1, 2, 4 and 8 that has room for the load, unless --tp sets it. Blocks "
        "are the KV blocks that vLLM can allocate after the weights, the peak of its profile run and CUDA "
        f"graphs.{beyond}"
    )


def _bars(one: Footprint) -> Bars:
    """Return the number of sequences that fit, by GPU and format; if there are many GPUs, return those that hold the
    most."""
    formats = list(dict.fromkeys(row["weights"] for row in one["fits"]))
    rows: dict[str, list[float | None]] = {}
    for row in one["fits"]:
        label = f"{row['tp']} × {gpu_of(row['gpu'])}"
        rows.setdefault(label, [None] * len(formats))[formats.index(row["weights"])] = row["sequences"]
    chosen = sorted(rows, key=lambda label: -max(v or 0 for v in rows[label]))[:GPUS_DRAWN]
    load = one["load"]
    alt = f"Sequences of {load['context']:,} tokens that fit at a time: " + "; ".join(
        f"{label}, " + ", ".join(f"{v:,.0f} in {f}" for v, f in zip(rows[label], formats, strict=True) if v is not None)
        for label in chosen
    )
    asked = (float(load["sequences"]), f"the {load['sequences']:,} requested") if load["sequences"] > 1 else None
    left_out = len(rows) - len(chosen)
    caption = f"Only the {len(chosen)} of {len(rows)} deployments with the most room are shown." if left_out else ""
    title, x_label = "Sequences that fit", f"sequences of {load['context']:,} tokens"
    return Bars("sequences", title, alt + ".", x_label, {k: rows[k] for k in chosen}, formats, False, asked, caption)
