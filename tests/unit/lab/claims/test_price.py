"""Prices and the waterfall: what adds up, and what each step is made of."""

from __future__ import annotations

from typing import Any

import pytest

from servesim import simulate
from servesim_lab.claims import Outcome, Row, find
from servesim_lab.claims.price import Price, highest_rate, most_users, price_of, prompts_alone

SMALL: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100", "kv": "paged", "usd_per_gpu_hour": 2, "host": "none"}


def run(name: str, **changes: Any) -> tuple[Outcome, dict[str, Row]]:
    (one,) = find(name)
    outcome = one.run(one.given(**changes))
    rows = {row.what: row for row in outcome.rows}
    assert len(rows) == len(outcome.rows), "names of rows must differ"
    return outcome, rows


def test_input_and_output_add_up_to_the_price_of_the_run() -> None:
    settings = {**SMALL, "trace": "synth:rate=20,prompt=500,output=100", "requests": 100}
    price = price_of(settings)
    run = simulate(settings).summary
    tokens = run["requests"]["input_tokens"], run["requests"]["output_tokens"]
    assert price.input * tokens[0] + price.output * tokens[1] == pytest.approx(1e6 * run["price"]["usd"])
    assert 0 < price.input < price.output


def test_input_costs_the_prompts_alone() -> None:
    settings = {**SMALL, "trace": "synth:rate=20,prompt=500,output=100", "requests": 64}
    seconds = simulate({**settings, "trace": "synth:rate=20,prompt=500,output=1", "rate": float("inf")}).summary
    assert prompts_alone(settings) == pytest.approx(2 * seconds["duration_s"] / 3600 / (64 * 500) * 1e6)


def test_the_highest_rate_meets_the_slo_and_a_higher_one_does_not() -> None:
    settings = {**SMALL, "trace": "synth:rate=1,prompt=2000,output=20", "requests": 60}
    slo = {"ttft": 300.0}
    rate = highest_rate(settings, slo, 0.9, 0.5, 200)

    def attained(at: float) -> float:
        return float(simulate({**settings, "rate": at, "slo": slo}).summary["goodput"]["slo_attainment"])

    assert 1 < rate < 100
    assert attained(rate) >= 0.9 > attained(1.03 * rate)


def test_prices_read_as_dollars() -> None:
    assert str(Price(0.3, 0.6)) == "$0.30 in, $0.60 out"


def test_the_most_users_meet_the_speed_and_one_step_more_do_not() -> None:
    base = {**SMALL, "trace": "synth:prompt=500,output=50"}
    given = {"tokens_per_s": 60, "attainment": 0.99, "rounds": 2}
    most = most_users(base, given)
    assert 1 < most < 1024

    def attained(clients: int) -> float:
        load = {"requests": clients * 2, "rate": float("inf"), "clients": {"max_concurrency": clients}}
        summary = simulate({**base, **load, "slo": {"tpot": 1e3 / 60}}).summary
        return float(summary["goodput"]["slo_attainment"])

    assert attained(most) >= 0.99 > attained(most + max(1, most // 40))


@pytest.mark.medium
def test_a_thousand_users_need_far_fewer_than_a_thousand_gpus() -> None:
    _, rows = run("thousand-users", deployments={"fp8 on 2": {"tp": 2, "dtype": "fp8"}}, rounds=1)
    (row,) = rows.values()
    assert row.published == "1,000 H100, $2,000/h"
    gpus = int(row.simulated.split()[0])
    assert gpus < 60
    assert row.simulated == f"{gpus} H100, ${2 * gpus}/h"


def test_the_price_falls_with_the_load_and_output_costs_more() -> None:
    (one,) = find("price-per-token")
    curve = {**one.given()["curve"], "clients": [1, 32], "rounds": 2}
    deployments = {"bf16 on 4 H100": {"tp": 4}}
    outcome, rows = run("price-per-token", requests=150, rates=[1, 1.02], deployments=deployments, curve=curve)
    assert rows["price per million tokens, 70B, bf16 on 4 H100, saturated"].published == "$0.30 in, $0.60 out"
    output, prompts = outcome.figures[0].curves  # type: ignore[union-attr]
    assert output.y[0] > 5 * output.y[1] > 5 * prompts.y[1]  # type: ignore[operator]


@pytest.mark.medium
def test_the_waterfall_is_every_step_over_those_before_it_and_multiplies_up() -> None:
    (one,) = find("naive-to-production")
    given = one.given()
    outcome, rows = run("naive-to-production", base={**given["base"], "requests": 12})
    assert [s["name"] for s in given["steps"]] == [
        "bf16",
        "KV cache",
        "FlashAttention",
        "int8",
        "speculation",
        "batching and paging",
    ]
    for i, workload in enumerate(given["workloads"]):
        gains = [float(rows[f"+ {s['name']}, {workload}"].simulated.split()[0]) for s in given["steps"]]
        product = 1.0
        for gain in gains:
            product *= gain
        whole = rows[f"all of them in practice, {workload}"]
        assert float(whole.simulated.split()[0].replace(",", "")) == pytest.approx(product, rel=0.05)
        assert whole.note.startswith("900 x on paper")
        speeds = [values[i] for values in outcome.figures[0].rows.values()]  # type: ignore[union-attr]
        assert speeds[0] == min(speeds)
    assert "% of the GPU time by formula" in rows["+ int8, prompts of 512"].note
