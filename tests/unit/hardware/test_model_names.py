"""Names of models: Hugging Face ids, formats at their end, and the shapes they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.errors import UserError
from servesim.hardware import ModelSpec, bundled_models, model_named
from servesim.hardware.names import _table
from servesim.run.scenario import Scenario

IDS: list[tuple[str, str, str | None]] = [
    ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", None),
    ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b", None),
    ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", None),
    ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b", None),
    ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b", "fp8"),
    ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", "fp8"),
    ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "int8"),
    ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "llama-3.1-70b", "int4"),
    ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a16", "llama-3.1-70b", "int8_wo"),
    ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "int4"),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "int4"),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", "int8_wo"),
    ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8"),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", "fp8"),
    ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3", "fp8"),
    ("openai/gpt-oss-120b", "gpt-oss-120b", None),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", None),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b", None),
    ("nvidia/Llama-3.1-70B-Instruct-NVFP4", "llama-3.1-70b", "nvfp4"),
    ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air", "fp8"),
    ("zai-org/GLM-4.6", "glm-4.5", None),
    ("zai-org/GLM-4.6-FP8", "glm-4.5", "fp8"),
    ("Qwen/Qwen3.5-9B", "qwen3.5-9b", None),
]


@pytest.mark.parametrize(("name", "model", "dtype"), IDS)
def test_ids_of_hugging_face_name_a_shape_and_a_format(name: str, model: str, dtype: str | None) -> None:
    found = model_named(name)
    assert found is not None
    assert (found.model, found.dtype) == (model, dtype)


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.9-70B",
        "mistralai/Mistral-7B-v0.9",
        "a/b/llama-3.1-8b",
        "Qwen/Qwen3-VL-8B-Instruct",
        "llama",
        "",
    ],
)
def test_names_of_other_shapes_are_not_taken_for_one(name: str) -> None:
    assert model_named(name) is None


def test_what_differs_in_a_family_is_changed() -> None:
    assert ModelSpec.load("meta-llama/Meta-Llama-3-8B-Instruct").max_position == 8192
    assert ModelSpec.load("Qwen/Qwen3-235B-A22B-Instruct-2507").max_position == 262_144
    assert ModelSpec.load("mistralai/Mistral-7B-Instruct-v0.3").sliding_window is None
    assert ModelSpec.load("mistral-7b").sliding_window == 4096


def test_every_name_of_the_table_leads_to_a_model() -> None:
    assert {entry["model"] for entry in _table()["same"].values()} <= set(bundled_models())
    assert set(_table()["published"]) <= set(bundled_models())
    for name in _table()["same"]:
        found = model_named(f"org/{name}-Instruct")
        assert found is not None, name
        ModelSpec.load(f"org/{name}-Instruct")


def scenario(**settings: Any) -> Scenario:
    return Scenario.of({"trace": "synth:rate=1", "gpu": "h100", **settings})


def test_the_name_sets_the_dtype_unless_one_is_given() -> None:
    assert scenario(model="RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8").dtype == "fp8"
    assert scenario(model="RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", dtype="bf16").dtype == "bf16"
    assert scenario(model="llama-3.1-70b").dtype == "bf16"


def test_an_unknown_model_is_refused_in_a_line_that_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r'unknown model .*did you mean "llama-3.1-70b".*config.json'):
        ModelSpec.load("meta-llama/Llama-3.9-70B")
