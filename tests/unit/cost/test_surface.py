"""More work is cheaper only where a measured kernel says so: step costs over tokens, sequences and contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from servesim.contracts import Batch
from servesim.cost.breakdown import breakdown
from servesim.cost.build import build_cost_model
from servesim.cost.curve import MEASURED
from servesim.cost.host import HostTerms
from servesim.cost.model import TableCostModel
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.model import bundled_models

GPUS = ("a100", "h100", "h200", "l40s", "rtx-pro-6000")
TOKENS = sorted(
    {*range(1, 34), *range(40, 257, 8), *range(224, 253, 7), *range(256, 1025, 32), *range(1024, 8193, 512)}
)
SEQUENCES = sorted({*range(1, 17), *range(16, 65, 4), *range(64, 257, 16), 512})
CONTEXTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
DROP = 0.05
"""Share of the time of a step by which the next one, of more work, may be below it unexplained."""


def prompt(tokens: int) -> Batch:
    return Batch(tokens, [(tokens, 0)], sampled=1)


def decodes(count: int, context: int) -> Batch:
    total = count * context
    return Batch(count, [], count, total, total * context, context, sampled=count, sampled_context=total)


def drops(cost: TableCostModel) -> Iterator[tuple[str, Batch, Batch]]:
    """Yield the operator that most of a drop comes from, and the steps before and after it."""
    axes: list[tuple[list[int], Callable[[int], Batch]]] = [(TOKENS, prompt)]
    axes += [(SEQUENCES, lambda n, c=c: decodes(n, c)) for c in (16, 1024, 8192)]  # type: ignore[misc]
    axes += [(CONTEXTS, lambda c, n=n: decodes(n, c)) for n in (1, 8, 64)]  # type: ignore[misc]
    for points, step in axes:
        batches = [step(x) for x in points]
        prices = [cost.gpu_ns(batch) for batch in batches]
        for (a, b), (p, q) in zip(pairwise(batches), pairwise(prices), strict=True):
            if q < p * (1 - DROP):
                before, after = breakdown(cost, a), breakdown(cost, b)
                yield min(before, key=lambda name: after.get(name, 0.0) - before[name]), a, b


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_of_more_work_is_cheaper_only_where_a_measured_kernel_is(gpu: str) -> None:
    """Under the terms of vLLM, which smooth what is interpolated: whatever drops was measured at the shape it has, on
    this GPU. (8 drops on
    A100, all of the all-reduce, and 24 on H100, all of the up projection.)"""
    host = HostTerms.load("vllm-0.23-h100")
    assert host.monotone_gemms
    combinations = 0
    for name in bundled_models():
        for tp in (1, 2, 4, 8):
            try:
                cost = build_cost_model(ModelSpec.load(name), Gpu.load(gpu), tp, host=host)
            except UserError:
                continue
            combinations += 1
            curves = {o.name: o.curve for stage in cost._stages for o in (*stage._per_token, *stage._per_sample)}
            for operator, a, b in drops(cost):
                assert operator in curves, (gpu, name, tp, operator, a, b)
                assert curves[operator].knot_source[1] == MEASURED, (gpu, name, tp, operator, a, b)
    assert combinations > 80
