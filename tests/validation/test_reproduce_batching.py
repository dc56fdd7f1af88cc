"""The course's claims on batching, on short workloads."""

from __future__ import annotations

import pytest

from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.hardware import Gpu, ModelSpec
from servesim_lab.claims import Outcome, Row, find
from servesim_lab.claims.batching_prefix import saved
from servesim_lab.claims.batching_selective import SAMPLING, decoding, linear_ns, mixed
from servesim_lab.claims.batching_steps import Stay, play


def run(name: str, **changes: object) -> tuple[dict[str, Row], Outcome]:
    (one,) = find(name)
    outcome = one.run(one.given(**changes))
    for row in outcome.rows:
        print(f"{row.what}: {row.published} published, {row.simulated} here, {row.verdict}; {row.note}")
    return {row.what: row for row in outcome.rows}, outcome


def test_a_static_batch_waits_for_its_longest_and_a_continuous_one_does_not() -> None:
    given = find("batching-steps")[0].given()
    static = play(given, given["static"])
    assert static.stays == {
        "A": Stay(1, 500, 500),
        "B": Stay(1, 10, 500),
        "C": Stay(501, 590, 700),
        "D": Stay(501, 700, 700),
    }
    assert static.steps == 500 + 200
    assert static.wasted == (500 - 10) + (200 - 90)
    continuous = play(given, given["continuous"])
    assert continuous.stays == {
        "A": Stay(1, 500, 500),
        "B": Stay(1, 10, 10),
        "C": Stay(11, 100, 100),
        "D": Stay(101, 300, 300),
    }
    assert continuous.steps == 500
    assert continuous.wasted == 500 - 300  # nobody is left to join A
    assert continuous.seconds < static.seconds


def test_the_example_of_the_lecture_holds_to_the_step() -> None:
    rows, outcome = run("batching-steps")
    assert {row.verdict for row in rows.values()} == {"reproduced", "shown"}
    assert rows["continuous: D joins when C leaves, at step"].simulated == "101"
    assert rows["asynchronous scheduling, first token of"].simulated == "C at step 12, D at 103"
    static = outcome.figures[0]
    assert static.rows == {  # type: ignore[union-attr]
        "place 1": [(0, 500, "A"), (500, 590, "C")],
        "place 2": [(0, 10, "B"), (500, 700, "D")],
    }


@pytest.mark.slow
def test_continuous_batching_gains_nothing_where_answers_are_even_and_more_the_less_they_are() -> None:
    rows, outcome = run("continuous-batching", requests=640, spreads=[0, 0.25, 1.0])
    assert rows["throughput against static batches, ShareGPT"].verdict == "reproduced"
    assert rows["use of the batch, static to continuous"].verdict == "reproduced"
    assert rows["price per token at 32 users"].verdict == "corrected"
    assert rows["vLLM to generate(), one request at a time"].verdict == "reproduced"
    curves = {curve.label: curve.y for curve in outcome.figures[0].curves}  # type: ignore[union-attr]
    gains = [a / b for a, b in zip(curves["continuous (V1)"], curves["static"], strict=True)]
    assert gains[0] == pytest.approx(1, abs=0.02)
    assert gains == sorted(gains)


def test_linear_layers_see_one_flat_batch_and_attention_one_request_at_a_time() -> None:
    rows, _ = run("selective-batching")
    assert {row.verdict for row in rows.values()} == {"reproduced", "shown"}
    cost = build_cost_model(ModelSpec.load("opt-13b"), Gpu.load("a100-40g"), 1)
    flat = mixed([100, 500], 3, 64, "per_request")
    assert flat.linear_tokens == 100 + 500 + 3
    assert linear_ns(cost, flat) == linear_ns(cost, Batch(linear_tokens=603, prefill=[(603, 0)], sampled=1))
    assert set(SAMPLING) & set(breakdown(cost, flat))
    assert cost.price(decoding(1, 512, "per_request")) == cost.price(decoding(1, 512, "fused"))
    assert cost.price(decoding(16, 512, "per_request")).ns > 1.1 * cost.price(decoding(16, 512, "fused")).ns


@pytest.mark.parametrize(("kv", "unit"), [("prefix-hash", 16), ("prefix-radix", 1)])
def test_a_common_prefix_is_computed_once_for_each_group(kv: str, unit: int) -> None:
    given = find("prefix-caching")[0].given(groups=2)
    given = {**given, "base": {**given["base"], "requests": 50, "rate": 1}}
    whole = 900 // unit * unit  # in whole blocks
    assert saved(given, kv, 900).computed == 50 * 1000 - 48 * whole
    assert saved(given, "paged", 900).computed == 50 * 1000


def test_prefix_caching_removes_what_prompts_share() -> None:
    rows, _ = run("prefix-caching", prefixes=[0, 900])
    assert {row.verdict for row in rows.values()} == {"reproduced", "shown"}
    assert rows["prefill removed where prompts share nothing"].simulated == "0 % and 0 %"


def test_latency_bends_before_throughput_ends() -> None:
    rows, outcome = run("knee", users=[1, 4, 16], rates=[10, 20, 30, 36, 40, 44], requests=800)
    assert rows["throughput and latency with more users"].verdict == "reproduced"
    assert rows["knee of mean end-to-end latency"].verdict == "reproduced"
    ((bend, word),) = outcome.figures[1].marks  # type: ignore[union-attr]
    assert (word, 30 <= bend < 44) == ("knee", True)
