"""The course's claims on time: figures by hand, and the simulation beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from servesim.cost.breakdown import ATTENTION_PREFILL, breakdown
from servesim.hardware import Gpu, ModelSpec
from servesim_lab.claims import Outcome, Row, find
from servesim_lab.claims.batches import cost_of, decode, prompts, step_of
from servesim_lab.claims.intensity import Kind, gemm_intensity, kinds
from servesim_lab.claims.switches import graphs


def run(name: str, **changes: Any) -> tuple[Outcome, dict[str, Row]]:
    (one,) = find(name)
    outcome = one.run(one.given(**changes))
    rows = {row.what: row for row in outcome.rows}
    assert len(rows) == len(outcome.rows), "names of rows must differ"
    return outcome, rows


def changed(name: str, key: str, **values: Any) -> dict[str, Any]:
    """One key of a scenario with some of its parts changed."""
    (one,) = find(name)
    return {key: {**one.given()[key], **values}}


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


@pytest.fixture(scope="module")
def decode_time() -> tuple[Outcome, dict[str, Row]]:
    outcome, _ = run_unnamed("decode-time")
    return outcome, {f"{row.what} ({row.published.split()[-1]})": row for row in outcome.rows}


def run_unnamed(name: str) -> tuple[Outcome, list[Row]]:
    (one,) = find(name)
    outcome = one.run(one.given())
    return outcome, outcome.rows


def test_the_table_of_13b_on_an_h100_comes_out(decode_time: tuple[Outcome, dict[str, Row]]) -> None:
    rows = [row for row in decode_time[0].rows if row.what.startswith("13B")]
    assert [(row.simulated, row.verdict) for row in rows] == [
        ("8.02 ms", "by formula"),
        ("125 tokens/s", "by formula"),
        ("23.8 ms", "by formula"),
        ("2,689 tokens/s", "by formula"),
        ("71.9 ms", "corrected"),
        ("3,562 tokens/s", "corrected"),
    ]
    assert rows[2].note.startswith("79.7 GB of weights and KV; the GPU holds 60 of 64;")
    assert rows[4].note.startswith("241 GB of weights and KV; the GPU holds 60 of 256")


def test_one_reply_of_70b_is_its_weights_over_the_bandwidth(decode_time: tuple[Outcome, dict[str, Row]]) -> None:
    rows = {row.what: row for row in decode_time[0].rows}
    weights = ModelSpec.load("llama-2-70b").weight_bytes("bf16")
    step = rows["a decode step of 70B in 16 bits on one H100"]
    assert number(step.simulated) == pytest.approx(weights / 3.35e9, abs=0.1)
    assert "no KV block fits" in step.note
    a100 = rows["a decode step of 70B on an A100"]
    assert a100.simulated == f"{weights / 1.555e9:.1f} ms (40 GB card), {weights / 2.039e9:.1f} ms (80 GB card)"
    assert "73.6 ms" in a100.note  # 150 GB over 2.039 TB/s
    first = rows["first token of a 100-token prompt, 70B on one H100"]
    assert (first.simulated, first.verdict) == ("41.3 ms", "corrected")
    reply = rows["end-to-end latency of a 50-token reply over its first token, 70B"]
    assert (reply.simulated, reply.verdict) == ("49.9 x", "corrected")
    assert reply.note.endswith("69.6 x")  # 1 + 49 steps of 42 ms over 30 ms


def test_intensity_of_a_matrix_product_by_hand() -> None:
    assert gemm_intensity(4096, 11008, 4096) == pytest.approx(4096 * 11008 / (4096 + 2 * 11008))
    assert gemm_intensity(295, 11008, 4096) == pytest.approx(268.5, abs=0.1)
    assert gemm_intensity(1, 4096, 4096) == pytest.approx(1.0, abs=0.001)


def test_utilisation_of_steps_counts_each_of_a_row() -> None:
    spec, gpu = ModelSpec.load("tiny-llama"), Gpu.load("h100")
    columns = {"k": [1, 10], "prefill_tokens": [100, 0], "prefill_pieces": [1, 0], "prefill_context": [0, 0]}
    columns |= {"decode_count": [0, 2], "decode_context": [0, 200], "sampled": [1, 2], "gpu_ns": [1000, 20_000]}
    found = kinds(pd.DataFrame(columns), spec, least=50)
    per_token = 2 * spec.layer_params * spec.num_layers
    head = 2 * spec.hidden_size * spec.vocab_size
    pair = 4 * spec.q_size * spec.num_layers
    # ten steps of two sequences; the one in the middle attends 100 + 4 tokens each
    assert found["decodes"].flops[0] == pytest.approx(10 * (2 * per_token + 2 * head + 209 * pair))
    assert found["prompts"].flops[0] == pytest.approx(100 * per_token + head + 5050 * pair)
    whole = Kind(np.array([989e12]), np.array([3.35e12 / 2]), np.array([1.0]))
    assert whole.utilisation(gpu) == (pytest.approx(1.0), pytest.approx(0.5))


def test_intensities_and_the_two_sides_of_the_roofline() -> None:
    outcome, rows = run("arithmetic-intensity", **changed("arithmetic-intensity", "served", requests=300))
    assert rows["FLOP per byte at which an H100 breaks even, 16 bits"].verdict == "reproduced"
    assert rows["intensity of 1 x 4,096 tokens on a 4,096 x 11,008 matrix"].simulated == "1,727"
    assert rows["intensity of 295 tokens on a 4,096 x 11,008 matrix"].simulated == "268"
    heads = rows["decode attention, batch 1 and 256"].simulated
    assert heads == "1 and 1 with KV heads of its own (MHA), 8 and 8 with 8 of 64 (GQA)"
    assert rows["prompts are bound by arithmetic, decodes by memory"].verdict == "reproduced"
    roof, *_ = outcome.figures[0].curves  # type: ignore[union-attr]
    assert max(y for y in roof.y if y) == pytest.approx(989.0)


def test_every_operator_lies_below_the_roofline_and_is_told() -> None:
    outcome, rows = run("kernels-and-roofline")
    assert len(rows) == 7
    assert all(50 < number(row.simulated) < 90 for row in rows.values())
    bars = outcome.figures[0]
    assert all(value is None or 0 < value < 110 for values in bars.rows.values() for value in values)  # type: ignore[union-attr]


def test_fused_attention_is_measured_and_gains_with_the_prompt() -> None:
    outcome, rows = run("flash-attention")
    assert rows["attention over a prompt of 4,096, A100"].verdict == "by formula", "the unfused kernels are"
    base = {"model": "llama-2-7b", "gpu": "a100", "host": "none"}
    fused = breakdown(cost_of(base), prompts(16_384))[ATTENTION_PREFILL]
    share = 100 * 32 * 4 * 4096 * 16_384**2 / 2 / fused / 312e3  # 32 layers; FLOP/ns of an A100: 312,000
    told = rows["utilisation of fused attention over a prompt of 16,384, A100"].simulated
    assert number(told) == pytest.approx(share, abs=0.1)
    curves = {c.label: c.y for c in outcome.figures[0].curves}  # type: ignore[union-attr]
    assert all(a > 1 and a > w for a, w in zip(curves["attention, A100"], curves["whole prompt, A100"], strict=True))  # type: ignore[operator]


def test_formats_gain_at_most_what_their_bytes_allow_and_the_contradiction_is_named() -> None:
    outcome, rows = run("quantised-kernels")
    most = {"fp8": 2, "int8,": 2, "int8_wo": 2, "int4": 4, "int3": 16 / 3, "ternary": 16 / 1.58}
    for name, values in outcome.figures[0].rows.items():  # type: ignore[union-attr]
        (limit,) = [factor for key, factor in most.items() if name.startswith(key)]
        assert all(value < limit for value in values)
    assert "contradicts itself" in rows["LLM.int8() in the same text"].note
    told = {what: (row.verdict, row.share) for what, row in rows.items()}
    for name in ("3-bit weights alone (W3A16), A100", "BitNet b1.58 (1.58 bits), A100"):
        assert told[name] == ("by formula", None)
    verdict, share = told["int4 weights alone (W4A16: GPTQ, AWQ), A100"]
    low, high = (
        float(text.split()[0]) for text in rows["int4 weights alone (W4A16: GPTQ, AWQ), A100"].simulated.split(" to ")
    )
    assert low < 2 < high < 3
    assert (verdict, share) == ("partly", pytest.approx(high - 2, abs=0.006))


def test_a_step_without_graphs_takes_its_launches() -> None:
    parts = changed(
        "engine-switches", "graphs", batches=[1], models={"llama-3.1-8b": {"model": "llama-3.1-8b", "gpu": "h100"}}
    )
    (one,) = find("engine-switches")
    given = one.given(**parts)
    on = cost_of({"model": "llama-3.1-8b", "gpu": "h100"}, host=given["graphs"]["with"]).price(decode(1, 512))
    outcome = Outcome()
    graphs(outcome, given["graphs"])
    (row,) = outcome.rows
    assert (row.verdict, row.simulated) == (
        "calibrated",
        f"{(324 * 26_000 + on.host.exposed) / on.ns:.2f} x at batch 1",
    )


@pytest.mark.medium
def test_engine_switches_are_all_told() -> None:
    parts = changed("engine-switches", "batching", clients=[1, 4, 8, 64])
    parts |= changed(
        "engine-switches", "engine", base={**find("engine-switches")[0].given()["engine"]["base"], "requests": 60}
    )
    outcome, rows = run("engine-switches", **parts)
    batches = rows["throughput of larger batches"]
    assert (batches.verdict, batches.share is not None and 0 < batches.share < 1) == ("partly", True)
    rival = rows["TensorRT-LLM above vLLM at high concurrency"]
    assert rival.simulated.endswith("% by its kernels")
    assert abs(number(rival.simulated)) < 10
    linear = {c.label: c.y for c in outcome.figures[0].curves}  # type: ignore[union-attr]
    assert all(
        y < n for label, ys in linear.items() if label != "linear" for y, n in zip(ys[1:], (2, 4, 8), strict=True)
    )  # type: ignore[operator]


def test_without_a_cache_every_step_computes_all_tokens_before_it() -> None:
    _, rows = run("no-kv-cache", others=[{"prompt": 64, "output": 64}])
    recomputed = sum(4096 + i for i in range(256))
    assert rows["tokens computed for 256 from 4,096, no cache"].simulated == f"{recomputed:,} tokens"
    assert f"{recomputed + 256:,}" in rows["tokens computed for 256 from 4,096, no cache"].note
    ratio = rows["tokens computed without a cache over those with one"]
    assert (ratio.simulated, ratio.verdict) == (f"{recomputed / (4096 + 255):.0f} x", "corrected")


def test_steps_of_scenarios() -> None:
    assert step_of({"decode": 3}, 100) == decode(3, 100)
    assert step_of({"prompt": 7}, 100) == prompts(7)
    verified = decode(3, 100, 5)
    assert (verified.linear_tokens, verified.drafts, verified.queries_per_sequence) == (15, 12, 5)
