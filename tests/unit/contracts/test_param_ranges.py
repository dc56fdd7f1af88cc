"""Parameters out of their range are refused at the start, in one line that names them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import servesim
from servesim.contracts import acceptance_models, build_params, kv_allocators, routers, schedulers, speculators
from servesim.contracts.scaler import scalers
from servesim.errors import UserError

REGISTRIES = (schedulers, kv_allocators, routers, speculators, acceptance_models, scalers)
BELOW_ZERO = {
    ("dynamo-planner", "max_gpu_budget"): "no limit",
    ("sglang", "chunked_prefill_size"): "to disable chunking",
    ("sglang", "priority_scheduling_preemption_threshold"): "a difference of priorities",
}
"""Parameters for which -1 means something."""


def numeric() -> list[tuple[str, type[Any], str]]:
    found = []
    for registry in REGISTRIES:
        for name in registry.names():
            params = registry.resolve(name)[0].Params
            kinds = {field.name: str(field.type) for field in dataclasses.fields(params)}
            found += [(name, params, field) for field, kind in kinds.items() if "int" in kind or "float" in kind]
    return found


@pytest.mark.parametrize(("name", "params", "field"), numeric(), ids=lambda value: str(value))
def test_a_number_below_zero_is_refused_unless_it_means_something(name: str, params: type[Any], field: str) -> None:
    if (name, field) in BELOW_ZERO:
        build_params(name, params, {field: -1})
        return
    with pytest.raises(UserError, match=field) as error:
        build_params(name, params, {field: -1})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "params", "field"), numeric(), ids=lambda value: str(value))
def test_a_whole_number_of_hundreds_of_digits_is_refused_in_one_line(name: str, params: type[Any], field: str) -> None:
    for digits in ("9" * 400, "-" + "9" * 400):
        with pytest.raises(UserError, match=field) as error:
            build_params(name, params, {field: digits})
        assert len(str(error.value)) < 320  # 200 of them for the number


SMALL = {"trace": "synth:arrivals=poisson,rate=50,prompt=200,output=4", "requests": 3, "model": "llama-3.1-8b"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"scheduler": "sglang:chunked_prefill_size=15"},
            r"=15 is smaller than a page of kv prefix-hash \(16 tokens\), so no prompt longer than "
            "chunked_prefill_size could ever run",
        ),
        (
            {"scheduler": "sglang:chunked_prefill_size=63", "kv": "prefix-radix:page_size=64"},
            r"kv prefix-radix \(64 tokens\)",
        ),
        ({"scheduler": "sglang:prefill_max_requests=0"}, "prefill_max_requests is 0 but must be at least 1"),
        (
            {"scheduler": "vllm:max_num_batched_tokens=1", "speculation": "draft-model:model=llama-3.2-1b"},
            "max_num_batched_tokens=1 leaves no token after reserving draft_slots_per_request=1",
        ),
        ({"scheduler": "vllm:max_num_active_seqs=0"}, "max_num_active_seqs is 0"),
        ({"scheduler": "fastserve:free_fraction=1"}, "free_fraction is 1 but must be at least 0 and less than 1"),
        ({"speculation": "ngram:prompt_lookup_min=6"}, "prompt_lookup_min 6 is above prompt_lookup_max"),
        ({"speculation": "ngram:host_us_per_sequence=1e300"}, "from 0 to 1e6"),
        ({"speculation": "ngram", "acceptance": "synthetic:length=1e300"}, "at most 1,024 drafts"),
    ],
)
def test_what_could_never_run_is_refused_before_the_first_step(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        servesim.simulate(**SMALL, gpu="h200", **settings)


def test_the_least_chunk_and_budget_that_can_run_do() -> None:
    for settings in (
        {"scheduler": "sglang:chunked_prefill_size=16"},
        {"scheduler": "vllm:long_prefill_token_threshold=4"},  # less than a block
        {"scheduler": "vllm:max_num_batched_tokens=2", "speculation": "draft-model:model=llama-3.2-1b"},
    ):
        assert servesim.simulate(**SMALL, gpu="h200", **settings).summary["requests"]["completed"] == 3
