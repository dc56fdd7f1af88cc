"""Steps that take longer than larger ones, looked for in the cost models of many deployments.

python -m tests.support.falls [MODEL,...] [GPU,...]     prints them for these models and GPUs, or all
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from servesim.contracts.cost import Batch
from servesim.cost import TableCostModel
from servesim.cost.curve import EXTRAPOLATED, Curve
from servesim.cost.falling import NOTED, falling
from servesim.errors import UserError
from servesim.hardware import ModelSpec, bundled_models, gpu_names
from servesim.run.scenario import Scenario
from servesim.run.server import Server

FORMATS = ("bf16", "fp8", "int4", "nvfp4", "mxfp4")
BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
PROMPTS = [2**i for i in range(16)]
CONTEXTS = [1, *(2**i for i in range(4, 18))]
LEAST = 1.001
"""Ratio from which a curve that was not measured falls: rounding aside, never."""


def deployments(models: Sequence[str] = (), gpus: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield settings of every model on every GPU, in every format and parallelism."""
    for model in models or bundled_models():
        spec = ModelSpec.load(model)
        for gpu in gpus or gpu_names():
            for dtype in dict.fromkeys((spec.dtype, *FORMATS)):
                for parallel in _parallel(spec):
                    yield {"model": model, "gpu": gpu, "dtype": dtype, **parallel}


def _parallel(spec: ModelSpec) -> Iterator[dict[str, int]]:
    for tp in (1, 2, 4, 8):
        yield {"tp": tp}
        if spec.experts is not None and tp > 1:
            yield {"tp": tp, "ep": tp}
    for tp, dp in ((1, 2), (1, 8), (2, 4)) if spec.experts is not None else ():
        yield {"tp": tp, "dp": dp}
        yield {"tp": tp, "dp": dp, "ep": tp * dp}


def cost_of(settings: dict[str, Any]) -> TableCostModel | None:
    """Return the cost model of a deployment, or None if it is refused."""
    try:
        return Server.of(Scenario.of({"trace": "synth:n=1", **settings})).cost
    except UserError:
        return None


def found(settings: dict[str, Any]) -> list[str]:
    """Return the falls of a deployment that no run would report, one line each."""
    cost = cost_of(settings)
    if cost is None:
        return []
    return [f"{settings}: {fall}" for fall in (*unsaid(cost, settings.get("dp", 1)), *made(cost))]


def unsaid(cost: TableCostModel, ranks: int = 1) -> Iterator[str]:
    """Yield the falls of a step's time along sequences, tokens of a prompt and contexts that no note names."""

    def decodes(count: int, context: int) -> int:
        batch = Batch.decodes(count, count * context, count * context**2, context)
        return cost.prices([batch] * ranks)[0].ns

    def prompt(new: int) -> int:
        return cost.prices([Batch(linear_tokens=new, prefill=[(new, 0)], sampled=1)] * ranks)[0].ns

    lines = {"sequences": [(n, decodes(n, 2048)) for n in BATCHES], "prompt": [(new, prompt(new)) for new in PROMPTS]}
    for count in (1, 8, 64):
        lines[f"context of {count}"] = [(context, decodes(count, context)) for context in CONTEXTS]
    for name, line in lines.items():
        for i, (size, ns) in enumerate(line):
            later = min(line[i + 1 :], key=lambda point: point[1], default=(size, ns))
            if ns > NOTED * later[1] and (name.startswith("context") or not any(falling(cost, [size], ranks))):
                yield f"{name} {size} to {later[0]}: {ns / 1e6:.3f} to {later[1] / 1e6:.3f} ms"


def made(cost: TableCostModel) -> Iterator[str]:
    """Yield the falls of operators to or from knots that were not measured. Attention of heads that were not measured
    is that of others, whose rows may fall by a tenth."""
    for stage in cost._all_stages():
        for operator in (*stage._per_token, *stage._per_sample):
            yield from _made(operator.name, operator.curve)


def _made(name: str, curve: Curve) -> Iterator[str]:
    knots = list(zip(curve.xs, curve.ys, curve.knot_source, strict=True))
    least = knots[-1]
    for x, y, source in reversed(knots):
        if y > LEAST * least[1] and max(source, least[2]) >= EXTRAPOLATED:
            yield f"{name} {x:g} to {least[0]:g}: {y / 1e3:.2f} to {least[1] / 1e3:.2f} us"
            return
        least = min(least, (x, y, source), key=lambda knot: knot[1])


if __name__ == "__main__":
    asked = [text.split(",") for text in sys.argv[1:]]
    for each in deployments(*asked):
        for text in found(each):
            print(text, flush=True)
