"""Memory too small for a handoff is the scenario's fault, not a policy's."""

from __future__ import annotations

from pathlib import Path

import pytest

import servesim
from servesim.errors import PolicyError, UserError


@pytest.mark.feature("handoff")
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
            assert said.startswith("the KV memory of a replica (32 tokens) is too small for the transfer of KV: at ")
            assert "engine.num_gpu_blocks" in said
        else:
            assert fits
            assert result.summary["requests"]["completed"] == len(rows)


@pytest.mark.feature("handoff")
def test_a_policy_that_does_not_run_what_has_arrived_is_at_fault_itself(tmp_path: Path) -> None:
    file = tmp_path / "lazy.py"
    file.write_text(
        "from servesim.policies.scheduling.vllm import Vllm\n"
        "class Lazy(Vllm):\n"
        "    def plan(self, ctx):\n"
        "        here = any(request.num_computed_tokens for request in self.waiters())\n"
        "        return ctx.plan if here else super().plan(ctx)\n"
    )
    with pytest.raises(PolicyError, match=r"Lazy at [0-9]+ ns: plans nothing although 2 requests wait"):
        servesim.simulate(
            trace="synth:rate=10,prompt=20,output=5",
            requests=2,
            model="llama-3.1-8b",
            gpu="h200",
            pd="1x1:1x1",
            scheduler=f"{file}:Lazy",
        )
