"""Host terms: what they add to a step, how they are read, and that a fit finds what was put in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from servesim.calibrate.host import FEW, fit_host, read_steps
from servesim.contracts import Batch, Host
from servesim.cost import build_cost_model
from servesim.cost.host import HostTerms, host_terms
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec


def test_host_time_goes_by_counts_of_the_batch() -> None:
    terms = HostTerms(overlapped=1000, overlapped_per_sequence=10, exposed=500, exposed_per_sampled=3)
    decode = Batch(4, [], 4, 400, 0, 0, 1, 4)
    mixed = Batch(104, [(100, 0)], 4, 400, 0, 0, 1, 5)
    assert terms.host(decode) == Host(1000 + 40, 500 + 12)
    assert terms.host(mixed) == Host(1000 + 50, 500 + 15)


def test_small_batches_are_padded_to_cuda_graph_sizes() -> None:
    padding = HostTerms(pads_to_graphs=True).padding()
    assert [padding[n] for n in (0, 1, 2, 3, 5, 8, 9, 250, 256, 257, 512)] == [0, 1, 2, 4, 8, 8, 16, 256, 256, 272, 512]
    assert HostTerms().padding() == []


def test_terms_of_the_chip_hold_on_that_chip_alone() -> None:
    terms = HostTerms(gpus=("h100",), exposed=5, sustained_slowdown=0.1, sustained_after=1, kv_bandwidth_share=0.9)
    assert terms.on("h100") is terms
    elsewhere = terms.on("a100")
    assert (elsewhere.exposed, elsewhere.sustained_slowdown, elsewhere.kv_bandwidth_share) == (5, 0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exposd: 3", 'did you mean "exposed"'),
        ("exposed: -3", "must be at least 0"),
        ("- 1", "a mapping of terms is needed"),
        ("exposed: [", "not YAML"),
    ],
)
def test_bad_terms_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "terms.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        HostTerms.load(file)


def test_shipped_terms_are_found_by_engine_version() -> None:
    found = host_terms("vllm 0.23.0", "h100")
    assert found is not None
    assert (found.name, found.engine) == ("vllm-0.23-h100", "vllm 0.23.0")
    assert found.provenance["steps"] > 100_000
    assert host_terms("sglang 0.5.14", "h100") is None
    other = host_terms("tensorrt-llm 1.0", "h100")
    assert other is not None
    assert other.name == "tensorrt-llm-h200"


def _log(folder: Path, terms: HostTerms) -> None:
    """A step log of a made-up server that has exactly these terms."""
    cost = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), host=terms)
    rows = ["run,t_us,dt_us,contiguous,n_tokens_out,n_prefill_done,prefill_tokens_done,sum_ctx"]
    for decodes in (1, 2, 4, 8, 16, 32, 64, 128):
        for new in (0, 256, 1024, 4096):
            prefill = [(new, 0)] if new else []
            batch = Batch(decodes + new, prefill, decodes, decodes * 900, 0, 0, 1, decodes + len(prefill))
            row = f"a,0,{cost.price(batch).ns / 1e3},True,{batch.sampled},{len(prefill)},{new},{decodes * 900 + new}"
            rows += [row] * FEW
    rows.append("a,0,,False,1,0,0,900")
    (folder / "steps.csv").write_text("\n".join(rows) + "\n")
    settings = {"vllm_version": "0.99.0", "model": "llama-3.1-8b", "gpu": "h100"}
    (folder / "server_config.json").write_text(json.dumps(settings))


def test_decodes_beside_a_prompt_cost_more_the_longer_it_is_up_to_a_length() -> None:
    model, gpu = ModelSpec.load("llama-3.1-8b"), Gpu.load("h100")
    plain, fitted = (build_cost_model(model, gpu, host=HostTerms(attention_per_mixed_decode=ns)) for ns in (0.0, 3e3))
    for new, share in ((16, 16 / 1024), (512, 0.5), (1024, 1.0), (4096, 1.0)):
        batch = Batch(10 + new, [(new, 0)], 10, 9000, 0, 0, 1, 11)
        more = fitted.price(batch).gpu_ns - plain.price(batch).gpu_ns
        assert more == pytest.approx(model.num_layers * 10 * 3e3 * share, abs=2)
    decode = Batch(10, [], 10, 9000, 0, 0, 1, 10)
    assert fitted.price(decode).gpu_ns == plain.price(decode).gpu_ns


def test_a_fit_finds_the_terms_a_log_was_made_with(tmp_path: Path) -> None:
    truth = HostTerms(
        exposed=180_000,
        exposed_per_sampled=9_000,
        attention_per_mixed_decode=2_000,
        pads_to_graphs=True,
        monotone_gemms=True,
        kv_bandwidth_share=0.9,
        sustained_after=30e6,
        sustained_slowdown=0.1,
        gpus=("h100",),
    )
    _log(tmp_path, truth)
    assert len(read_steps(tmp_path / "steps.csv", tmp_path)) == 32 * FEW
    found = fit_host(tmp_path)
    assert (found.engine, found.kv_bandwidth_share, found.front_in) == ("vllm 0.99.0", 0.9, 0.0)
    for name in ("exposed", "exposed_per_sampled", "attention_per_mixed_decode", "sustained_slowdown"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=0.1, err_msg=name)
    assert found.provenance["mean_abs_residual_percent"] < 0.1


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recorded run in it says its model and its GPU"):
        fit_host(tmp_path)


def test_terms_with_a_base_are_its_own_where_they_say_nothing_and_are_chosen_by_name_alone(tmp_path: Path) -> None:
    base = HostTerms.load("vllm-0.23-h100")
    (tmp_path / "mine.yaml").write_text("base: vllm-0.23-h100\nfront_per_request: 5\nprovenance: {}\n")
    mine = HostTerms.load(tmp_path / "mine.yaml")
    assert (mine.exposed, mine.gpus, mine.front_per_request, mine.engine) == (base.exposed, base.gpus, 5, "")
    chosen = host_terms("vllm 0.11.0", "h100")
    assert chosen is not None
    assert chosen.name == "vllm-0.23-h100"


def test_a_wrong_tokenizer_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("front_in_per_token_by_model: {gpt-oss: -1}\n")
    with pytest.raises(UserError, match="front_in_per_token_by_model is -1"):
        HostTerms.load(tmp_path / "mine.yaml")
