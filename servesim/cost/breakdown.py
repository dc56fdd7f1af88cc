"""Where the GPU time of a step goes, operator by operator."""

from __future__ import annotations

from servesim.contracts.cost import Batch
from servesim.cost.model import TableCostModel

ATTENTION_PREFILL, ATTENTION_DECODE = "attention_prefill", "attention_decode"
COPY, LOWER_CLOCK = "copy", "lower_clock"


def breakdown(cost: TableCostModel, batch: Batch) -> dict[str, float]:
    """Nanoseconds of each operator of a step, all layers, stages and repetitions together, in the order of the
    forward pass; their sum is the step's `gpu_ns` before it is rounded. Beside the operators: `copy` (bytes over
    PCIe) and `lower_clock` (what the lowered clock of a long step adds)."""
    tokens = cost._tokens(batch)
    found: dict[str, float] = {}

    def add(name: str, ns: float) -> None:
        if ns:
            found[name] = found.get(name, 0.0) + ns

    for stage in cost._stages:
        computing = 0.0
        for name, curve, _ in stage._per_token:
            ns = curve.at(tokens)
            computing += ns
            add(name, ns)
        if batch.prefill:
            ns = stage._prefill(batch)[0]
            computing += ns
            add(ATTENTION_PREFILL, ns)
        if batch.decode_count:
            add(ATTENTION_DECODE, stage.decode_curve(batch).at(batch.decode_context_sum))
        if batch.sampled:
            for name, curve, _ in stage._per_sample:
                add(name, curve.at(batch.sampled))
        if batch.bytes_moved:
            add(COPY, stage._roofline.copy_ns(batch.bytes_moved) * stage._copied)
        if stage._slowdown and computing > stage._cool_ns:
            add(LOWER_CLOCK, stage.lower_clock(computing, tokens))
    return found
