"""The measured cases: those of the table, the series that must grow linearly, optional features beside what they cost,
and the quick ones for CI."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("SERVESIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
"""Folder of public traces that the project does not hold."""
AZURE, MOONCAKE = "traces/azure/AzureLLMInferenceTrace_conv.csv", "traces/mooncake/conversation_trace.jsonl"
AZURE_RATE = 19_366 / 3_508  # requests/s, as recorded


@dataclass(frozen=True)
class Case:
    """One scenario to time."""

    about: str
    settings: dict[str, Any]
    """Keywords of servesim.simulate beyond those of BASE."""
    target: float | None = None
    """Least `unit` per CPU second of the loop (a `process` case: most CPU seconds in all)."""
    unit: str = "requests"
    file: str | None = None
    """Trace file below SHARED."""
    repeats: int = 3
    process: bool = False
    """Time the whole process of the command line, not the loop."""
    options: tuple[str, ...] = ()
    """Words of the command line of a `process` case beyond the scenario."""
    writes: bool = False
    """Whether a `process` case writes a result directory with its page (`--out`)."""
    group: str = field(default="table", kw_only=True)


BASE: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h200"}
PAGED: dict[str, Any] = {"kv": "paged"}
EAGLE: dict[str, Any] = {"kv": "paged", "speculation": "eagle:k=3", "acceptance": "positions:marginal=0.73/0.52/0.36"}
SYNTH = "synth:arrivals=poisson,rate=20,prompt=512,output=128"
EIGHT: dict[str, Any] = {"kv": "prefix-hash", "replicas": 8, "router": "round-robin", "requests": 10_000}


def _table() -> dict[str, Case]:
    quarter = {**PAGED, "rate": AZURE_RATE / 4}
    return {
        "azure": Case("Azure conv, 19,366 requests, paged", PAGED, 20_000, file=AZURE),
        "azure-quarter": Case("the same at a quarter of the rate", quarter, 1_000_000, "steps", AZURE),
        "synth-10k": Case("10,000 x 512/128, Poisson 20/s, paged", _synth(10_000), 25_000),
        "mooncake-8": Case("Mooncake conversation, prefix-hash, 8 replicas", EIGHT, 4_000, file=MOONCAKE),
        "azure-eagle": Case("Azure conv with EAGLE k=3, paged", EAGLE, 5_000, file=AZURE),
        "start-up": Case("servesim run on 10 requests, whole process", _synth(10), 1.5, "s", process=True),
    }


def _synth(requests: int) -> dict[str, Any]:
    return {**PAGED, "trace": SYNTH, "requests": requests}


def _series() -> dict[str, Case]:
    """Return the cases whose costs must not grow: per request with their number, per step with the batch, per request
    with the tree."""
    sizes = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000}
    cases = {
        f"linear-{name}": Case(f"{n:,} x 512/128", _synth(n), repeats=3 if n < 1e6 else 1, group="requests")
        for name, n in sizes.items()
    }
    for batch in (16, 64, 256, 1024):
        cases[f"batch-{batch}"] = Case(
            f"decode, at most {batch} at once, a finish every 64 steps", _decode(batch), unit="steps", group="batch"
        )
    for name, blocks in (("10k", 10_000), ("100k", 100_000), ("1m", 1_000_000)):
        cases[f"tree-{name}"] = Case(f"prefix tree of {blocks:,} blocks, full", _tree(blocks), group="tree")
    return cases


def _streams() -> dict[str, Case]:
    """Return the runs that must not grow in memory: 15 minutes for ten million requests is 11,111 a second."""
    sizes = {"100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
    return {
        f"stream-{name}": Case(
            f"{n:,} x 512/128, streamed", {**_synth(n), "stream": True}, 11_111, repeats=1, group="stream"
        )
        for name, n in sizes.items()
    }


def _decode(batch: int) -> dict[str, Any]:
    """Return a closed loop in which one request leaves and one enters every 64 steps, whatever the batch."""
    length = 64 * batch
    return {
        **PAGED,
        "trace": f"synth:rate=1000000,prompt=16,output=uniform({length // 2},{length * 3 // 2})",
        "requests": 4096,
        "clients": {"max_concurrency": batch},
        "scheduler": f"vllm:max_num_seqs={batch}",
        "engine": {"ignore_memory": True},
    }


def _tree(blocks: int) -> dict[str, Any]:
    """Return 20,000 prompts of 128 blocks, half of them with one of 40 common beginnings: the rest fills a million
    blocks."""
    return {
        "kv": "prefix-hash",
        "trace": "synth:rate=5,prompt=2048,output=16,prefix=shared(groups=40,length=1024)",
        "requests": 20_000,
        "engine": {"num_gpu_blocks": blocks, "ignore_memory": True},
    }


def _out() -> dict[str, Case]:
    """Return one run with and without its files: the second may take 0.8 s more. The comparison of engine versions is
    left out of both."""
    run = {"trace": "preset:azure-conv-2023", "requests": 2_000, "preset": "vllm"}
    cases = {
        "out-none": ("", False),
        "out-tables": (", files without the page", True),
        "out": (", files and page", True),
    }
    found = {}
    for name, (words, writes) in cases.items():
        options = ("--no-versions", *(["--no-report"] if name == "out-tables" else []))
        about = f"preset azure-conv-2023, whole process{words}"
        found[name] = Case(about, run, unit="s", process=True, options=options, writes=writes, group="out")
    return found


OWN = Path(__file__).with_name("own_schedulers.py")
POLICIES = {
    "vllm": "vllm",
    "user": f"{OWN}:Fcfs",
    "subclass": f"{OWN}:Derived",
    "sglang": "sglang",
    "static": "static",
    "sarathi": "sarathi",
}
"""Schedulers whose speed is compared with vllm's, by the end of their case's name."""


def _policies() -> dict[str, Case]:
    """10,000 requests at 30 a second, where most steps have an arrival or an end."""
    busy = {**PAGED, "rate": 30, "requests": 10_000}
    return {
        f"policy-{name}": Case(
            f"Azure conv at 30/s, paged, {name}", {**busy, "scheduler": scheduler}, file=AZURE, group="policies"
        )
        for name, scheduler in POLICIES.items()
    }


def _routers() -> dict[str, Case]:
    """Return routers that weigh every replica for every request, with the same load on each: half of a prompt is shared
    by one request in as many as there are replicas."""
    cases = {}
    for router in ("llm-d", "dynamo-kv"):
        for replicas in (8, 64, 512):
            shared = f"prefix=shared(groups={replicas},length=256)"
            settings = {
                "kv": "prefix-hash",
                "router": router,
                "replicas": replicas,
                "trace": f"synth:arrivals=poisson,rate={2 * replicas},prompt=512,output=128,{shared}",
                "requests": 5_000,
            }
            about = f"{router} before {replicas} replicas, 512/128"
            cases[f"{router}-{replicas}"] = Case(about, settings, repeats=1, group="routers")
    return cases


DRAFTS: dict[str, dict[str, Any]] = {
    "eagle": {"speculation": "eagle:k=3"},
    "ngram": {"speculation": "ngram"},
    "draft-model": {"speculation": "draft-model:model=llama-3.2-1b"},
    "medusa": {"speculation": "medusa:k=3,width=2"},
    "hash": {"speculation": "eagle:k=3", "kv": "prefix-hash"},
    "pp": {"speculation": "eagle:k=3", "pp": 2},
    "none": {},
}
"""Settings of drafts whose speed is compared with none's, by the end of their case's name."""


def _drafts() -> dict[str, Case]:
    conv = {**PAGED, "trace": "preset:azure-conv-2023", "requests": 4_000}
    return {
        f"drafts-{name}": Case(f"preset azure-conv-2023, drafts: {name}", {**conv, **settings}, group="drafts")
        for name, settings in DRAFTS.items()
    }


QUEUES = {
    "vllm": "vllm:max_num_seqs=16",
    "srpt-oracle": "srpt-oracle:max_num_seqs=16",
    "fastserve": "fastserve:max_num_seqs=16",
    "transformers": "transformers:max_num_seqs=16",
    "user": f"{OWN}:Fcfs",
}
"""Schedulers whose cost per request must not grow with the queue, by the beginning of their cases' names."""


