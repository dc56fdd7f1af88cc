"""Forms of deployments: what is written is read back as the same scenario, from each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.form import forms
from servesim.errors import PolicyError, UserError
from servesim.launch import check_forms, forms_for, read, write
from servesim.launch.difference import whole
from servesim.launch.write import _read
from servesim.run.deployment_file import deployment
from tests.support.launched import apart, scenarios

BASE = {"trace": "synth:rate=1", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100", "preset": "vllm"}
FORMS = ("command", "compose", "dynamo", "kubernetes", "llm-d")


def held(settings: dict[str, Any], form: str) -> dict[str, Any]:
    """Return what the first file of a form holds without its comment."""
    text = next(iter(write(settings, form).values()))
    return _read(forms.resolve(form)[0](), text, form)


@pytest.mark.feature("handoff")
@pytest.mark.feature("data_parallel")
@given(st.data())
def test_every_form_that_holds_a_scenario_is_read_as_the_same_scenario(data: st.DataObject) -> None:
    settings = data.draw(scenarios() | apart())
    names = forms_for(settings)
    assert names
    for name in names:
        for text in write(settings, name).values():
            found = deployment(text, name)
            assert found is not None
            assert whole(found.settings) == whole(settings), name
            assert not found.unread, name
            assert text.count("# servesim: ") == 1


def test_a_file_is_read_wherever_a_scenario_is(tmp_path: Path) -> None:
    settings = BASE | {"tp": 2, "replicas": 3, "engine": {"block_size": 32}, "slo": "ttft:500"}
    for form in FORMS:
        for name, text in write(settings, form).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
            assert whole(read(tmp_path / name)) == whole(settings)


@pytest.mark.parametrize("form", FORMS[1:])
def test_replicas_tp_and_flags_are_held_outside_the_comment(form: str) -> None:
    found = held(BASE | {"tp": 2, "replicas": 3, "engine": {"block_size": 32}}, form)
    assert (found["tp"], found["replicas"], found["engine"]["block_size"]) == (2, 3, 32)


@pytest.mark.parametrize("form", ["compose", "kubernetes", "llm-d"])
def test_the_version_is_the_tag_of_the_image(form: str) -> None:
    assert held(BASE | {"engine": {"version": "0.30.0"}}, form)["engine"]["version"] == "0.30.0"


@pytest.mark.parametrize(
    ("form", "router"),
    [
        ("kubernetes", {"name": "sglang-cache-aware", "cache_threshold": 0.5, "max_tree_size": 1024}),
        ("kubernetes", {"name": "sglang-cache-aware", "disable_circuit_breaker": True}),
        ("compose", {"name": "vllm-router-cache-aware", "cb_failure_threshold": 3, "cb_timeout_duration_secs": 2}),
        ("compose", {"name": "vllm-router-cache-aware", "balance_abs_threshold": 32}),
        ("compose", {"name": "power-of-two"}),
        ("dynamo", {"name": "dynamo-kv", "router_temperature": 0.5, "router_queue_policy": "wspt"}),
        ("dynamo", {"name": "dynamo-kv-approximate", "overlap_score_credit": 0.5}),
        ("dynamo", {"name": "dynamo-kv", "active_decode_blocks_threshold": 0.85}),
        ("dynamo", {"name": "least-requests"}),
        ("llm-d", {"name": "llm-d", "prefix_weight": 5, "session_weight": 0.5, "block_size": 32}),
        ("llm-d", {"name": "llm-d-precise", "queue_weight": 3}),
    ],
)
def test_a_router_is_held_by_the_forms_of_its_system(form: str, router: dict[str, Any]) -> None:
    assert held(BASE | {"replicas": 2, "router": router}, form)["router"] == router


def test_an_autoscaler_of_kubernetes_is_held_by_its_object() -> None:
    scaler = {"name": "hpa", "max": 4, "metric": "kv", "target": 0.75, "down_window_s": 60.0, "up_pods": 2}
    assert held(BASE | {"scaler": scaler}, "kubernetes")["scaler"] == scaler


@pytest.mark.parametrize(
    "scaler",
    [
        {"name": "keda"},
        {"name": "keda", "max": 4, "metric": "kv", "target": 0.75, "polling_s": 15.0, "cooldown_s": 60.0},
        {"name": "keda", "min": 2, "metric": "running", "target": 24.0, "down_window_s": 60.0, "up_pods": 2},
    ],
)
@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_keda_is_held_by_its_object(preset: str, scaler: dict[str, Any]) -> None:
    assert held(BASE | {"preset": preset, "scaler": scaler}, "kubernetes")["scaler"] == scaler


def test_a_trigger_of_keda_asks_for_the_sum_of_the_metric_over_the_pods() -> None:
    text = write(BASE | {"scaler": "keda:metric=waiting,target=3"}, "kubernetes")["kubernetes.yaml"]
    [found] = [one for one in yaml.safe_load_all(text) if one["kind"] == "ScaledObject"]
    [trigger] = found["spec"]["triggers"]
    query = 'sum(vllm:num_requests_waiting{pod=~"llama-3-1-8b-instruct-server-.*"})'
    assert (trigger["metadata"]["query"], trigger["metadata"]["threshold"]) == (query, "3")


def test_the_autoscaler_of_llm_d_is_held_by_a_variant_and_the_object_that_carries_it_out() -> None:
    scaler = {"name": "llm-d-wva", "min": 2, "max": 6}
    assert held(BASE | {"scaler": scaler}, "kubernetes")["scaler"] == scaler
    text = write(BASE | {"scaler": scaler | {"kv_threshold": 0.7}}, "kubernetes")["kubernetes.yaml"]
    variant, pods = (one for one in yaml.safe_load_all(text) if "Autoscal" in one["kind"])
    assert variant["spec"]["modelID"] == BASE["model"]
    selector = pods["spec"]["metrics"][0]["external"]["metric"]["selector"]
    assert selector == {"matchLabels": {"variant_name": variant["metadata"]["name"]}}
    assert "scaler.kv_threshold=0.7" in text.partition("\n")[0]
    assert "scaler" not in held(BASE | {"preset": "sglang", "scaler": scaler}, "kubernetes")


def test_what_keda_has_no_key_for_is_in_the_comment() -> None:
    for scaler in ("keda:min=0", "keda:tolerance=0.2", "keda:polling_s=7.5"):
        text = write(BASE | {"scaler": scaler}, "kubernetes")["kubernetes.yaml"]
        found = deployment(text, "file")
        assert found is not None
        assert whole(found.settings) == whole(BASE | {"scaler": scaler})
        assert "scaler" in text.partition("\n")[0]
    assert "ScaledObject" not in write(BASE | {"scaler": "keda:min=0"}, "kubernetes")["kubernetes.yaml"]


@pytest.mark.parametrize(
    ("form", "preset"),
    [("command", "tensorrt-llm"), ("compose", "tensorrt-llm"), ("kubernetes", "tensorrt-llm"), ("dynamo", "sglang"),
     ("llm-d", "vllm")],
)  # fmt: skip
def test_drafts_are_held_outside_the_comment(form: str, preset: str) -> None:
    found = held(BASE | {"preset": preset, "speculation": "eagle3:k=4"}, form)
    assert found["speculation"] == {"name": "eagle3", "k": 4} or found["speculation"] == "eagle3:k=4"


@pytest.mark.feature("handoff")
@pytest.mark.parametrize(
    "scaler",
    [
        {"name": "dynamo-planner"},
        {"name": "dynamo-planner", "loops": "load", "ttft_ms": 300.0, "itl_ms": 22.5, "min": 2, "max_gpu_budget": 16},
        {"name": "dynamo-planner", "predictor": "kalman", "throughput_s": 60.0, "load_s": 10.0, "sensitivity": 0.7},
    ],
)
@pytest.mark.parametrize("pd", [None, "2x1:2x1"])
def test_dynamos_planner_is_held_by_a_component(scaler: dict[str, Any], pd: str | None) -> None:
    found = held(BASE | {"scaler": scaler, "pd": pd, "replicas": 1 if pd else 2}, "dynamo")
    assert [pool["scaler"] for pool in found.get("pools") or [found]] == [scaler] * (2 if pd else 1)


def test_what_dynamos_planner_has_no_key_for_is_in_the_comment() -> None:
    settings = BASE | {"replicas": 2, "scaler": {"name": "dynamo-planner", "max": 4, "isl": 500}}
    text = write(settings, "dynamo")["dynamo.yaml"]
    found = deployment(text, "file")
    assert found is not None
    assert whole(found.settings) == whole(settings)
    assert "scaler.max=4 scaler.isl=500" in text.partition("\n")[0]


@pytest.mark.feature("handoff")
@pytest.mark.parametrize("form", ["dynamo", "llm-d"])
def test_prefill_and_decode_apart_are_two_pools(form: str) -> None:
    found = held(BASE | {"pd": "2x1:1x4"}, form)["pools"]
    assert [(pool["name"], pool["role"], pool.get("replicas", 1), pool.get("tp", 1)) for pool in found] == [
        ("prefill", "prefill", 2, 1),
        ("decode", "decode", 1, 4),
    ]


@pytest.mark.feature("handoff")
@pytest.mark.parametrize("form", ["compose", "kubernetes"])
def test_prefill_and_decode_apart_are_refused_where_nothing_connects_them(form: str) -> None:
    with pytest.raises(UserError, match="prefill and decode apart need a form that connects them: dynamo or llm-d"):
        write(BASE | {"pd": "2x1:1x4"}, form)
    assert forms_for(BASE | {"pd": "2x1:1x4"}) == ["dynamo", "llm-d"]


def test_pools_of_different_settings_are_servers_of_their_own() -> None:
    settings = BASE | {"pools": ["fast:gpu=h200,tp=2", "cheap:gpu=h100,replicas=2"]}
    text = write(settings, "kubernetes")["kubernetes.yaml"]
    assert "gpu=h200 engine.version=null pools.cheap.gpu=h100" in text.partition("\n")[0]
    found = deployment(text, "file")
    assert found is not None
    assert whole(found.settings) == whole(settings)


def test_gpus_of_one_host_are_given_out_once() -> None:
    text = write(BASE | {"tp": 2, "replicas": 3}, "compose")["compose.yaml"]
    services = yaml.safe_load(text)["services"]
    devices = [one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for one in services.values()]
    assert devices == [["0", "1"], ["2", "3"], ["4", "5"]]
    text = write(BASE | {"tp": 8, "replicas": 3}, "compose")["compose.yaml"]
    assert yaml.safe_load(text)["services"]["server"]["deploy"]["replicas"] == 3


def test_an_unknown_form_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"unknown form 'kubernets' \(did you mean \"kubernetes\"\?\)"):
        write(BASE, "kubernets")


def test_a_form_of_ones_own_is_named_by_file_and_class(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """from servesim.contracts.form import Deployment, Form
from servesim.launch.engine_command import engine_command
from servesim.run.serve_command import served


