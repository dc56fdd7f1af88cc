"""Whole steps of a model: the same answer as plain attention over the whole sequence, and errors that can be judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")

from servesim.calibrate.kernels import cpu_torch  # noqa: E402
from servesim.calibrate.kernels.cpu_torch import CpuTorch, dense_mask  # noqa: E402
from servesim.calibrate.kernels.torch_ops import BLOCK  # noqa: E402
from servesim.calibrate.points import Shard  # noqa: E402
from servesim.calibrate.steps import (  # noqa: E402
    KINDS,
    Composition,
    Step,
    compositions,
    run_steps,
    scatter,
    steps_csv,
    summary,
)
from servesim.calibrate.timing import CpuDevice, Timing  # noqa: E402
from servesim.calibrate.whole_model import WholeModel  # noqa: E402
from servesim.cost import build_cost_model  # noqa: E402
from servesim.errors import UserError  # noqa: E402
from servesim.hardware import Gpu, ModelSpec  # noqa: E402

TINY = Shard(ModelSpec.load("tiny-llama"), 1, "fp32")
LIMITS = {"tokens": 64, "context": 64, "batch": 4, "kv_tokens": 4000}


def test_compositions_are_of_every_kind_and_within_the_limits() -> None:
    found = compositions(**LIMITS)
    assert {kind: sum(c.kind == kind for c in found) for kind in KINDS} == KINDS
    for c in found:
        assert sum(n for n, _ in c.pieces) <= 64 + 4
        assert max(p for _, p in c.pieces) <= 64
        batch = c.batch()
        assert batch.linear_tokens == sum(n for n, _ in c.pieces)
        assert len(batch.prefill) + batch.decode_count == batch.sampled == len(c.pieces)
        assert (c.kind == "decode") == (not batch.prefill)
    assert found == compositions(**LIMITS)
    assert len(compositions(**LIMITS, share=0.1)) == 12


def test_a_step_over_cached_context_equals_the_whole_prompt_at_once() -> None:
    torch.manual_seed(0)
    ops = CpuTorch(CpuDevice(torch), "fp32")
    model = WholeModel(ops, TINY, 40 * BLOCK)
    with torch.no_grad():
        whole = model.prepare([(50, 0)])
        whole_logits = logits(model, whole)
        first, second = model.prepare([(30, 0)]), model.prepare([(20, 30)])
        for p, ids in ((first, whole.ids[:30]), (second, whole.ids[30:])):
            p.ids = ids
        # the second step reads what the first wrote: give both the first one's blocks
        slots = second.batch.read[0]
        first.batch.write = slots[:30]
        first.batch.read = [slots[:30]]
        first.attend = ops.paged_attention(TINY.heads, first.batch)
        logits(model, first)
        assert (logits(model, second) - whole_logits).abs().max() < rounding(whole_logits, 50)


def rounding(logits: Any, context: int) -> float:
    """Return how far logits in float32 may move when sums are taken in another order, as another processor does.

    Two orders of adding up n products differ by at most n eps of what is added (Higham 2002, 3.1). A token passes sums
    of these lengths one after the other: the inputs of every projection, a head's dimension and the `context`.
    """
    linears, model = TINY.linears(), TINY.model
    layer = sum(linears[name][1] for name in ("qkv", "attention_out", "up", "down"))
    growth = model.num_layers * (layer + TINY.heads.head_dim + context) + linears["lm_head"][1]
    return float(torch.finfo(torch.float32).eps * logits.abs().max() * growth)


def logits(model: WholeModel, prepared: Any) -> Any:
    """What the step samples from."""
    seen: list[Any] = []
    sample = model.ops.sample
    model.ops.sample = lambda x: seen.append(x) or sample(x)  # type: ignore[method-assign]
    model.step(prepared)
    model.ops.sample = sample  # type: ignore[method-assign]
    return seen[0]


def test_sequences_of_one_batch_do_not_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ops = CpuTorch(CpuDevice(torch), "fp32")
    model = WholeModel(ops, TINY, 40 * BLOCK)
    with torch.no_grad():
        both = model.prepare([(12, 0), (7, 0)])
        together = logits(model, both)[1]
        alone = model.prepare([(7, 0)])
        alone.ids = both.ids[12:]
        expected, bound = logits(model, alone)[0], rounding(together, 12 + 7)
        assert (together - expected).abs().max() < bound
        monkeypatch.setattr(cpu_torch, "dense_mask", lambda *of: 0.0 * dense_mask(*of))
        both.attend = ops.paged_attention(TINY.heads, both.batch)
        assert (logits(model, both)[1] - expected).abs().max() > bound, "without a mask they do"


def test_steps_are_run_priced_and_reported(tmp_path: Path) -> None:
    device = CpuDevice(torch)
    gpu = Gpu("cpu", "x", 16 << 30, 25e9, {"fp32": 1e11, "bf16": 1e11}, 0.0, 25e9, 0.0, None)
    cost = build_cost_model(TINY.model, gpu, dtype="fp32", kv_dtype="fp32")
    found = compositions(**LIMITS, share=0.05)
    done = run_steps(device, CpuTorch(device, "fp32"), TINY, cost, found, lambda: False)
    assert len(done) == len(found)
    assert all(s.timing.median_us > 0 and s.predicted_us > 0 for s in done)
    steps_csv(tmp_path / "s.csv", done)
    assert len((tmp_path / "s.csv").read_text().splitlines()) == len(done) + 1
    scatter(tmp_path / "s.svg", done, "title")
    assert "<svg" in (tmp_path / "s.svg").read_text()
    scatter(tmp_path / "s.png", done, "title")
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"


def test_time_that_is_up_ends_the_run_with_what_there_is() -> None:
    device, looks = CpuDevice(torch), iter([False, False, True])
    cost = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h200"))
    found = compositions(**LIMITS, share=0.05)
    assert len(run_steps(device, CpuTorch(device, "fp32"), TINY, cost, found, lambda: next(looks))) == 2
    with pytest.raises(UserError, match="no step could be measured"):
        run_steps(device, CpuTorch(device, "fp32"), TINY, cost, found, lambda: True)


def test_errors_are_by_kind_and_host_time_is_fitted_on_the_other_half() -> None:
    def step(kind: str, measured: float, predicted: float) -> Step:
        return Step(Composition(kind, ((1, 10),)), Timing.of([measured], "loop"), predicted)

    steps = [step("decode", 110.0, 100.0), step("decode", 210.0, 200.0), step("mixed", 410.0, 400.0)]
    steps.append(step("mixed", 1010.0, 1000.0))
    figures = summary(steps)
    assert figures["host_us"] == pytest.approx(10.0)
    assert figures["kinds"]["decode"]["mape"] == pytest.approx((10 / 110 + 10 / 210) / 2)
    assert figures["kinds"]["decode"]["bias"] == pytest.approx(-(10 / 110 + 10 / 210) / 2)
    assert figures["kinds"]["all"]["with_host"] == {"steps": 2, "mape": 0.0, "p95": 0.0, "bias": 0.0}


def test_a_model_too_large_for_the_device_is_refused_with_both_sizes() -> None:
    class Small(CpuDevice):
        def free_bytes(self) -> int:
            return 8 << 20

    with pytest.raises(UserError, match=r"tiny-llama in fp32 takes 0\.0 GiB, .* has 0\.0 GiB free"):
        WholeModel(CpuTorch(Small(torch), "fp32"), TINY, 1000)
