"""Deployments that an engine refuses for the format of their weights, and formats slower than bf16."""

from __future__ import annotations

from typing import Any

import pytest

from servesim import simulate
from servesim.errors import UserError

ONE = {"trace": "synth:prompt=64,output=2", "requests": 1, "gpu": "h200", "tp": 8}
EIGHT = {"model": "qwen3-235b-a22b", "dtype": "fp8", **ONE}


@pytest.mark.parametrize("preset", [None, "vllm", "sglang"])
def test_experts_in_fp8_blocks_split_over_8_gpus_are_refused_as_the_engine_refuses_them(preset: str | None) -> None:
    with pytest.raises(UserError, match=r"= 192 is not divisible by .* block_n = 128.*engine\.enable_expert_parallel"):
        simulate({**EIGHT, "preset": preset})


@pytest.mark.parametrize(
    "other",
    [
        {"engine": {"enable_expert_parallel": True}},
        {"tp": 4},
        {"preset": "tensorrt-llm"},
        {"dtype": "bf16"},
        {"model": "RedHatAI/Qwen3-235B-A22B-FP8-dynamic"},
    ],
)
def test_ways_out_of_the_refusal_run(other: dict[str, Any]) -> None:
    assert simulate({**EIGHT, **other}).summary["requests"]["completed"] == 1


def slower(**settings: Any) -> list[str]:
    notes = simulate({**ONE, **settings}).summary["warnings"]
    return [note for note in notes if "times as long as with bf16 weights" in note]


def test_a_format_several_times_slower_than_bf16_is_said_with_the_operator_that_is() -> None:
    (note,) = slower(model="RedHatAI/Qwen3-235B-A22B-FP8-dynamic")
    assert note.startswith("dtype=fp8: a step of 32 sequences takes ")
    assert "Most of the difference is in experts" in note


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int4"])
def test_formats_that_are_not_slower_have_no_note(dtype: str) -> None:
    assert not slower(model="llama-3.1-70b", dtype=dtype)
