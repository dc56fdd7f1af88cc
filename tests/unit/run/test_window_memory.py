"""What memory a model with sliding windows gets, by default and otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.workload.trace import Samples, Trace

TRACE = Trace.from_lengths("three", [0, 10**9, 2 * 10**9], [100, 200, 300], [5, 6, 7])


def resolve(trace: Trace = TRACE, model: str = "gpt-oss-20b", **settings: Any) -> Setup:
    return set_up(Scenario.of({"trace": "object:x", "model": model, "gpu": "h100", **settings}), trace)


def kept(setup: Setup) -> str:
    """What is said of window layers."""
    return "\n".join(note for note in setup.notes if "window" in note or "hybrid_kv" in note)


@pytest.mark.parametrize(
    ("asked", "gets"), [({}, "hybrid"), ({"kv": "paged"}, "hybrid-paged"), ({"preset": "vllm"}, "hybrid")]
)
def test_layers_get_block_tables_by_window(asked: dict[str, Any], gets: str) -> None:
    """Twelve layers of all tokens and twelve of 128: two groups, so blocks of half the bytes and twice as many."""
    setup, whole = resolve(**asked), resolve(engine={"disable_hybrid_kv_cache_manager": True}, **asked)
    assert setup.scenario.kv["name"] == gets
    assert setup.cores[0].kv.memory.windows == (None, 128)
    assert whole.cores[0].kv.memory.windows == (None,)
    assert setup.deployment.block_bytes * 2 == whole.deployment.block_bytes
    assert setup.cores[0].kv.num_blocks == pytest.approx(2 * whole.cores[0].kv.num_blocks, abs=1)
    assert not kept(setup)
    assert "all 12 window layers (of 24 layers) keep every token" in kept(whole)


def test_parameters_of_the_prefix_cache_stay() -> None:
    setup = resolve(kv="prefix-hash:free_order=back")
    assert (setup.scenario.kv["name"], setup.scenario.kv["free_order"]) == ("hybrid", "back")


def test_a_resolved_scenario_resolves_to_itself() -> None:
    for settings in (
        {},
        {"kv": "paged"},
        {"engine": {"disable_hybrid_kv_cache_manager": True}},
        {"kv": "prefix-radix"},
    ):
        first = resolve(**settings)
        again = set_up(first.scenario, TRACE)
        assert again.scenario == first.scenario
        assert again.notes == first.notes


def test_a_model_without_windows_is_as_it_was() -> None:
    assert resolve(model="llama-3.1-8b").scenario.kv["name"] == "prefix-hash"
    off = {"disable_hybrid_kv_cache_manager": True}
    assert "has no effect" in kept(resolve(model="llama-3.1-8b", engine=off))
    assert not kept(resolve(model="llama-3.1-8b", preset="tgi"))


def test_what_is_not_modeled_is_said() -> None:
    """SGLang's own pool for windows, groups across pipeline stages; engines without such a manager."""
    assert "swa_full_tokens_ratio" in kept(resolve(preset="sglang"))
    staged = resolve(pp=2, kv="paged")
    assert staged.scenario.kv["name"] == "paged"
    assert "across pipeline stages are not modeled" in kept(staged)
    assert resolve(preset="vllm-v0").scenario.kv["name"] == "paged"
    off = resolve(kv="hybrid", engine={"disable_hybrid_kv_cache_manager": True})
    assert off.scenario.kv["name"] == "hybrid"
    assert "has no effect: kv hybrid is set" in kept(off)


def test_samples_that_are_forked_are_told_the_way_out() -> None:
    trace = replace(
        Trace.from_lengths("two", [0, 0], [100, 200], [5, 6]), samples=Samples.of(np.array([1, 0]), np.array([5]))
    )
    with pytest.raises(UserError, match=r"such as paged with engine\.disable_hybrid_kv_cache_manager"):
        resolve(trace, scheduler="continuous", kv="paged")
    resolve(trace, scheduler="continuous", kv="paged", engine={"disable_hybrid_kv_cache_manager": True})


def test_layers_that_attend_chunks_keep_every_token() -> None:
    """Llama 4: three of four layers attend chunks of 8,192 tokens; vLLM gives none of them back."""
    setup = resolve(model="llama-4-scout", dtype="fp8", tp=4)
    assert setup.scenario.kv["name"] == "prefix-hash"
    assert setup.cores[0].kv.memory.windows == (None,)
    assert setup.deployment.block_bytes == 48 * 16 * 2 * 2 * 128 * 2
    assert "all 36 window layers (of 48 layers) keep every token" in kept(setup)
