"""Canvases for a lecture: formulas of serving whose values move with sliders, on one page without a server.

`canvases.js` computes and draws them. Numbers of models and GPUs come from here, so that they are those of simulations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from servesim.cost.roofline import decode_step, prefill_step
from servesim.cost.work import step_work
from servesim.hardware import Gpu, ModelSpec, bundled_models, gpu_names


@dataclass(frozen=True)
class Slider:
    """Number that a slider sets and that can be typed, too."""

    key: str
    words: str
    low: float
    high: float
    value: float
    whole: bool = True
    logarithmic: bool = False

    @property
    def step(self) -> float:
        """Difference between neighboring values of a linear slider."""
        return 1 if self.whole else 0.01


@dataclass(frozen=True)
class Choice:
    """Value from a list."""

    key: str
    words: str
    choices: tuple[str, ...]
    value: str


@dataclass(frozen=True)
class Text:
    """Numbers that are typed, separated by commas."""

    key: str
    words: str
    value: str


@dataclass(frozen=True)
class Canvas:
    """One canvas: the question it answers, its controls, and what is computed from them."""

    name: str
    question: str
    controls: tuple[Slider | Choice | Text, ...]
    formula: str


def canvases(model: str, gpu: str) -> tuple[Canvas, ...]:
    """Return the canvases in lecture order. They begin with this model and GPU where those are among the choices."""
    models, gpus = tuple(plain_models()), tuple(gpu_names())
    first = plain_models()[model if model in models else "llama-3.1-8b"]
    chosen = Choice("model", "Model", models, first["name"])
    bought = Choice("gpu", "GPU", gpus, gpu if gpu in gpus else "h100")
    return (_kv(chosen, bought, first), _speculation(), _roofline(chosen, bought), _attention(bought), _quantization())


def _kv(chosen: Choice, bought: Choice, first: Mapping[str, Any]) -> Canvas:
    return Canvas(
        "kv",
        "How much memory does the KV cache take?",
        (
            chosen,
            Slider("layers", "Layers", 1, 130, first["layers"]),
            Slider("kv_heads", "KV heads", 1, 128, first["kv_heads"]),
            Slider("head_dim", "Head size", 16, 256, first["head_dim"]),
            Choice("kv_dtype", "KV values", ("bf16", "fp8"), "bf16"),
            Slider("tokens", "Tokens per sequence", 128, 131072, 4096, logarithmic=True),
            Slider("sequences", "Sequences", 1, 1024, 16, logarithmic=True),
            bought,
            Slider("gpus", "GPUs", 1, 16, 1),
        ),
        "A token keeps 2 (key and value) × layers × KV heads × head size values. The memory for KV is 90 % of the "
        "GPUs' memory less the model's bf16 weights; servesim size subtracts activations and CUDA graphs, too. "
        "Models with windows, latent attention or states are not among the choices: servesim size has them.",
    )


def _speculation() -> Canvas:
    return Canvas(
        "speculation",
        "How many tokens should a draft have?",
        (
            Slider("alpha", "Acceptance rate alpha", 0, 1, 0.8, whole=False),
            Slider("k", "Draft tokens k", 0, 16, 4),
            Slider("c", "Cost c of a draft token, in target steps", 0, 1, 0.05, whole=False),
        ),
        "A step yields (1 - alpha^(k + 1)) / (1 - alpha) tokens and costs 1 + k c target steps (Leviathan et al. "
        "2023, Theorem 3.8). It holds where verifying k + 1 tokens costs no more than one: with few sequences, "
        "left of the ridge of the roofline below.",
    )


def _roofline(chosen: Choice, bought: Choice) -> Canvas:
    return Canvas(
        "roofline",
        "Is a step bound by compute or by memory?",
        (
            chosen,
            bought,
            Slider("sequences", "Sequences that decode", 1, 2048, 16, logarithmic=True),
            Slider("context", "Tokens of context each", 1, 131072, 1024, logarithmic=True),
            Slider("prompt", "Tokens of a prompt", 1, 131072, 1024, logarithmic=True),
        ),
        "A step takes at least the larger of FLOPs / peak and bytes / bandwidth of the data sheet (bf16, one "
        "GPU), with weights and KV read once. Real kernels take longer: servesim roofline shows by how much.",
    )


def _attention(bought: Choice) -> Canvas:
    return Canvas(
        "attention",
        "What does FlashAttention save?",
        (
            Slider("tokens", "Tokens n", 64, 1048576, 8192, logarithmic=True),
            Slider("heads", "Heads", 1, 128, 32),
            Slider("head_dim", "Head size d", 16, 256, 128),
            bought,
        ),
        "One layer in bf16. Written out, the scores are heads × n² values; FlashAttention keeps a tile of them "
        "on the chip and stores queries, keys, values and outputs: 4 × heads × n × d. Both compute the same "
        "4 × heads × n² × d FLOPs.",
    )


def _quantization() -> Canvas:
    return Canvas(
        "quantization",
        "What does rounding do to weights?",
        (
            Text("weights", "Weights", "0.12, -0.53, 0.31, 0.02, -0.08, 0.27, 1.9, -0.41"),
            Slider("bits", "Bits", 2, 8, 4),
            Slider("group", "Weights that share a scale", 1, 128, 8),
            Choice("scheme", "Scheme", ("symmetric", "with a zero point"), "symmetric"),
        ),
        "Symmetric: scale = max |w| / (2^(bits - 1) - 1), q = round(w / scale). With a zero point: scale = "
        "(max - min) / (2^bits - 1) over a range that includes 0, q = round(w / scale) + zero. Scales are bf16. "
        "One outlier makes its whole group coarse: try a group of 4.",
    )


@cache
def plain_models() -> dict[str, dict[str, Any]]:
    """Return the bundled models whose layers are all alike, dense and with full attention, with their numbers by
    name."""
    found = {}
    for name in bundled_models():
        model = ModelSpec.load(name)
        alike = all(layer == model.layers[0] for layer in model.layers)
        plain = not (model.experts or model.latent or model.recurrent or model.chunked)
        if alike and plain and not model.sliding_window and model.dtype in ("bf16", "fp16"):
            found[name] = _numbers(model)
    return found


def _numbers(model: ModelSpec) -> dict[str, Any]:
    """Return a model's shape and the coefficients of its steps' work, which `step_work` is asked for at a few points:
    FLOPs and bytes of decode steps are linear in sequences and in tokens of context, those of prefill steps quadratic
    and linear in the prompt."""
    flops, data = zip(*(step_work(model, decode_step(*at)) for at in ((1, 1), (1, 2), (2, 1))), strict=True)
    once, two, three = (step_work(model, prefill_step(n)) for n in (1, 2, 3))
    square = (three[0] - 2 * two[0] + once[0]) / 2
    slope = two[0] - once[0] - 3 * square
    return {
        "name": model.name,
        "layers": model.num_layers,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "weight_bytes": model.weight_bytes("bf16"),
        "decode": {"flops": _plane(*flops), "bytes": _plane(*data)},
        "prefill": {
            "flops": [once[0] - slope - square, slope, square],
            "bytes": [2 * once[1] - two[1], two[1] - once[1], 0.0],
        },
    }


def _plane(first: float, longer: float, second: float) -> list[float]:
    """Return (constant, per sequence, per token of context) from the values at (1 sequence, 1 token), (1, 2) and
    (2, 1 each)."""
    token = longer - first
    sequence = second - first - token
    return [first - sequence - token, sequence, token]


def data() -> str:
    """Return the numbers of models and GPUs as JSON."""
    sheets = {name: Gpu.load(name) for name in gpu_names()}
    gpus = {
        name: {"memory_bytes": gpu.memory_bytes, "bandwidth": gpu.bandwidth, "flops": gpu.flops["bf16"]}
        for name, gpu in sheets.items()
    }
    return json.dumps({"models": plain_models(), "gpus": gpus}, separators=(",", ":"))