def _queues() -> dict[str, Case]:
    """Return bursts of requests that wait for one of 16 places (`user`: of vLLM's number)."""
    trace = "synth:rate=1000000,prompt=uniform(16,64),output=uniform(4,12)"
    burst: dict[str, Any] = {**PAGED, "trace": trace, "engine": {"ignore_memory": True}}
    return {
        f"queue-{name}-{n}": Case(
            f"{n:,} at once, {name}", {**burst, "requests": n, "scheduler": scheduler}, group="queues"
        )
        for name, scheduler in QUEUES.items()
        for n in (1_000, 5_000, 20_000)
    }


def _features() -> dict[str, Case]:
    """Return runs with an optional feature, each after the run without it: named `-off`, it is their baseline."""
    conv: dict[str, Any] = {"kv": "prefix-hash", "requests": 4_000, "router": "round-robin"}
    chat: dict[str, Any] = {**EIGHT, "requests": 2_000}
    experts: dict[str, Any] = {**conv, "model": "qwen3-30b-a3b", "requests": 2_000}
    runs: dict[str, tuple[str, str, dict[str, Any]]] = {
        "conv-off": (AZURE, "Azure conv, prefix-hash", conv),
        "conv-64gib": (AZURE, "the same with 64 GiB of host memory", {**conv, "offload": "cpu=64GiB"}),
        "conv-2mib": (AZURE, "the same with 2 MiB of host memory", {**conv, "offload": "cpu=2MiB"}),
        "chat-off": (MOONCAKE, "Mooncake conversation, 8 replicas", chat),
        "chat-64gib": (MOONCAKE, "the same with 64 GiB of host memory each", {**chat, "offload": "cpu=64GiB"}),
        "pd-off": (AZURE, "Azure conv, 2 replicas", {**conv, "replicas": 2}),
        "pd-1p1d": (AZURE, "the same, prefill and decode apart", {**conv, "pd": "1x1:1x1"}),
        "dp-off": (AZURE, "Azure conv, Qwen3 30B A3B, 2 replicas", {**experts, "replicas": 2}),
        "dp-2": (AZURE, "the same as 2 data-parallel ranks", {**experts, "dp": 2}),
    }
    return {name: Case(about, settings, file=file, group="features") for name, (file, about, settings) in runs.items()}


def _quick() -> dict[str, Case]:
    """Return cases of a second or less each, from what the project holds."""
    conv: dict[str, Any] = {"trace": "preset:azure-conv-2023"}
    sparse = {**conv, **PAGED, "requests": 1_000, "rate": 1.4}
    mooncake = {**EIGHT, "trace": "preset:mooncake-conversation", "requests": 1_000}
    return {
        "quick-conv": Case("preset azure-conv-2023, paged", {**conv, **PAGED, "requests": 4_000}, group="quick"),
        "quick-sparse": Case("the same at 1.4 requests/s", sparse, unit="steps", group="quick"),
        "quick-synth": Case("4,000 x 512/128, Poisson 20/s", _synth(4_000), group="quick"),
        "quick-mooncake": Case("preset mooncake-conversation, 8 replicas", mooncake, group="quick"),
        "quick-eagle": Case("preset azure-conv-2023, EAGLE k=3", {**conv, **EAGLE, "requests": 500}, group="quick"),
    }


CASES: dict[str, Case] = {
    **_table(), **_policies(), **_series(), **_streams(), **_quick(),
    **_features(), **_routers(), **_drafts(), **_queues(), **_out(),
}  # fmt: skip
