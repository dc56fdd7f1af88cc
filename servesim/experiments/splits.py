"""Splits of GPUs between prefill and decode: `pd: 4` in a capacity question covers every split of 4 GPUs, plus unsplit
deployments of all GPUs as the baselines to beat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from servesim.errors import UserError
from servesim.experiments.axes import Variant

SIZES = (1, 2, 4, 8)
"""GPU counts per replica to try on each side."""
MOST_GPUS = 64


def split(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants, replacing each one whose `pd` is a number of GPUs with its splits. Raise UserError for a
    number that cannot be split."""
    found: list[Variant] = []
    for variant in variants:
        text = str(variant.settings.get("pd") or "")
        found += _splits(variant, int(text)) if re.fullmatch(r"\d+", text) else [variant]
    return found


def _splits(variant: Variant, gpus: int) -> Iterator[Variant]:
    if not 2 <= gpus <= MOST_GPUS:
        raise UserError(f"pd is {gpus} but must be 2 to {MOST_GPUS} GPUs, or REPLICASxTP:REPLICASxTP such as 2x1:1x4")
    for tp in _sizes(gpus):
        replicas = gpus // tp
        together = {"pd": None, "handoff": None, "tp": tp, "replicas": replicas}
        yield _named(variant, f"together {replicas}x{tp}", together)
    for pd in ratios(gpus):
        yield _named(variant, pd, {"pd": pd})


def ratios(gpus: int) -> list[str]:
    """Return every `pd` value that uses this number of GPUs in total, with replicas of any of the SIZES on each
    side."""
    return [
        f"{prefill // p}x{p}:{(gpus - prefill) // d}x{d}"
        for prefill in range(1, gpus)
        for p in _sizes(prefill)
        for d in _sizes(gpus - prefill)
    ]


def _sizes(gpus: int) -> list[int]:
    return [size for size in SIZES if gpus % size == 0]


def _named(variant: Variant, value: str, changes: Mapping[str, object]) -> Variant:
    others = {key: each for key, each in variant.axes.items() if key != "pd"}
    label = ", ".join([*(f"{key}={each}" for key, each in others.items()), f"pd={value}"])
    return Variant(label, {**others, "pd": value}, {**variant.settings, **changes})
