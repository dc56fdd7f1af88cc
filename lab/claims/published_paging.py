"""PagedAttention's ablations: block size, and recomputation compared with swapping."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, experiment
from .lengths import MAX_LEN, alpaca, poisson, sharegpt

LENGTHS = {"ShareGPT": sharegpt, "Alpaca": alpaca}
GOOD = {"ShareGPT": (16, 128), "Alpaca": (16, 32)}
"""Best block sizes according to the paper."""


@experiment(
    "paging-ablations",
    group="published",
    claim="Blocks of 16 to 128 tokens are best, and recomputing is never far slower than swapping",
    source="Kwon et al., SOSP 2023, section 7.2 and 7.3 (figures 18 and 19)",
)
def paging_ablations(given: Given) -> Outcome:
    """Return the mean latency per output token by block size, with preempted requests recomputed and swapped."""
    outcome = Outcome()
    found = {
        workload: {mode: [normalized(given, workload, size, mode) for size in given["blocks"]] for mode in MODES}
        for workload in given["workloads"]
    }
    for workload, by_mode in found.items():
        _best(outcome, given, workload, by_mode["recompute"])
    _modes(outcome, given, found["ShareGPT"])
    outcome.add(
        Row(
            "the attention kernel over blocks, against a contiguous one",
            "20 to 26 % slower",
            "-",
            "out of reach",
            "decode attention is timed over blocks in the tables; FasterTransformer's kernel is in none of them",
        )
    )
    outcome.notes.append(
        "what a block size costs here is memory (the last block of each request is not full) and transfers; kernels "
        "are priced alike for all sizes, where the paper's are slow for small blocks"
    )
    return outcome


MODES = ("recompute", "swap")


def normalized(given: Given, workload: str, block: int, mode: str) -> float:
    """Return the mean end-to-end latency per output token, in ms."""
    load = given["workloads"][workload]
    trace = poisson(workload, LENGTHS[workload](load["requests"], 0), load["rate"], 0)
    engine: dict[str, Any] = {
        "max_model_len": MAX_LEN,
        "async_scheduling": False,
        "block_size": block,
        "num_gpu_blocks": given["slots"] // block + 1,
        "swap_space_gib": 16.0,
    }
    scheduler = f"{given['base']['scheduler']}:preemption_mode={mode}"
    requests = simulate({**given["base"], "engine": engine, "scheduler": scheduler}, trace=trace).requests
    latency = requests["finished_ns"] - requests["arrival_ns"]
    return float(np.mean(latency / requests["output_len"])) / 1e6


def _best(outcome: Outcome, given: Given, workload: str, latencies: list[float]) -> None:
    low, high = GOOD[workload]
    limit = given["good"] * latencies[given["blocks"].index(16)]
    good = [size for size, ms in zip(given["blocks"], latencies, strict=True) if ms <= limit]
    outcome.holds(
        f"best block sizes, {workload}",
        f"{low} to {high}",
        f"{good[0]} to {good[-1]}",
        good[0] <= low and good[-1] == high,
        note=f"mean latency per token at most {100 * (given['good'] - 1):.0f} % above that with blocks of 16",
        cause="kernels are priced alike for all block sizes, so that the waste of large ones is all that counts",
    )


def _modes(outcome: Outcome, given: Given, by_mode: dict[str, list[float]]) -> None:
    sizes = given["blocks"]
    ratios = [a / b for a, b in zip(*(by_mode[mode] for mode in MODES), strict=True)]
    middle = [ratio for size, ratio in zip(sizes, ratios, strict=True) if 16 <= size <= 64]
    outcome.holds(
        "recomputing, latency against swapping, every block size",
        "at most 1.2 x",
        f"{min(ratios):.2f} to {max(ratios):.2f} x",
        max(ratios) <= 1.2,
        cause="swaps are priced at the full speed of PCIe whatever the block size, so that swapping is never slow",
    )
    text = f"{min(middle):.2f} to {max(middle):.2f} x"
    near = all(abs(ratio - 1) <= 0.2 for ratio in middle)
    outcome.holds("the same, blocks of 16 to 64", "comparable", text, near, cause="one is faster by more than 20 %")
    said = "; ".join(f"{mode}: {', '.join(f'{ms:.0f}' for ms in by_mode[mode])} ms" for mode in MODES)
    outcome.figures.append(
        Lines(
            name="blocks",
            title="Mean latency per output token by block size, ShareGPT",
            alt=f"At blocks of {', '.join(map(str, sizes))} tokens: {said}.",
            x_label="tokens per block",
            y_label="ms per output token",
            curves=[Curve(mode, sizes, by_mode[mode]) for mode in MODES],
            log="x",
        )
    )
