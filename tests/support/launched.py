"""Scenarios that a launch command may hold, drawn from the table of flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from servesim.launch.engine_command import ENGINES
from servesim.run.flag_meanings import serve_flags
from servesim.run.part_names import with_parts
from servesim.run.scenario import Scenario

WHOLE = st.integers(1, 64)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "engine.gpu_memory_utilization": st.floats(0.1, 1),
    "engine.swap_space_gib": st.floats(0, 64),
    "scheduler.schedule_conservativeness": st.floats(1e-6, 4),
    "engine.async_scheduling": st.booleans(),
    "engine.max_model_len": st.just("auto") | st.integers(16, 1 << 20),
    "engine.num_gpu_blocks": st.integers(2, 1 << 20),
    "scheduler.policy": st.sampled_from(["fcfs", "priority"]),
    "scheduler.schedule_policy": st.sampled_from(["fcfs", "lpm", "random"]),
}
"""Values of settings that flags take as they are; others are whole numbers."""
MODELS = (
    "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct",
    "openai/gpt-oss-20b",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-8B-FP8",
)
OTHERS: Mapping[str, st.SearchStrategy[Any]] = {
    "rate": st.sampled_from([2.5, 1e-7, "3x", "inf"]),
    "slo": st.sampled_from(["ttft:500", "ttft:p99<1s,tpot:p50<50ms", {"e2el": 30000.0}]),
    "slo_classes": st.just({"gold": {"ttft": 300.0}}),
    "replicas": st.integers(1, 9),
    "router": st.sampled_from(
        [
            "least-requests",
            "power-of-two:counts_in_flight=false",
            "sglang-cache-aware:cache_threshold=0.5",
            "vllm-router-cache-aware",
            {"name": "llm-d", "prefix_weight": 5},
        ]
    ),
    "scaler": st.sampled_from(
        [
            "hpa",
            "hpa:max=4,target=7.5",
            {"name": "hpa", "min": 2, "down_window_s": 60.0},
            "keda:max=3",
            "keda:min=0,metric=kv,target=0.8",
            "llm-d-wva:max=3,kv_threshold=0.7",
            {"name": "dynamo-planner", "max": 4, "ttft_ms": 300.0},
        ]
    ),
    "clients.max_concurrency": WHOLE,
    "clients.tool": st.just("vllm-bench"),
    "price": st.just({"h200": 2.5}),
    "columns": st.just("arrival='Request Time',prompt=in,output=out, unit=us \"é\u2028\n#:"),
    "engine.version": st.sampled_from(["0.30", "0.11.0"]),
    "engine.expert_skew": st.floats(0, 3),
    "ep": st.integers(1, 4),
    "speculation": st.sampled_from(
        [
            "ngram:k=4",
            {"name": "eagle3", "k": 2},
            "mtp",
            "draft-model:model=llama-3.2-1b",
            "ngram:prompt_lookup_min=2",
            "medusa:width=2",
            "eagle:k=1",
        ]
    ),
    "scheduler": st.sampled_from([{"name": "sarathi", "chunk_size": 256}, "vllm:max_num_seqs=7"]),
    "start": st.just({"node_s": 30.0}),
    "kv": st.sampled_from(["paged", "hybrid", {"name": "prefix-hash", "free_order": "front"}]),
}
"""Settings that hardly any flag holds."""


@st.composite
def scenarios(draw: st.DrawFn, most_others: int = 3, **given: Any) -> dict[str, Any]:
    """Draw a scenario of vLLM, SGLang or TensorRT-LLM with flags of its engine as settings, and others."""
    preset = given.pop("preset", None) or draw(st.sampled_from(sorted(ENGINES, key=str)))
    settings = {
        "trace": "synth:rate=1",
        "model": draw(st.sampled_from(MODELS)),
        "gpu": draw(st.sampled_from(["h100", "h200"])),
    }
    settings |= {"preset": preset} | given
    keys = _keys(ENGINES[preset])
    parts = {key: draw(keys[key]) for key in draw(st.lists(st.sampled_from(sorted(keys)), max_size=6, unique=True))}
    parts = {key: value for key, value in parts.items() if value is not None}
    others = draw(st.lists(st.sampled_from(sorted(OTHERS)), max_size=most_others, unique=True))
    if preset not in ("vllm", None):
        others = [key for key in others if key not in ("engine.version", "scheduler")]
    parts |= {key: draw(OTHERS[key]) for key in sorted(others)}
    return with_parts(settings, parts, Scenario)


def _keys(engine: str) -> dict[str, st.SearchStrategy[Any]]:
    """Return the values of each setting that a flag of an engine sets."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for meaning in serve_flags()[engine].values():
        if isinstance(meaning, str):
            found.setdefault(meaning, VALUES.get(meaning, WHOLE))
        for key, to in (meaning or {}).items() if isinstance(meaning, Mapping) else ():
            values = [value for value in to.values() if value is not None] if isinstance(to, Mapping) else [to]
            if values:
                found[key] = found[key] | st.sampled_from(values) if key in found else st.sampled_from(values)
    found.pop("preset", None)
    return found


@st.composite
def apart(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario whose prefill and decode replicas are apart."""
    settings = draw(scenarios(preset=draw(st.sampled_from(["vllm", "sglang"]))))
    for key in ("scaler", "start", "replicas"):
        settings.pop(key, None)
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 4)) for _ in range(4)]
        return settings | {"pd": "{}x{}:{}x{}".format(*sizes)}
    names = draw(st.sampled_from([("prefill", "decode"), ("P 1", "p.1")]))
    roles = ("prefill", "decode")
    return settings | {
        "pools": [
            {
                "name": name,
                "role": role,
                "tp": draw(st.integers(1, 4)),
                "gpu": draw(st.sampled_from(["h100", "h200"])),
                "engine": {"block_size": draw(st.sampled_from([16, 32]))},
            }
            for name, role in zip(names, roles, strict=True)
        ]
    }