class Line(Form):
    def files(self, scenario):
        return {"line.yaml": f"kind: Line\\nrun: {engine_command(scenario).text()}\\n"}

    def recognizes(self, documents):
        return documents[0].get("kind") == "Line"

    def deployment(self, documents):
        return Deployment(served(documents[0]["run"]).settings)
""",
        encoding="utf-8",
    )
    text = write(BASE | {"tp": 2}, f"{tmp_path / 'mine.py'}:Line")["line.yaml"]
    assert text.endswith("run: vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2\n")
    assert text.startswith("# servesim: ")


@pytest.mark.parametrize(
    ("files", "deployment", "said"),
    [
        ("{}", "None", r"Own: files returns \{\} but must return the texts of its files by name"),
        ("{'a.yaml': 'a: 1'}", "None", "Own: deployment returns None but must return a Deployment"),
        ("{'a.yaml': 'a: 1'}", "documents[0]['b']", r"Own: deployment raises KeyError: 'b' \(own.py line 9\)"),
        ("1 / 0", "None", "Own: files raises ZeroDivisionError"),
    ],
)
def test_a_form_that_breaks_its_contract_is_found_before_it_is_needed(
    files: str, deployment: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        f"""from servesim.contracts.form import Form


class Own(Form):
    def files(self, scenario):
        return {files}

    def deployment(self, documents):
        return {deployment}
"""
    )
    with pytest.raises(PolicyError, match=said):
        check_forms([f"{tmp_path / 'own.py'}:Own"])


def test_a_form_may_refuse_the_small_deployment_of_its_check(tmp_path: Path) -> None:
    text = (
        "from servesim.contracts.form import Form\nfrom servesim.errors import UserError\n\n\n"
        "class Pools(Form):\n    def refusal(self, scenario):\n        return 'it has no pools'\n\n"
        "    def files(self, scenario):\n        raise UserError('not now')\n\n"
        "    def deployment(self, documents):\n        raise UserError('not now')\n"
    )
    (tmp_path / "own.py").write_text(text)
    name = f"{tmp_path / 'own.py'}:Pools"
    check_forms([name])
    assert forms_for(BASE, [name]) == []
