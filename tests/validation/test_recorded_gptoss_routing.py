"""How unequal experts are: decode steps of a recorded gpt-oss-120b server without drafts (vLLM 0.22.0, H200)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from servesim.contracts import Batch
from servesim.cost import build_cost_model, marlin
from servesim.cost.host import host_terms
from servesim.hardware import Gpu, ModelSpec
from servesim.versions import engine_facts

ROOT = "groundtruth/gptoss120b_h200/none"
CONTEXT = 7221 + 450
"""Mean prompt, and half the mean answer."""


def off(clients: int, shared_data: Callable[[str], Path]) -> float:
    """How far a decode step of all clients is from the recorded median gap."""
    recorded = json.loads((shared_data(ROOT) / f"sweep_c{clients}.json").read_text())
    terms = host_terms("vllm 0.22.0", "h200")
    cost = build_cost_model(
        ModelSpec.load("gpt-oss-120b"), Gpu.load("h200"), host=terms, engine=engine_facts("vllm", "0.22.0", "h200")
    )
    cost.asynchronous = True
    square = clients * CONTEXT * CONTEXT
    batch = Batch.decodes(clients, clients * CONTEXT, square, CONTEXT)
    return float(cost.price(batch).ns / 1e6 / recorded["median_itl_ms"] - 1.0)


def test_the_skew_is_the_one_that_decode_steps_fit_best(
    shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To one digit."""
    beta_binomial, by_skew = marlin.beta_binomial, {}
    for skew in (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0):
        monkeypatch.setattr(marlin, "beta_binomial", lambda n, mean, a=skew: beta_binomial(n, mean, a))
        errors = [off(clients, shared_data) for clients in (4, 16, 64)]
        by_skew[skew] = float(np.sqrt(np.mean(np.square(errors))))
    print({skew: f"{error:.1%}" for skew, error in by_skew.items()})
    assert min(by_skew, key=lambda skew: by_skew[skew]) == marlin.SKEW


def test_decode_steps_are_those_of_the_server(shared_data: Callable[[str], Path]) -> None:
    errors = {clients: off(clients, shared_data) for clients in (1, 4, 16, 64)}
    print("decode step against the recorded median:", {clients: f"{error:+.1%}" for clients, error in errors.items()})
    assert all(abs(error) < 0.05 for error in errors.values())
