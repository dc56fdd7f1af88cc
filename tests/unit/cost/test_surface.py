"""More work is cheaper only where a measured kernel says so: step costs over tokens, sequences and contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from servesim.contracts import Batch
from servesim.cost.breakdown import breakdown
from servesim.cost.build import build_cost_model
from servesim.cost.curve import MEASURED, Curve
from servesim.cost.host import HostTerms
from servesim.cost.model import TableCostModel
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec, gpu_names
from servesim.hardware.model import bundled_models

GPUS = sorted({tables for name in gpu_names() if (tables := Gpu.load(name).tables) is not None})
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
    return Batch.decodes(count, total, total * context, context)


JUMP = 0.2
"""Share by which the next step may be above its size in proportion to the padded one before it, unexplained."""


def axes() -> Iterator[tuple[list[int], Callable[[int], Batch]]]:
    """Yield the sizes along which steps grow, and the step of a size."""
    yield TOKENS, prompt
    for context in (16, 1024, 8192):
        yield SEQUENCES, lambda n, c=context: decodes(n, c)  # type: ignore[misc]
    for count in (1, 8, 64):
        yield CONTEXTS, lambda c, n=count: decodes(n, c)  # type: ignore[misc]


def drops(cost: TableCostModel) -> Iterator[tuple[str, Batch, Batch]]:
    """Yield the operator that most of a drop comes from, and the steps before and after it."""
    for points, step in axes():
        batches = [step(x) for x in points]
        prices = [cost.price(batch).gpu_ns for batch in batches]
        for (a, b), (p, q) in zip(pairwise(batches), pairwise(prices), strict=True):
            if q < p * (1 - DROP):
                before, after = breakdown(cost, a), breakdown(cost, b)
                yield min(before, key=lambda name: after.get(name, 0.0) - before[name]), a, b


def jumps(cost: TableCostModel, padding: list[int]) -> Iterator[tuple[str, int, int]]:
    """Yield the operator that most of a jump comes from, and the sizes before and after it. Up to 512 tokens a step
    takes the linear layers' time of the next size of a CUDA graph: 16 to 17 tokens are 16 to 24."""
    for points, step in axes():
        prices = [cost.price(step(x)).gpu_ns for x in points]
        for (x, y), (p, q) in zip(pairwise(points), pairwise(prices), strict=True):
            grown = y / x if points is CONTEXTS else max(_padded(y, padding) / _padded(x, padding), y / x)
            if q > p * grown * (1 + JUMP):
                before, after = breakdown(cost, step(x)), breakdown(cost, step(y))
                yield max(after, key=lambda name: after[name] - before.get(name, 0.0)), x, y


def _padded(tokens: int, padding: list[int]) -> int:
    return padding[tokens] if tokens < len(padding) else tokens


def switches(curve: Curve, x: int, y: int) -> bool:
    """Whether a table has a kernel's last size and the first of the next one, a token later, between two sizes."""
    return any(b - a == 1 and x <= a < y for a, b in pairwise(curve.xs))


def staircase(curve: Curve, x: int, y: int) -> bool:
    """Whether a table's kernel works in tiles of rows between two sizes: its times are flat before and after."""
    points = list(zip(curve.xs, curve.ys, strict=True))
    below, above = [t for n, t in points if n <= x][-2:], [t for n, t in points if n >= y][:2]
    return all(len(flat) == 2 and flat[1] < 1.05 * flat[0] for flat in (below, above))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_of_more_work_is_cheaper_or_much_dearer_only_where_a_measured_kernel_is(gpu: str, dtype: str) -> None:
    """Under the terms of vLLM, which smooth what is interpolated. Whatever drops was measured at the shape it has, on
    this GPU (in bf16 8 drops on A100, all of the all-reduce, and 24 on H100, all of the up projection). Whatever jumps
    was measured, too, or changes its kernel between two sizes that follow each other in the table: the experts of L40S
    from one token to two, GEMMs of 8 bits on H100 at multiples of 256; or is a step of a staircase: GEMMs of 4 bits on
    A100 at multiples of 64 rows."""
    host = HostTerms.load("vllm-0.23-h100")
    assert host.monotone_gemms
    combinations = 0
    for name in bundled_models():
        for tp in (1, 2, 4, 8):
            try:
                cost = build_cost_model(ModelSpec.load(name), Gpu.load(gpu), tp, dtype, host=host)
            except UserError:
                continue
            combinations += 1
            curves = {o.name: o.curve for stage in cost._stages for o in (*stage._per_token, *stage._per_sample)}
            for operator, a, b in drops(cost):
                assert operator in curves, (gpu, name, tp, operator, a, b)
                assert curves[operator].knot_source[1] == MEASURED, (gpu, name, tp, operator, a, b)
            for operator, x, y in jumps(cost, host.padding()):
                told = (gpu, dtype, name, tp, operator, x, y)
                assert operator in curves, told
                curve = curves[operator]
                assert curve.knot_source[1] == MEASURED or switches(curve, x, y) or staircase(curve, x, y), told
    assert combinations > 80 or (gpu, dtype) == ("a100", "fp8")  # which it has no arithmetic for
