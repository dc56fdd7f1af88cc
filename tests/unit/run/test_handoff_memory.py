"""Memory too small for a handoff is the scenario's fault, not a policy's."""

from __future__ import annotations

import pytest

import servesim
from servesim.errors import UserError


def test_a_deadlock_of_handoffs_in_tiny_memory_says_that_memory_is_too_small() -> None:
    pd = pytest.importorskip("pandas")
    rows = [(0, 10, 9, -2), (1, 10, 8, 2), (21, 2, 10, -3), (26, 5, 9, -2), (26, 12, 8, 1), (66, 5, 13, -3)]
    rows.append((72, 12, 13, 0))
    trace = pd.DataFrame(rows, columns=["arrival_ns", "prompt_len", "output_len", "priority"])
    trace["arrival_ns"] *= 1_000_000
    for blocks, fits in ((3, False), (4, True)):
        try:
            result = servesim.simulate(
                trace=trace,
                model="llama-3.1-8b",
                gpu="h200",
                pd="1x1:1x1",
                scheduler="vllm:policy=priority",
                num_gpu_blocks=blocks,
                watermark=0.05,
            )
        except UserError as error:
            assert not fits
            said = str(error)
            assert said.startswith("the KV memory of a replica, 32 tokens, is too small for KV from elsewhere (handoff")
            assert "engine.num_gpu_blocks" in said
        else:
            assert fits
            assert result.summary["requests"]["completed"] == len(rows)
