"""GPU time of a step, broken down by operator."""

from __future__ import annotations

from collections.abc import Iterator

from servesim.contracts.cost import Batch
from servesim.cost.model import TableCostModel
from servesim.cost.stage import Stage

ATTENTION_PREFILL, ATTENTION_DECODE = "attention_prefill", "attention_decode"
COPY, LOWER_CLOCK, DRAFTING = "copy", "lower_clock", "drafting"


def breakdown(cost: TableCostModel, batch: Batch) -> dict[str, float]:
    """Return the nanoseconds of each operator of a step, over all layers, stages and repetitions, in the order of the
    forward pass; they sum to the step's `gpu_ns` before rounding. In addition to the operators: `copy` (bytes over PCIe
    and within the GPU), `lower_clock` (the time added by the lowered clock of a long step) and `drafting` (all passes
    of a draft model)."""
    parts = [part for stage in cost._stages for part in _of_stage(stage, batch, cost._tokens(batch))]
    for stage, passed in cost._passes(batch)[cost.num_stages :]:
        parts += [(DRAFTING, ns) for _, ns in _of_stage(stage, passed, cost._tokens(passed))]
    found: dict[str, float] = {}
    for name, ns in parts:
        if ns:
            found[name] = found.get(name, 0.0) + ns
    return found


def _of_stage(stage: Stage, batch: Batch, tokens: int) -> Iterator[tuple[str, float]]:
    """Yield the operators of one stage with their nanoseconds, computed in the same order as in `Stage.constant`."""
    computing = 0.0
    for operator in stage._per_token:
        ns = operator.curve.at(tokens)
        computing += ns
        yield operator.name, ns
    if batch.prefill:
        ns = stage._prefill(batch)[0]
        computing += ns
        yield ATTENTION_PREFILL, ns
    yield LOWER_CLOCK, stage.lower_clock(computing, tokens)
    if batch.decode_count:
        yield ATTENTION_DECODE, stage.decode_curve(batch).at(batch.decode_context_sum) + stage.skew(batch)[0]
    if batch.sampled:
        for operator in stage._per_sample:
            yield operator.name, operator.curve.at(batch.sampled + batch.drafts)
    if batch.bytes_moved or batch.bytes_copied:
        moved = stage._roofline.copy_ns(batch.bytes_moved) + stage._roofline.move_ns(batch.bytes_copied)
        yield COPY, moved * stage._copied
