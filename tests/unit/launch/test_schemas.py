"""Manifests fit the published schemas of their systems (schemas/: the parts that are written, with their sources).

The files of the custom resources are too large to be read whole: their schemas here are put together from the parts
around what is written. Those of Deployment, Service and the roles of Kubernetes are by the fields of its documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from servesim.launch import forms_for, write
from tests.support.launched import apart, scenarios

FOLDER = Path(__file__).parent / "schemas"
SCHEMAS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml")}
BASE = {"trace": "synth:rate=1", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100", "preset": "vllm"}


def check(text: str) -> None:
    """Validate every document of a file; raise ValidationError for one that does not fit."""
    for document in yaml.safe_load_all(text):
        kind = document.get("kind", "compose")
        schema = SCHEMAS.get(kind.lower()) or SCHEMAS["kubernetes"][kind]
        jsonschema.Draft7Validator(schema).validate(document)


@pytest.mark.feature("handoff")
@given(st.data())
def test_every_written_manifest_fits_its_schema(data: st.DataObject) -> None:
    settings = data.draw(scenarios() | apart())
    for form in forms_for(settings):
        for name, text in write(settings, form).items():
            if name.endswith(".yaml"):
                check(text)


@pytest.mark.feature("handoff")
@pytest.mark.parametrize(
    ("form", "more"),
    [
        ("kubernetes", {"scaler": "hpa:metric=kv,target=0.7", "router": "sglang-cache-aware"}),
        ("kubernetes", {"scaler": "llm-d-wva:max=4"}),
        ("kubernetes", {"scaler": "keda:metric=running,target=24,max=4"}),
        ("kubernetes", {"preset": "tensorrt-llm", "speculation": "eagle3"}),
        ("compose", {"preset": "tensorrt-llm", "speculation": "mtp:k=2"}),
        ("compose", {"router": "vllm-router-cache-aware", "replicas": 3}),
        ("dynamo", {"scaler": "dynamo-planner", "replicas": 2}),
        ("dynamo", {"pd": "2x1:1x4", "router": "dynamo-kv"}),
        ("llm-d", {"pd": "2x1:1x4", "router": "llm-d:prefix_weight=5"}),
        ("llm-d", {"router": "llm-d-precise", "tp": 2}),
    ],
)
def test_manifests_with_all_their_parts_fit(form: str, more: dict[str, Any]) -> None:
    check(write(BASE | more, form)[f"{form}.yaml"])


@pytest.mark.parametrize("form", ["kubernetes", "compose", "dynamo", "llm-d"])
def test_a_misspelled_key_does_not_fit(form: str) -> None:
    text = write(BASE, form)[f"{form}.yaml"]
    with pytest.raises(jsonschema.ValidationError):
        check(text.replace("image:", "imagee:"))


def test_the_name_of_a_long_model_is_a_valid_name(tmp_path: Path) -> None:
    settings = BASE | {"model": "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16"}
    for form in ("kubernetes", "dynamo", "llm-d"):
        check(write(settings, form)[f"{form}.yaml"])
