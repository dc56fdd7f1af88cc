"""Prompts and outputs under the GPU's roofline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.cost import build_cost_model
from servesim.cost.roofline import Roof, Steps, decode_step, prefill_step
from servesim.hardware import Gpu, ModelSpec
from servesim.reports.roofline_page import drawing_of
from servesim.reports.svg import Drawing

BATCHES = (1, 16, 64, 256)
CONTEXT = 512
PROMPTS = (512, 4096)


def roofs(machine: dict[str, Any]) -> Drawing:
    """Draw steps of both kinds: arithmetic intensity against achieved FLOP/s."""
    model, gpu = ModelSpec.load(machine["model"]), Gpu.load(machine["gpu"])
    roof = Roof(model, gpu, 1, "bf16", "bf16", build_cost_model(model, gpu, 1, "bf16", kv_dtype="bf16"))
    steps = []
    for batch in BATCHES:
        steps.append(Steps(roof, f"decode, {batch}", "decode"))
        steps[-1].add(decode_step(batch, CONTEXT))
    for tokens in PROMPTS:
        steps.append(Steps(roof, f"prompt of {tokens:,}", "prefill"))
        steps[-1].add(prefill_step(tokens))
    caption = (
        "A decode step reads all weights for one token per sequence, so memory is the limit (left of the ridge); "
        "the tokens of a prompt share one read of the weights, so compute is the limit. More sequences per step "
        "move decode to the right."
    )
    return replace(drawing_of(steps), name="two-phases", title="Prompts compute, answers read", caption=caption)
