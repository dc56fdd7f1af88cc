"""`servesim roofline`: work counted by hand, bounds, shares reached, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import servesim
from servesim.cli.app import app, main
from servesim.contracts import Batch
from servesim.cost import build_cost_model
from servesim.cost.breakdown import breakdown
from servesim.cost.operators import Work, operator_work
from servesim.cost.roofline import Roof, Steps, decode_step, prefill_step
from servesim.cost.work import step_work
from servesim.hardware import Gpu, ModelSpec, bundled_models

H100 = Gpu.load("h100")
MIXED = Batch(
    linear_tokens=300 + 8 * 3,
    prefill=[(200, 100), (100, 0)],
    decode_count=8,
    decode_context_sum=4000,
    decode_context_max=500,
    queries_per_sequence=3,
    sampled=10,
    drafts=16,
)


def roof(model: str, gpu: str = "h100", tp: int = 1, tables: str | None = None) -> Roof:
    spec, card = ModelSpec.load(model), Gpu.load(gpu)
    return Roof(spec, card, tp, "bf16", "bf16", build_cost_model(spec, card, tp, tables=tables))


def placed(roof: Roof, batch: Batch) -> dict[str, Any]:
    steps = Steps(roof, "it", "decode")
    steps.add(batch)
    return steps.describe()


@pytest.mark.medium
@pytest.mark.parametrize("name", bundled_models())
@pytest.mark.parametrize(
    "batch", [decode_step(16, 1024), prefill_step(1024), MIXED], ids=["decode", "prefill", "mixed"]
)
def test_operators_are_those_of_the_price_and_add_up_to_the_step(name: str, batch: Batch) -> None:
    model = ModelSpec.load(name)
    gpu = Gpu.load("b200") if model.experts_dtype == "nvfp4" else H100
    work = operator_work(model, gpu, batch)
    assert list(work) == list(breakdown(build_cost_model(model, gpu), batch))
    flops, data = step_work(model, batch)
    if batch is MIXED:  # a step's work counts a row of the LM head for each sequence, not for each draft
        flops += 2.0 * model.hidden_size * model.vocab_size * batch.drafts
    if model.latent is None or not batch.prefill:  # prompts are counted over the latents there, expanded here
        assert sum(one.flops for one in work.values()) == pytest.approx(flops, rel=1e-3)
    assert sum(one.bytes for one in work.values()) > 0.999 * data


def test_a_matrix_product_counts_weights_inputs_and_outputs() -> None:
    """Llama-2-7B, 295 tokens: gate and up are a 4096 x 22016 matrix in each of 32 layers."""
    up = operator_work(ModelSpec.load("llama-2-7b"), H100, prefill_step(295))["up"]
    assert up.flops == 32 * 2 * 295 * 4096 * 22016
    assert up.bytes == 32 * 2 * (4096 * 22016 + 295 * 4096 + 295 * 22016)
    assert up.roofline_ns(H100) == pytest.approx(max(up.flops / 989e12, up.bytes / 3.35e12) * 1e9)


def test_decode_attention_reads_keys_and_values_once() -> None:
    work = operator_work(ModelSpec.load("llama-2-7b"), H100, decode_step(4, 1000))["attention_decode"]
    assert work.flops == 32 * 4 * 4000 * 4096  # two products over 32 heads of 128
    assert work.bytes == 32 * (4000 * 2 * 4096 * 2 + 4 * 2 * 4096 * 2)  # KV, queries and outputs
    assert work.flops / work.bytes == pytest.approx(1.0, abs=0.001)
    assert work.bound(H100) == "memory"
    grouped = operator_work(ModelSpec.load("llama-3.1-8b"), H100, decode_step(4, 1000))["attention_decode"]
    assert grouped.flops / grouped.bytes == pytest.approx(4.0, abs=0.02)  # four query heads a KV head


def test_prefill_attention_has_an_intensity_in_proportion_to_the_prompt() -> None:
    one, two = (
        operator_work(ModelSpec.load("llama-2-7b"), H100, prefill_step(n))["attention_prefill"] for n in (512, 1024)
    )
    assert one.flops == 32 * 4 * 4096 * 512 * 513 / 2
    assert two.flops / two.bytes == pytest.approx(1025 / 4)
    assert one.flops / one.bytes == pytest.approx(513 / 4)


def test_windows_bound_what_is_attended() -> None:
    model = ModelSpec.load("gemma-3-1b")  # 22 layers of a window of 512, 4 of everything; one KV head, 4 heads of 256
    work = operator_work(model, H100, decode_step(1, 2048))["attention_decode"]
    assert work.flops == 4 * 1024 * (22 * 512 + 4 * 2048)


def test_tensor_parallelism_splits_the_work_and_adds_links() -> None:
    one, four = (operator_work(ModelSpec.load("llama-3.1-70b"), H100, decode_step(8, 500), tp=tp) for tp in (1, 4))
    for name in ("qkv", "up", "down", "attention_decode", "lm_head"):
        assert four[name].flops == pytest.approx(one[name].flops / 4)
    assert "all_reduce" not in one
    # 2 x 3/4 of 8 tokens of 8192 numbers in 2 bytes, twice a layer and once for the embedding
    assert four["all_reduce"] == Work(0.0, 0.0, 0.0, 161 * 1.5 * 8 * 8192 * 2)
    assert four["all_reduce"].bound(H100) == "links"


def test_the_bound_changes_at_the_ridge() -> None:
    llama = roof("llama-3.1-8b")
    assert llama.ridge == pytest.approx(295.2, abs=0.1)
    few, many = placed(llama, prefill_step(200)), placed(llama, prefill_step(400))
    assert (few["bound"], many["bound"]) == ("memory", "compute")
    assert few["intensity"] < llama.ridge < many["intensity"]


def test_operators_of_another_format_have_a_peak_of_their_own() -> None:
    """gpt-oss in fp8: its experts stay in mxfp4, whose arithmetic is that of bf16, and do most of the work."""
    spec = ModelSpec.load("gpt-oss-20b")
    steps = Steps(Roof(spec, H100, 1, "fp8", "bf16", build_cost_model(spec, H100, 1, "fp8")), "it", "prefill")
    steps.add(prefill_step(4096))
    work = operator_work(spec, H100, prefill_step(4096), "fp8")
    assert work["experts"].compute_ns == pytest.approx(work["experts"].flops / 989e12 * 1e9)
    assert work["qkv"].compute_ns == pytest.approx(work["qkv"].flops / 1979e12 * 1e9)
    assert steps.compute_ns == pytest.approx(sum(one.compute_ns for one in work.values()), rel=1e-3)
    assert steps.flops / 1979e12 * 1e9 < steps.compute_ns < steps.flops / 989e12 * 1e9


def test_the_roof_of_a_step_is_the_hand_calculation() -> None:
    """Llama-2-13B on an H100 at 1,024 tokens: 26 GB of weights and 0.84 GB of KV a sequence."""
    for batch, published_ms in ((1, 8.0), (64, 23.8), (256, 71.9)):
        step = placed(roof("llama-2-13b"), decode_step(batch, 1024))
        assert step["roofline_ns"] / 1e6 == pytest.approx(published_ms, rel=0.02)


def test_ideal_prices_are_the_roof() -> None:
    ideal = roof("llama-3.1-8b", tables="ideal")
    for batch in (decode_step(1, 1024), decode_step(64, 4096)):
        step = placed(ideal, batch)
        looked_up = 128256 * 4096 * 2 / 3.35e12 * 1e9  # the textbook reads the whole embedding
        assert step["kernels_ns"] - looked_up == pytest.approx(step["roofline_ns"], rel=1e-3)
        assert step["by_formula"] == 1.0


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gemma-3-1b"])
def test_no_price_by_formula_beats_the_roof(name: str) -> None:
    card = roof(name, "h100", 2 if name != "gemma-3-1b" else 1, "roofline")
    for batch in (decode_step(8, 2048), prefill_step(600)):
        work = operator_work(card.model, card.gpu, batch, tp=card.tp)
        for operator, ns in breakdown(card.cost, batch).items():
            # the formula of prompts' attention takes arithmetic alone
            prompt = operator == "attention_prefill"
            assert ns > (work[operator].compute_ns if prompt else work[operator].roofline_ns(card.gpu)), operator


def test_what_beats_its_roof_is_named() -> None:
    text = shown("--model", "deepseek-v2-lite", "--gpu", "h100", "--batch", "64", "--context", "4096")
    assert "above their roofline: experts" in " ".join(text.split())


def test_a_formula_that_beats_its_roof_is_told_as_such() -> None:
    text = " ".join(shown("--model", "llama-3.1-8b", "--gpu", "h200", "--kernel-tables", "ideal").split())
    assert "lm_head, because the formula counts only weights, while the roofline also counts inputs and outputs" in text
    assert "repeated measurements" not in text


def test_measured_kernels_of_a_large_model_reach_about_four_fifths() -> None:
    for batch in (1, 16, 64):
        assert placed(roof("llama-2-70b"), decode_step(batch, 1024))["reached"] == pytest.approx(0.8, abs=0.03)


def test_steps_add_up() -> None:
    llama = roof("llama-3.1-8b")
    twice, apart = Steps(llama, "x", "decode"), Steps(llama, "x", "decode")
    twice.add(decode_step(4, 100), 2)
    apart.add(decode_step(4, 100))
    apart.add(decode_step(4, 100))
    assert twice.describe() == apart.describe()


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["roofline", *arguments], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_prints_steps_operators_and_what_does_not_fit() -> None:
    text = shown("--model", "llama-2-70b", "--gpu", "h100", "--batch", "1", "--prompt", "100")
    assert "ridge at 295 FLOP per byte" in text
    assert re.search(r"decode 1 x 1,024 +1\.0 +memory +41\.1", text)
    assert re.search(r"prefill 100 +99\.\d +memory +41\.\d", text)
    assert re.search(r"attention_decode +7\.\d", text)
    assert "the model does not fit on" in text
    document = json.loads(
        shown("--model", "llama-3.1-8b", "--gpu", "l40s", "--batch", "512", "--context", "8192", "--json")
    )
    assert re.match(r"decode 512 x 8,192: only \d+ sequences of this length fit on 1 x l40s", document["warnings"][0])
    assert [step["label"] for step in document["steps"]] == ["decode 512 x 8,192", "prefill 1,024"]


def test_a_page_and_a_figure(tmp_path: Path) -> None:
    for name in ("page.html", "figure.svg"):
        shown("--model", "llama-3.1-8b", "--gpu", "h100", "--out", str(tmp_path / name))
        text = (tmp_path / name).read_text()
        assert "decode 64 x 1,024" in text
        assert "var(--" not in text or name == "page.html"
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")


def test_the_recorded_steps_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    trace = "synth:rate=30,prompt=100,output=20"
    servesim.simulate({"trace": trace, "requests": 30, "model": "llama-3.1-8b", "gpu": "h100"}, out=folder)
    document = json.loads(shown(str(folder), "--json"))
    kinds = {step["kind"]: step for step in document["steps"]}
    assert {"mixed", "decode"} <= set(kinds)
    assert kinds["decode"]["bound"] == "memory"
    assert 0.4 < kinds["decode"]["reached"] < 1.0
    assert "means over" in document["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "specify --model and --gpu, or a result directory"),
        (["--model", "llama-3.1-8b"], "specify --model and --gpu, or a result directory"),
        (["--model", "llama", "--gpu", "h100"], "unknown model"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--batch", "1,x"], "--batch x: must be whole numbers"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--prompt", "0"], "--prompt 0: must be whole numbers"),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--context", "-1"], "--context -1: must be whole numbers"),
        (
            ["--model", "llama-3.1-8b", "--gpu", "h100", "--batch", "", "--prompt", ""],
            "no step to show: specify --batch or --prompt",
        ),
        (["--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "3"], "tp = 3 does not divide"),
        (["--model", "llama-3.1-8b", "--gpu", "m2-ultra", "--dtype", "fp8"], "no fp8 arithmetic"),
        (["nowhere"], "nowhere"),
        (["nowhere", "--gpu", "h100"], "not both"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["servesim", "roofline", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    assert told in printed.err
    assert printed.err.count("\n") == 1
