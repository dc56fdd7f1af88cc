"""Published comparisons of engines, on short workloads."""

from __future__ import annotations

import numpy as np
import pytest

from servesim_lab.claims import find
from servesim_lab.claims.published_goodput import point
from servesim_lab.claims.published_orca import latency
from servesim_lab.claims.published_paging import normalized
from servesim_lab.claims.published_sarathi import capacity, decode_ms, lengths_of
from servesim_lab.claims.published_sharing import prefix_gains, saved
from servesim_lab.claims.rates import highest, solve


def test_searches_find_where_something_happens() -> None:
    assert solve(lambda x: x * x, 2.0, 0.1, 2.0, 1e-6) == pytest.approx(2**0.5)
    assert [solve(lambda x: x, target, 1.0, 3.0, 0.1) for target in (0.5, 4.0)] == [1.0, 3.0]
    assert 6.9 < highest(lambda rate: rate <= 7, 0.1, 100.0, within=0.01) <= 7
    assert highest(lambda rate: False, 0.1, 100.0) == 0.1


def test_orca_serves_at_a_latency_many_times_what_one_at_a_time_does() -> None:
    (one,) = find("orca")
    given = one.given(requests=80)
    orca, single = (given["systems"][name] for name in ("Orca", "FasterTransformer, one at a time"))
    assert latency(given, single, 0.05) == pytest.approx(latency(given, orca, 0.05), rel=0.1)
    assert latency(given, orca, 3.0) < given["level_ms"] < latency(given, single, 1.0)


def test_lengths_have_the_published_quantiles() -> None:
    for name, shape in find("sarathi")[0].given()["datasets"].items():
        prompt, output = lengths_of(name, shape, 20_000)
        assert np.median(prompt) == pytest.approx(shape["prompt"][0], rel=0.03)
        assert np.percentile(output, 90) == pytest.approx(shape["output"][1], rel=0.05)
        assert (prompt + output).max() <= shape["most"]


def test_chunks_carry_more_within_a_strict_limit() -> None:
    given = find("sarathi")[0].given(requests=150)
    deployment = given["deployments"]["Mistral-7B, A100"]
    limit = given["limits"]["strict"]["times"] * decode_ms(deployment)
    rates = [
        capacity(given, deployment, "openchat_sharegpt4", limit, scheduler)
        for scheduler in (given["vllm"], f"{given['sarathi']},chunk_size=512")
    ]
    print(f"strict limit {limit:.0f} ms: vLLM {rates[0]:.2f}, Sarathi-Serve {rates[1]:.2f} requests/s")
    assert rates[1] > 1.5 * rates[0] > 0


def test_large_blocks_waste_memory() -> None:
    (one,) = find("paging-ablations")
    given = one.given(workloads={"ShareGPT": {"rate": 2.5, "requests": 300}})
    small, large = (normalized(given, "ShareGPT", block, "recompute") for block in (16, 256))
    assert large > 1.5 * small


def test_the_number_of_drafts_falls_with_load_and_gains_with_it() -> None:
    given = find("goodput-drafts")[0].given()
    given = {**given, "base": {**given["base"], "requests": 120}}
    light, heavy = (point(given, 0.7, rate) for rate in (1, 48))
    assert light.gain > 1.5
    assert light.drafts > 2 * heavy.drafts
    assert heavy.gain > heavy.fixed


def test_samples_of_one_prompt_share_its_whole_blocks() -> None:
    given = find("sharing")[0].given()
    loads = {"ShareGPT": {"rate": 0.7, "requests": 150}}
    given = {**given, "parallel": {**given["parallel"], "workloads": loads}}
    one, two, six = (saved(given, "ShareGPT", samples) for samples in (1, 2, 6))
    assert one == pytest.approx(0, abs=0.002)
    assert 0.1 < two < six < 5 / 6  # all but one copy, of prompts alone


@pytest.mark.slow
def test_a_common_prefix_raises_the_rate_over_computing_it_each_time() -> None:
    given = find("sharing")[0].given()
    given = {**given, "prefix": {**given["prefix"], "seconds": 20}, "rates": [10, 50]}
    gain, fused = prefix_gains(given, 341)
    assert gain > fused > 1.3
