"""Notes on a format of weights that the GPU has no arithmetic for, or that is slower than bf16."""

from __future__ import annotations

from collections.abc import Iterator

from servesim.contracts.cost import Batch
from servesim.contracts.warn import Warn
from servesim.cost.breakdown import breakdown
from servesim.cost.formula import format_on
from servesim.run.server import Server, cost_model_of

SLOWER = 2.0
"""Minimum ratio of the GPU time to that with bf16 weights at which a format is reported."""
_PROBE = Batch.decodes(32, 32 * 2048, 32 * 2048**2, 2048)
"""Priced step: 32 decoding sequences with a context of 2,048 tokens each."""


def on_format(server: Server) -> Iterator[str]:
    """Yield a note if the GPU has no arithmetic for the scenario's weights, and one if the kernel tables make them
    several times slower than bf16 weights on the same GPUs."""
    scenario, cost = server.scenario, server.cost
    if (priced := format_on(server.gpu, scenario.dtype)) != scenario.dtype:
        yield (
            f"dtype={scenario.dtype}: {server.gpu.name} has no fp8 arithmetic, so weights are read in 8 bits and "
            f"computed in bf16 (Marlin's kernel), priced as {priced}"
        )
    if scenario.dtype in ("bf16", "fp16", "fp32") or cost.tables is None or "bf16" not in server.gpu.flops:
        return
    plain = cost_model_of(scenario.model_copy(update={"dtype": "bf16"}))
    ranks = [_PROBE] * scenario.dp
    times = cost.prices(ranks)[0].gpu_ns / plain.prices(ranks)[0].gpu_ns
    if times < SLOWER:
        return
    mine, its = breakdown(cost, _PROBE), breakdown(plain, _PROBE)
    most = max(mine, key=lambda name: mine[name] - its.get(name, 0.0))
    yield Warn(
        f"dtype={scenario.dtype}: a step of 32 sequences takes {times:.1f} times as long as with bf16 weights on the "
        f"same GPUs. Most of the difference is in {most} ({mine[most] / 1e6:.2f} ms instead of "
        f"{its.get(most, 0.0) / 1e6:.2f} ms): the kernel measured for this format is slow at this matrix width. Try "
        "bf16, another tp, or expert parallelism."
    )
