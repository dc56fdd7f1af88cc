"""The support matrix: every model on every GPU, by engine and weight format, with the measured share of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from servesim.contracts.cost import Batch
from servesim.cost.build import build_cost_model, check_arithmetic
from servesim.cost.formula import format_on
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec, bundled_models, gpu_names
from servesim.hardware.blocks import check_blocks
from servesim.versions import EngineFacts, engine_facts

State = Literal["measured", "partly", "by formula", "refused"]
ENGINES = ("vllm", "sglang", "tensorrt-llm")
FORMATS = ("fp8", "int4", "nvfp4")
"""Formats examined in addition to the published one of each model."""
LETTERS: dict[State, str] = {"measured": "M", "partly": "p", "by formula": "f", "refused": "-"}
LEGEND = (
    "M: measured (at least 80 % of the GPU time from measured kernels; the number is the percentage); p: partly; "
    "f: by formula; -: refused"
)
TPS = (1, 2, 4, 8)
WEIGHTS_SHARE = 0.9
"""Fraction of a GPU's memory that weights may take for a model to run on it."""
MEASURED, PARTLY = 0.8, 0.2
"""Minimum shares of the GPU time that must come from measured and interpolated kernels for the states "measured" and
"partly"; norms, activations and sampling are priced by formula on all GPUs whose kernels were imported."""
PROBES = (
    Batch.decodes(32, 32 * 2048, 32 * 2048**2, 2048),
    Batch(linear_tokens=2048, prefill=[(2048, 0)], sampled=1),
)
"""Priced steps: 32 sequences that decode at a context of 2,048 tokens each, and a prompt of 2,048 tokens."""


@dataclass(frozen=True, slots=True)
class Support:
    """Support for one model on one GPU, in one engine and one format."""

    model: str
    gpu: str
    engine: str
    dtype: str
    state: State
    tp: int = 0
    """Number of GPUs of the smallest server that holds the model, 1 to 8; 0 if refused."""
    known: float = 0.0
    """Smallest measured or interpolated share of the GPU time among the probes, 0 to 1."""
    reason: str = ""
    """Why the model is refused, or only partly measured although the share is large."""

    @property
    def cell(self) -> str:
        """Entry of the matrix: a letter, and the measured share in percent if some of it was measured."""
        return LETTERS[self.state] + (f" {self.known * 100:.0f}" if self.state in ("measured", "partly") else "")


def support(model: str, gpu: str, engine: str, dtype: str) -> Support:
    """Return how a bundled model is priced on the smallest server that holds it, according to the GPU's data sheet."""
    spec, sheet = ModelSpec.load(model), Gpu.load(gpu)
    facts = engine_facts(engine, None, gpu)
    try:
        check_arithmetic(spec, sheet, dtype, facts)
    except UserError as error:
        return Support(model, gpu, engine, dtype, "refused", reason=str(error))
    room = WEIGHTS_SHARE * sheet.memory_bytes
    tp = next((n for n in TPS if spec.weight_bytes(dtype) / n <= room and spec.num_heads % n == 0), 0)
    if not tp:
        return Support(model, gpu, engine, dtype, "refused", reason="weights do not fit on 8 GPUs")
    try:
        cost = build_cost_model(spec, sheet, tp, dtype, engine=facts, ep=_experts_over(spec, dtype, tp, facts))
    except UserError as error:
        return Support(model, gpu, engine, dtype, "refused", reason=str(error))
    shares = [cost.price(batch).shares for batch in PROBES]
    known = min(a + b for a, b, _, _ in shares)
    formula = min(d for _, _, _, d in shares)
    priced = format_on(sheet, dtype)
    own = priced == dtype and (engine == "vllm" or facts.get("kernel_tables") is not None)
    if formula > 1 - PARTLY or cost.tables is None:
        return Support(model, gpu, engine, dtype, "by formula", tp)
    if known < MEASURED or not own:
        stands_in = (
            "vLLM's kernels are used instead of the engine's"
            if priced == dtype
            else f"kernels for {priced} are used instead"
        )
        reason = "" if own else stands_in
        return Support(model, gpu, engine, dtype, "partly", tp, known, reason)
    return Support(model, gpu, engine, dtype, "measured", tp, known)


def _experts_over(spec: ModelSpec, dtype: str, tp: int, facts: EngineFacts) -> int:
    """Return the number of GPUs over which whole experts are distributed: 1, or all if the engine refuses to split them
    by width. Raise UserError if it refuses both."""
    block = facts.get("fp8_block_columns")
    if block is None:
        return 1
    try:
        check_blocks(spec, dtype, block, facts.engine, tp=tp)
    except UserError:
        check_blocks(spec, dtype, block, facts.engine, tp=tp, ep=tp)
        return tp
    return 1


@cache
def formats(model: str) -> tuple[str, ...]:
    """Return the formats in which a model is examined: the published one, and others unless its experts have their own
    format."""
    spec = ModelSpec.load(model)
    return (spec.dtype,) if spec.experts_dtype is not None else (spec.dtype, *FORMATS)


def matrix(
    models: Sequence[str] | None = None, engines: Sequence[str] = ENGINES, gpus: Sequence[str] | None = None
) -> Iterator[Support]:
    """Yield the support of every combination, by engine, model, format and GPU. None means all bundled ones."""
    for engine in engines:
        for model in models if models is not None else bundled_models():
            for dtype in formats(model):
                for gpu in gpus if gpus is not None else gpu_names():
                    yield support(model, gpu, engine, dtype)


def as_tables(found: Sequence[Support]) -> str:
    """Return the matrix as Markdown tables, one per engine, with models and formats as rows."""
    lines: list[str] = []
    for engine in dict.fromkeys(one.engine for one in found):
        mine = [one for one in found if one.engine == engine]
        gpus = list(dict.fromkeys(one.gpu for one in mine))
        cells = {(one.model, one.dtype, one.gpu): one.cell for one in mine}
        lines += [
            f"## {engine}",
            "",
            "| model | weights | " + " | ".join(gpus) + " |",
            "|---|---|" + "---|" * len(gpus),
        ]
        for model, dtype in dict.fromkeys((one.model, one.dtype) for one in mine):
            row = " | ".join(cells[model, dtype, gpu] for gpu in gpus)
            lines.append(f"| {model} | {dtype} | {row} |")
        lines.append("")
    return "\n".join(lines)
