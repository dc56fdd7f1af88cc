"""Space of `servesim recommend`: what is searched, and what is not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.searched import LIMITS, Span
from servesim.experiments.recommend.space import changed, grid, space_of
from servesim.run.scenario import Scenario

BASE: dict[str, Any] = {"trace": "synth:rate=1,prompt=8,output=2", "model": "llama-3.2-1b", "slo": "ttft:40"}
SPANS = st.builds(lambda low, times: Span(low, low * 2**times), st.integers(1, 64), st.integers(0, 8))


@given(SPANS)
def test_a_grid_begins_and_ends_with_its_span_and_doubles(span: Span) -> None:
    values = grid(span)
    assert (values[0], values[-1]) == span
    assert all(b == 2 * a for a, b in itertools.pairwise(values))


def test_gpus_without_kernel_tables_are_searched_only_if_asked() -> None:
    measured = space_of(BASE, {}, False)
    everything = space_of(BASE, {}, False, by_formula=True)
    assert "a10" not in grid(measured.axes["gpu"])
    assert {*grid(measured.axes["gpu"]), "a10"} <= {*grid(everything.axes["gpu"])}


def test_a_fixed_setting_is_not_searched_and_a_list_is() -> None:
    space = space_of(BASE, {"gpu": "h100", "scheduler.max_num_seqs": "64", "tp": [1, 2]}, False)
    assert grid(space.axes["gpu"]) == ("h100",)
    assert grid(space.axes["tp"]) == (1, 2)
    point = {"gpu": "h100", "preset": "vllm", "dtype": "bf16", "tp": 1}
    assert "scheduler.max_num_seqs" not in space.flags(point)
    assert Scenario.of(space.settings(point)).scheduler["max_num_seqs"] == 64


def test_a_list_of_any_setting_is_searched() -> None:
    space = space_of(BASE, {"gpu": "h100", "engine.block_size": "16,32"}, False)
    point = {"gpu": "h100", "preset": "vllm", "dtype": "bf16", "tp": 1}
    assert space.flags(point)["engine.block_size"] == ("16", "32")
    assert Scenario.of(space.settings({**point, "engine.block_size": "32"})).engine.block_size == 32


def test_flags_are_those_of_the_engine_of_a_deployment() -> None:
    space = space_of(BASE, {"gpu": "h100"}, True)
    point = {"gpu": "h100", "dtype": "bf16", "tp": 1}
    assert "scheduler.max_num_batched_tokens" in space.flags({**point, "preset": "vllm"})
    assert "scheduler.chunked_prefill_size" in space.flags({**point, "preset": "sglang"})
    assert "scheduler.max_num_tokens" in space.flags({**point, "preset": "tensorrt-llm"})


def test_a_scheduler_of_a_users_own_brings_its_own_values(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from servesim.policies.scheduling.vllm import Vllm\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Params(Vllm.Params):\n    patience: int = 3\n    searched = {'patience': (3, 5)}\n\n\n"
        "class Own(Vllm):\n    Params = Params\n"
    )
    space = space_of({**BASE, "scheduler": f"{file}:Own"}, {"gpu": "h100"}, True)
    assert "preset" not in space.axes
    assert space.flags({"gpu": "h100", "tp": 1, "dtype": "bf16"}) == {
        "scheduler.max_num_seqs": LIMITS["max_num_seqs"],
        "scheduler.max_num_batched_tokens": LIMITS["max_num_batched_tokens"],
        "scheduler.patience": (3, 5),
    }


def test_what_needs_shared_content_is_not_searched_without_it() -> None:
    point = {"gpu": "h100", "preset": "sglang", "dtype": "bf16", "tp": 1}
    for content in (False, True):
        space = space_of(BASE, {"gpu": "h100"}, content)
        assert ("offload" in space.features(point)) is content
        assert ("scheduler.schedule_policy" in space.flags(point)) is content


def test_routers_are_searched_only_for_several_replicas() -> None:
    space = space_of(BASE, {"gpu": "h100"}, True)
    point = {"gpu": "h100", "preset": "vllm", "dtype": "bf16", "tp": 1}
    assert "router" not in space.features(point)
    assert "llm-d" in space.features({**point, "replicas": 2})["router"]


def test_tuning_keeps_hardware_engine_and_formats() -> None:
    served = {**BASE, "preset": "vllm", "gpu": "h100", "tp": 2, "scheduler": {"name": "vllm", "max_num_seqs": 64}}
    space = space_of(served, {}, False, tuned=True)
    assert [*space.structures()] == [{"gpu": "h100"}]
    assert "scheduler.max_num_seqs" in space.flags({"gpu": "h100"})
    assert not {"tp", "dtype", "kv_dtype", "pd", "preset"} & space.features({"gpu": "h100"}).keys()


def test_equal_structures_are_one() -> None:
    space = space_of(BASE, {"gpu": "h100", "preset": "tensorrt-llm", "dtype": "fp8", "tp": "1"}, False)
    scenarios = [repr(Scenario.of(space.settings(point))) for point in space.structures()]
    assert len(scenarios) == len({*scenarios})


def test_pools_bring_their_own_replicas() -> None:
    assert changed({"gpu": "h100", "replicas": 4}, "pd", "1x1:1x1") == {"gpu": "h100", "pd": "1x1:1x1"}
    assert changed({"gpu": "h100", "replicas": 4}, "replicas", None) == {"gpu": "h100"}


@pytest.mark.parametrize("tp", [1, 2])
def test_a_model_too_large_is_refused_with_a_reason(tp: int) -> None:
    space = space_of({**BASE, "model": "llama-3.1-405b"}, {"gpu": "l40s", "dtype": "bf16"}, False)
    assert isinstance(space.set_up({"gpu": "l40s", "dtype": "bf16", "tp": tp}), str)


@pytest.mark.feature("handoff")
def test_none_and_auto_fix_a_setting_at_its_default() -> None:
    space = space_of({**BASE}, {"pd": "none", "kv_dtype": "auto"}, False)
    assert space.base["pd"] is None
    assert "pd" not in space.features({"gpu": "h100"})
    known = Scenario.of(space.settings(next(space.structures())))
    assert (known.kv_dtype, known.pools) == ("bf16", [])
    both = space_of({**BASE}, {"pd": "none,1x1:1x1", "kv_dtype": "auto,fp8"}, False)
    assert [Scenario.of(both.settings({"gpu": "h100", "kv_dtype": one})).kv_dtype for one in ("auto", "fp8")] == [
        "bf16",
        "fp8",
    ]
    assert [len(Scenario.of(both.settings({"gpu": "h100", "pd": one})).pools) for one in both.own["pd"]] == [0, 2]
