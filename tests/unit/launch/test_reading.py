"""Deployment files of others become scenarios, and what is not understood is named in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from servesim.cli.app import app
from servesim.contracts.form import Deployment
from servesim.errors import UserError
from servesim.launch import read, write
from servesim.run.deployment_file import deployment

SHELL = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: cache}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mistral}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.30.0
        command: [/bin/sh, -c]
        args: ["vllm serve mistralai/Mistral-7B-v0.3 --trust-remote-code --max_num_batched_tokens 1024 --made-up 1"]
        env:
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: token, key: token}}}
        resources: {limits: {nvidia.com/gpu: "2"}}
"""
COMPOSE = """
services:
  prometheus: {image: prom/prometheus}
  vllm:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B --tensor-parallel-size 2
    environment: [VLLM_USE_V1=0]
    deploy: {replicas: 3, resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
"""
DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: apart}
spec:
  services:
    Frontend:
      componentType: frontend
      envs: [{name: DYN_ROUTER_MODE, value: kv}]
    Decode:
      componentType: worker
      replicas: 2
      resources: {limits: {gpu: "1"}}
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-0.6B, --is-decode-worker]
    Prefill:
      componentType: worker
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-0.6B, --is-prefill-worker, --max-num-seqs, "8"]
"""
KSERVE = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: qwen3-32b}
spec:
  model: {uri: hf://RedHatAI/Qwen3-32B-FP8-dynamic, name: qwen}
  replicas: 2
  parallelism: {tensor: 2}
  router: {scheduler: {}, route: {}, gateway: {}}
  template: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "2"}}}]}
  baseRefs: [{name: other}]
"""


def found(text: str) -> Deployment:
    deployed = deployment(text, "file")
    assert deployed is not None
    return deployed


def test_a_deployment_whose_shell_starts_the_server_is_read() -> None:
    read_ = found(SHELL)
    assert read_.settings == {
        "preset": "vllm",
        "model": "mistralai/Mistral-7B-v0.3",
        "scheduler": {"name": "vllm", "max_num_batched_tokens": 1024},
        "engine": {"version": "0.30.0"},
        "replicas": 2,
    }
    assert read_.unread == [
        "PersistentVolumeClaim cache",
        "--made-up 1",
        "mistral: 2 GPUs per replica, but the command uses 1",
    ]


def test_a_compose_file_is_read_by_the_images_own_entry_point() -> None:
    read_ = found(COMPOSE)
    assert read_.settings == {"preset": "vllm-v0", "model": "Qwen/Qwen3-8B", "tp": 2, "replicas": 3}
    assert read_.unread == ["service prometheus"]


def test_the_older_version_of_dynamos_graph_is_read() -> None:
    settings = found(DYNAMO).settings
    assert settings["router"] == {"name": "dynamo-kv"}
    assert [(pool["name"], pool["role"], pool.get("replicas", 1)) for pool in settings["pools"]] == [
        ("Decode", "decode", 2),
        ("Prefill", "prefill", 1),
    ]
    assert settings["pools"][1]["scheduler"]["max_num_seqs"] == 8


def test_a_service_of_kserve_is_read_with_its_parallelism() -> None:
    read_ = found(KSERVE)
    assert read_.settings == {
        "preset": "vllm",
        "model": "RedHatAI/Qwen3-32B-FP8-dynamic",
        "tp": 2,
        "replicas": 2,
        "router": {"name": "llm-d"},
    }
    assert read_.unread == ["spec.baseRefs"]


def test_a_scenario_is_no_deployment() -> None:
    assert deployment("model: llama-3.1-8b\ntrace: x.csv\ngpu: h200\n", "file") is None


@pytest.mark.parametrize(
    "text",
    [
        "kind: Deployment\nspec: {template: {spec: {containers: [{name: web, image: nginx}]}}}\n",
        "services: {web: {image: nginx, command: serve}}\n",
        "kind: DynamoGraphDeployment\nspec: {components: [{name: web, type: frontend}]}\n",
        "kind: ConfigMap\nmetadata: {name: x}\n",
        "kind: Deployment\nspec: [1, 2]\n",
        "kind: LLMInferenceService\nspec: 3\n",
        "services: {web: 3}\n",
        "a: 1\n---\nb: 2\n",
    ],
)
def test_a_file_that_starts_no_engine_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read(tmp_path / "web.yaml")
    assert "web.yaml: " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_of_a_deployment_names_what_it_does_not_understand(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text(SHELL, encoding="utf-8")
    words = ["run", str(tmp_path / "deployment.yaml"), "--trace", "synth:rate=2,n=10", "--gpu", "h100", "--no-versions"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (
        "NOT UNDERSTOOD and without effect: PersistentVolumeClaim cache; --made-up 1; mistral: 2 GPUs" in result.output
    )


def test_a_run_of_a_file_without_an_engine_ends_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text("services: {web: {image: nginx}}\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "servesim", "run", tmp_path / "web.yaml"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: scenario {tmp_path / 'web.yaml'}: no engine command found")
    assert result.stderr.count("\n") == 1


def test_a_malformed_comment_is_one_line() -> None:
    with pytest.raises(UserError, match="# servesim: trace: must have the form key=value"):
        found(f"# servesim: trace\n{KSERVE}")


JUNK = (None, 3, 2.5, "", "'", [], {}, [None], [{}], {"a": 1}, True)
WRITTEN = (
    ("kubernetes", {"scaler": "hpa", "router": "sglang-cache-aware", "replicas": 2}),
    ("kubernetes", {"scaler": "llm-d-wva"}),
    ("kubernetes", {"scaler": "keda", "preset": "sglang"}),
    ("kubernetes", {"preset": "tensorrt-llm", "speculation": "eagle3:k=2"}),
    ("compose", {"preset": "tensorrt-llm", "speculation": "eagle3:k=2"}),
    ("compose", {"router": "vllm-router-cache-aware", "replicas": 2}),
    ("dynamo", {"scaler": "dynamo-planner", "replicas": 2}),
    ("dynamo", {"router": "dynamo-kv", "pd": "1x1:1x1"}),
    ("llm-d", {"router": "llm-d", "pd": "1x1:1x1"}),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to every part of a document."""
    yield from [at] if at else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


@pytest.mark.feature("handoff")
@pytest.mark.parametrize(("form", "more"), WRITTEN)
@given(st.data())
def test_a_manifest_with_a_part_of_another_type_is_a_deployment_or_one_line(
    form: str, more: dict[str, Any], data: st.DataObject
) -> None:
    scenario = {"trace": "synth:rate=1", "model": "Qwen/Qwen3-8B", "gpu": "h100", "preset": "vllm"} | more
    documents = list(yaml.safe_load_all(write(scenario, form)[f"{form}.yaml"]))
    *outer, last = data.draw(st.sampled_from(list(places(documents))))
    part: Any = documents
    for key in outer:
        part = part[key]
    part[last] = data.draw(st.sampled_from(JUNK))
    said = ""
    try:
        deployment(yaml.safe_dump_all(documents), "file")
    except UserError as error:
        said = str(error)
    assert "\n" not in said
