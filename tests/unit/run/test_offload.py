"""The setting `offload`: what it may say, what it cannot be combined with, and its figures."""

from __future__ import annotations

from typing import Any

import pytest

from servesim import Scenario, simulate
from servesim.errors import UserError
from servesim.features.offload.params import size_in_bytes

TURNS = "synth:arrivals=poisson,rate=4,prompt=600,output=40,turns=chat(turns=4,think=2)"
SMALL: dict[str, Any] = {"trace": TURNS, "model": "llama-3.1-8b", "gpu": "h100", "requests": 80, "conclude": False}


def run(**more: Any) -> dict[str, Any]:
    return simulate(**{**SMALL, "engine": {"num_gpu_blocks": 400}, **more}).summary


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64GiB", 64 * 2**30), ("1.5 TB", 1_500_000_000_000), ("1e9", 10**9), ("512", 512), ("2kB", 2000)],
)
def test_sizes_have_units(text: str, expected: int) -> None:
    assert size_in_bytes(text) == expected


@pytest.mark.parametrize(
    ("offload", "message"),
    [
        ("vllm", "cpu is missing"),
        ("vllm:cpu=64", "is too small for a block, which takes 2 MiB"),
        ("vllm:cpu=64gigs", "'64gigs' is not a size"),
        ("vllm:cpu=-1GiB", "'-1GiB' is not a size"),
        ("lmcash:cpu=1GiB", "unknown connector 'lmcash'"),
        ("lmcache:cpu=1GiB,disk=1TB", "disk and disk_gb_s must be specified together"),
        ("lmcache:cpu=1GiB,remote_gb_s=3", "remote and remote_gb_s must be specified together"),
        ("lmcache:cpu=1GiB,disk=1TB,disk_gb_s=0", "disk_gb_s is 0"),
        ("lmcache:cpu=1MiB", "cpu=1MiB is too small for a block, which takes 32 MiB"),
        ("lmcache:cpu=1GiB,disk=1MB,disk_gb_s=5", "disk=1MB is too small for a block"),
        ("cpu=1GiB,gb_s=0", "must be above 0"),
        ("lmcache:cpu=1GiB,remote_server_gb_s=3", "remote_server_gb_s must be above 0, and needs remote"),
        ("store:store=1TB", "gb_s is missing"),
        ("store:store=1TB,gb_s=25,server_gb_s=0", "server_gb_s is 0"),
        ("store:store=1MB,gb_s=25", "store=1MB is too small for a block, which takes 2 MiB"),
        ("store:store=big,gb_s=25", "store: 'big' is not a size"),
        ("cpu=1GiB,eviction_policy=fifo", "eviction_policy"),
        ("cpu=1GiB,disk=2GiB", "unknown parameter 'disk'"),
    ],
)
def test_what_it_says_is_checked(offload: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        run(offload=offload)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"preset": "sglang"}, "scheduler sglang cannot load KV from host memory this way; use vllm"),
        ({"scheduler": "sarathi"}, "scheduler sarathi cannot load KV"),
        ({"model": "gpt-oss-20b"}, "sliding windows, whose offload is not modeled"),
        ({"offload": "lmcache:cpu=8GiB", "preset": "sglang"}, "scheduler sglang cannot load KV"),
        ({"offload": "hicache", "scheduler": "sarathi"}, "this way; use sglang"),
        ({"offload": "lmcache:cpu=8GiB", "pp": 2}, "pipeline stages \\(pp\\), for lmcache"),
    ],
)
def test_what_cannot_be_combined_is_refused_in_one_line(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        run(**{"offload": "cpu=8GiB", **more})
    assert "\n" not in str(error.value)


def test_none_is_none_and_cpu_alone_is_vllm() -> None:
    known = {key: SMALL[key] for key in ("trace", "model", "gpu")}
    assert Scenario.of({**known, "offload": "none"}).offload is None
    assert Scenario.of({**known, "offload": "cpu=64GiB"}).offload == {"name": "vllm", "cpu": "64GiB"}
    assert "offload" not in Scenario.of(known).model_dump()


def test_tokens_are_told_apart_by_where_they_were_found_and_a_resolved_run_says_the_same() -> None:
    without, summary = run(), run(offload="cpu=8GiB")
    assert "offload" not in without
    figures = summary["offload"]
    assert figures["capacity_tokens"] == 8 * 2**30 // 131_072
    assert figures["hit_rate"]["gpu"] == summary["prefix_cache"]["hit_rate"]
    assert figures["hit_rate"]["cpu"] > 0.1
    assert figures["loaded_tokens"] >= figures["hit_rate"]["cpu"] * summary["prefix_cache"]["queried_tokens"]
    # 31.25 GB/s would be PCIe 4; of the H100's 64 GB/s 50 are said: 16 tokens of 131,072 B take 41.943 us
    assert figures["load_ms"]["min"] >= 0.041943
    assert any("copied at 50 GB/s" in note for note in summary["notes"])
    again = simulate(summary["scenario"], conclude=False).summary
    assert {**again, "provenance": 0} == {**summary, "provenance": 0}


def test_a_slower_link_makes_what_is_loaded_later_and_a_host_memory_that_holds_nothing_changes_hardly_anything() -> (
    None
):
    fast, slow = run(offload="cpu=8GiB"), run(offload="cpu=8GiB,gb_s=0.5")
    assert slow["latency_ms"]["ttft"]["mean"] > fast["latency_ms"]["ttft"]["mean"]
    assert slow["offload"]["load_busy_share"] > fast["offload"]["load_busy_share"]
    tiny = run(offload="cpu=2MiB")
    assert tiny["offload"]["hit_rate"]["cpu"] == pytest.approx(0, abs=0.01)


def test_lmcache_tells_each_tier_apart_and_what_steps_waited_for() -> None:
    figures = run(offload="lmcache:cpu=400MiB,disk=8GiB,disk_gb_s=5,remote=1TB,remote_gb_s=1")["offload"]
    assert list(figures["hit_rate"]) == ["gpu", "cpu", "disk", "remote"]
    assert figures["capacity_tokens"] == 400 * 2**20 // (256 * 131_072) * 256
    assert figures["hit_rate"]["disk"] > 0.1
    assert figures["hit_rate"]["remote"] == 0, "the disk has all that the store has"
    assert set(figures["tiers"]) == {"disk", "remote"}
    assert figures["tiers"]["remote"]["write_busy_share"] > figures["tiers"]["disk"]["write_busy_share"] > 0
    # a chunk of 33.6 MB takes 6.7 ms from the disk and .67 ms to the GPU
    assert figures["load_ms"]["min"] >= 0.67
    assert figures["stalled_s"] > figures["load_ms"]["mean"] / 1000


def test_replicas_share_a_remote_store_and_not_a_disk() -> None:
    """Prompts with one head, sent to two replicas in turn: what one stored the other finds, if it is in the store."""
    trace = "synth:arrivals=constant,rate=2,prompt=600,output=4,prefix=shared(groups=1,length=512)"
    found = {}
    for tier in ("disk", "remote"):
        summary = run(
            trace=trace, requests=4, replicas=2, router="round-robin", kv="paged",
            offload=f"lmcache:cpu=8GiB,{tier}=8GiB,{tier}_gb_s=5",
        )  # fmt: skip
        found[tier] = summary["offload"]["hit_rate"][tier], summary["offload"]["hit_rate"]["cpu"]
    # 512 of 600 tokens: the third and fourth request find them in their own replica's host memory, the second elsewhere
    assert found["disk"][0] == 0
    assert found["remote"] == (pytest.approx(512 / 2400), pytest.approx(2 * 512 / 2400))


def of_roles(prefill: str | None = None, decode: str | None = None, **more: Any) -> dict[str, Any]:
    """A run with prefill and decode apart, whose pools have this memory, or that of all."""
    own = {"prefill": prefill, "decode": decode}
    pools = [{"name": role, "role": role, **({"offload": host} if host else {})} for role, host in own.items()]
    return run(**more, pools=pools)


@pytest.mark.feature("handoff")
def test_pools_have_memory_of_their_own_or_that_of_all_and_a_resolved_run_says_the_same() -> None:
    both = run(pd="1x1:1x1", offload="cpu=8GiB")
    assert of_roles(offload="cpu=8GiB")["offload"] == both["offload"]
    prefill = of_roles(prefill="cpu=8GiB")
    assert of_roles(decode="none", offload="cpu=8GiB")["offload"] == prefill["offload"]
    assert set(prefill["offload"]["pools"]) == {"prefill"}
    assert set(both["offload"]["pools"]) == {"prefill", "decode"}
    assert both["offload"]["pools"]["prefill"] == prefill["offload"]["pools"]["prefill"]
    assert both["offload"]["capacity_tokens"] == 2 * prefill["offload"]["capacity_tokens"]
    assert "offload" not in of_roles(prefill="none", decode="none", offload="cpu=8GiB")
    for summary in (prefill, of_roles(decode="cpu=8GiB")):
        again = simulate(summary["scenario"], conclude=False).summary
        assert {**again, "provenance": 0} == {**summary, "provenance": 0}


@pytest.mark.feature("handoff")
def test_host_memory_saves_the_prefill_side_prompts_and_the_wire_nothing() -> None:
    without, summary = run(pd="1x1:1x1"), of_roles(prefill="cpu=8GiB")
    figures = summary["offload"]["pools"]["prefill"]
    assert figures["hit_rate"]["gpu"] == summary["pools"]["prefill"]["hit_rate"]
    assert figures["hit_rate"]["cpu"] > 0.1
    sums = [each["disaggregation"] for each in (without, summary)]
    assert sums[0]["gigabytes"] == sums[1]["gigabytes"]
    assert sums[1]["stages_ms"]["prefill"]["mean"] < sums[0]["stages_ms"]["prefill"]["mean"]


@pytest.mark.feature("handoff")
@pytest.mark.parametrize("name", ["vllm", "lmcache"])
def test_the_decode_side_pulls_all_unless_its_host_memory_comes_first(name: str) -> None:
    without = run(pd="1x1:1x1")["disaggregation"]
    second = of_roles(decode=f"{name}:cpu=8GiB")
    assert second["disaggregation"]["gigabytes"] == pytest.approx(without["gigabytes"], rel=0.001)
    assert second["disaggregation"]["transfers"] == without["transfers"]
    assert second["offload"]["hit_rate"]["cpu"] == 0
    assert second["offload"]["stored_tokens"] > 10_000
    first = of_roles(decode=f"{name}:cpu=8GiB,first=true")
    assert first["offload"]["hit_rate"]["cpu"] > 0.1
    assert first["disaggregation"]["transfers"] < without["transfers"] == first["requests"]["completed"]


@pytest.mark.feature("handoff")
def test_kv_with_which_the_first_token_comes_cannot_come_second() -> None:
    with pytest.raises(
        UserError, match="offload: first: KV that comes with the first token must come from the prefill"
    ):
        run(pd="1x1:1x1", handoff="trtllm", offload="cpu=8GiB,first=true")


@pytest.mark.feature("handoff")
def test_hicache_is_behind_the_prefill_side_only_and_says_so() -> None:
    summary = run(**SGLANG, pd="1x1:1x1", offload="hicache")
    assert set(summary["offload"]["pools"]) == {"prefill"}
    assert summary["offload"]["hit_rate"]["cpu"] > 0.05
    assert sum("HiCache is off in pools of the role decode" in note for note in summary["notes"]) == 1


@pytest.mark.feature("handoff")
def test_pipeline_stages_are_refused_in_the_pool_that_has_lmcache_alone() -> None:
    pools = [{"name": "p", "role": "prefill", "offload": "cpu=8GiB", "pp": 2}, {"name": "d", "role": "decode"}]
    assert run(pools=pools)["offload"]["stored_tokens"] > 0
    pools[0]["offload"] = "lmcache:cpu=8GiB"
    with pytest.raises(UserError, match="pipeline stages"):
        run(pools=pools)


SGLANG = {"preset": "sglang", "kv": {"name": "prefix-radix", "page_size": 16}}


def test_hicache_keeps_a_multiple_of_the_gpu_s_memory_and_loads_beside_the_layers() -> None:
    without, summary = run(**SGLANG), run(**SGLANG, offload="hicache:ratio=3")
    figures = summary["offload"]
    gpu_tokens = summary["kv"]["capacity_tokens"]
    assert figures["capacity_tokens"] == 3 * gpu_tokens // 64 * 64
    assert figures["hit_rate"]["cpu"] > 0.05
    assert figures["hit_rate"]["gpu"] == summary["prefix_cache"]["hit_rate"]
    assert summary["latency_ms"]["ttft"]["mean"] < without["latency_ms"]["ttft"]["mean"]
    half = run(**SGLANG, offload="hicache:ratio=1")["offload"]
    assert half["capacity_tokens"] == gpu_tokens // 64 * 64
    assert half["hit_rate"]["cpu"] < figures["hit_rate"]["cpu"]


def test_what_comes_once_is_not_stored_where_hicache_is_selective() -> None:
    trace = "synth:arrivals=poisson,rate=4,prompt=600,output=40"
    assert run(**SGLANG, trace=trace, offload="hicache")["offload"]["stored_tokens"] > 40_000
    assert (
        run(**SGLANG, trace=trace, offload="hicache:write_policy=write_through_selective")["offload"]["stored_tokens"]
        == 0
    )


@pytest.mark.feature("handoff")
def test_a_store_is_one_for_prefill_and_decode_replicas_with_as_many_gpus() -> None:
    """The prompt of a turn begins with the answer before it, which only the decode side computed."""
    trace = "synth:arrivals=poisson,rate=4,prompt=300,output=100,turns=chat(turns=3,think=2)"
    found = {}
    for pd, offload in (
        ("1x1:1x1", "cpu=64GiB"),
        ("1x1:1x1", "store:store=1TB,gb_s=25"),
        ("1x1:1x2", "store:store=1TB,gb_s=25"),
    ):
        summary = run(trace=trace, requests=30, pd=pd, offload=offload, engine={})
        found[pd, offload] = summary["offload"]["pools"]["prefill"]["loaded_tokens"]
    assert found["1x1:1x1", "cpu=64GiB"] == found["1x1:1x2", "store:store=1TB,gb_s=25"] == 0
    assert found["1x1:1x1", "store:store=1TB,gb_s=25"] >= 20 * 64, "of each of 20 answers most of 100 tokens"


def test_the_bandwidth_that_replicas_share_is_in_the_summary_and_host_memory_only_where_there_is_some() -> None:
    figures = run(offload="store:store=1TB,gb_s=25,server_gb_s=1", replicas=2, router="round-robin")["offload"]
    assert {*figures["hit_rate"]} == {"gpu", "store"}
    assert {"capacity_tokens", "peak_share", "load_busy_share"}.isdisjoint(figures)
    store = figures["tiers"]["store"]
    # a replica's link is 25 times as fast, and there are two of them
    assert store["server_write_busy_share"] == pytest.approx(store["write_busy_share"] * 2 * 25, rel=1e-6)
    assert store["server_read_busy_share"] == pytest.approx(store["read_busy_share"] * 2 * 25, rel=1e-6)
