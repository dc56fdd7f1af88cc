"""Both modes say the same in every byte of summary.json but the mode they echo, on shipped tables."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

import servesim
from tests.support.examples import examples

MODELS = {
    "llama-3.1-8b": ("h100", "h200", "a100"),
    "qwen3-0.6b": ("l40s", "h100"),
    "qwen3-30b-a3b": ("h200",),
}
DRAFTS = (None, "ngram:k=3", "draft-model:model=llama-3.2-1b,k=2", "eagle:k=3")


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Small runs over priced tables: contexts within and beyond what was measured, pipelines, drafts."""
    model = draw(st.sampled_from(sorted(MODELS)))
    prompt, output = draw(st.sampled_from([100, 1_000, 9_000])), draw(st.sampled_from([2, 40, 300]))
    found: dict[str, Any] = {
        "trace": f"synth:arrivals=poisson,rate={draw(st.sampled_from([1, 20]))},prompt={prompt},output={output}",
        "requests": draw(st.integers(1, 12)),
        "model": model,
        "gpu": draw(st.sampled_from(MODELS[model])),
        "tp": draw(st.sampled_from([1, 2])),
        "seed": draw(st.integers(0, 5)),
    }
    if draw(st.integers(0, 3)) == 0:
        found["pp"] = 2
    elif model == "llama-3.1-8b" and (drafts := draw(st.sampled_from(DRAFTS))) is not None:
        found["speculation"] = drafts
    return found


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    """The same of several replicas: pools that differ, prompts apart, autoscalers, what breaks, data-parallel ranks."""
    kind = draw(st.sampled_from(("pools", "apart", "scaling", "failures", "ranks")))
    rate = draw(st.sampled_from([2, 40]))
    prompt, output = draw(st.sampled_from([100, 1_000, 9_000])), draw(st.sampled_from([2, 40, 300]))
    found: dict[str, Any] = {
        "trace": f"synth:arrivals=poisson,rate={rate},prompt={prompt},output={output}",
        "requests": draw(st.integers(1, 40)),
        "model": "llama-3.1-8b",
        "gpu": draw(st.sampled_from(["h100", "h200"])),
        "router": draw(st.sampled_from(["round-robin", "least-requests", "least-requests:counts=reported"])),
        "cluster": {"report_every_s": draw(st.sampled_from([0.0, 0.05, 2.0]))},
        "seed": draw(st.integers(0, 5)),
    }
    if kind == "pools":
        slow = {"name": "slow", "gpu": "l40s", "replicas": draw(st.integers(1, 2)), "engine": {"block_size": 32}}
        fast = {"name": "fast", "kv": draw(st.sampled_from(["paged", "prefix-hash"]))}
        found["pools"] = draw(st.sampled_from([[fast, slow], [slow, fast], [fast]]))
    elif kind == "apart":
        found["pd"] = draw(st.sampled_from(["1x1:1x1", "2x1:1x2", "1x2:2x1"]))
        found["handoff"] = draw(st.sampled_from(["vllm-nixl", "vllm-nixl:link=tcp-100,lease_s=0.1"]))
    elif kind == "scaling":
        scaler = draw(
            st.sampled_from(["hpa:target=1,sync_s=0.5", "keda:polling_s=0.5,min=0,cooldown_s=1", "llm-d-wva"])
        )
        found |= {
            "scaler": scaler,
            "start": {"boot_s": 0, "compile_s": 0, "graphs_s": 0, "weights_gb_s": 100, "warm_up_s": 0.2},
        }
    elif kind == "failures":
        at = draw(st.sampled_from([0, 0.3, 2]))
        breaks = [f"crash:replica=0,at={at},restart=1", f"slow:replica=1,at={at},until=3,factor=3"]
        upgrade = f"upgrade:at={at},startup=0.4,grace=0.2,surge={draw(st.integers(0, 1))}"
        breaks = draw(st.sampled_from([breaks, [upgrade, "crash:node=1,at=0.5,restart=1"]]))
        more = {"failures": breaks, "detection_s": at, "gpus_per_node": 1}
        found |= {"replicas": 2, "cluster": {**found["cluster"], **more}}
    else:
        found |= {"model": "qwen3-30b-a3b", "gpu": "h200", "dp": draw(st.sampled_from([2, 4]))}
        found |= {"ep": draw(st.sampled_from([None, 2])), "router": None, "requests": min(found["requests"], 12)}
    return found


@examples(8)
@given(clusters())
def test_summary_json_of_clusters_is_the_same_bytes_in_both_modes(settings: dict[str, Any]) -> None:
    fast = assert_summaries_agree(settings)
    event(f"replicas: {len(fast.get('replicas', ()))}, {[key for key in ('pd', 'dp', 'scaler') if settings.get(key)]}")


@examples(25)
@given(scenarios())
def test_summary_json_is_the_same_bytes_in_both_modes(settings: dict[str, Any]) -> None:
    fast = assert_summaries_agree(settings)
    shares = fast["cost_shares"]
    event(f"several sources: {sum(bool(share) for share in shares.values()) > 1}")
    event(f"drafts: {'speculation' in settings}, stages: {settings.get('pp', 1)}")


def assert_summaries_agree(settings: dict[str, Any]) -> dict[str, Any]:
    """Run a scenario in both modes; return the summary of the fast one, but for the mode."""
    fast, plain = (servesim.simulate(**settings, mode=mode).summary for mode in ("fast", "reference"))
    assert (fast["scenario"].pop("mode"), plain["scenario"].pop("mode")) == ("fast", "reference")
    assert json.dumps(fast) == json.dumps(plain)
    return fast
