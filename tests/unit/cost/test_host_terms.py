"""Host terms: what they add to a step, how they are read, and that a fit finds what was put in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servesim.calibrate.host import FEW, fit_host, read_gaps, read_steps
from servesim.contracts import Batch, Host
from servesim.cost import build_cost_model
from servesim.cost.attention import FormulaAttention
from servesim.cost.curve import Curve
from servesim.cost.formula import line
from servesim.cost.host import OF_CHIP, HostTerms, host_terms
from servesim.cost.streamed import FILLED, BesidePrompt, StreamedDecode
from servesim.errors import UserError
from servesim.experiments.recording import RecordedRun, Server
from servesim.hardware import Gpu, ModelSpec


def test_host_time_goes_by_counts_of_the_batch() -> None:
    terms = HostTerms(overlapped=1000, overlapped_per_sequence=10, exposed=500, exposed_per_sampled=3)
    decode = Batch.decodes(4, 400)
    mixed = Batch(104, [(100, 0)], decode_count=4, decode_context_sum=400, sampled=5)
    assert terms.host(decode) == Host(1000 + 40, 500 + 12)
    assert terms.host(mixed) == Host(1000 + 50, 500 + 15)


def test_a_step_with_prompts_lasts_as_long_as_launching_its_layers_one_without_does_not() -> None:
    terms = HostTerms(eager_per_layer=1e6, eager_per_mixture=3e6)
    decode, mixed = (
        Batch.decodes(4, 4000, longest=1000),
        Batch(20, [(16, 0)], decode_count=4, decode_context_sum=4000, decode_context_max=1000, sampled=5),
    )
    dense = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), host=terms)  # 32 layers
    assert dense.host(decode) == Host()
    assert dense.host(mixed) == Host(launching=32_000_000)
    assert dense.price(mixed).ns == 32_000_000 > dense.price(mixed).gpu_ns
    experts = build_cost_model(ModelSpec.load("gpt-oss-20b"), Gpu.load("h100"), host=terms)  # 24 layers, all of experts
    assert experts.host(mixed).launching == 72_000_000
    triton = replace(terms, eager_per_mixture_by_experts={"mxfp4": 5e6})
    assert build_cost_model(ModelSpec.load("gpt-oss-20b"), Gpu.load("h100"), host=triton).host(mixed) == Host(
        launching=120_000_000
    )
    others = build_cost_model(ModelSpec.load("qwen3-30b-a3b"), Gpu.load("h100"), host=triton)  # 48 layers
    assert others.host(mixed).launching == 144_000_000
    halves = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), pp=2, host=terms)
    assert halves.host(mixed).launching == 32_000_000
    long = Batch(16384, [(16384, 0)], sampled=1)
    assert dense.price(long).ns == dense.price(long).gpu_ns > 32_000_000


def test_small_batches_are_padded_to_cuda_graph_sizes() -> None:
    padding = HostTerms(pads_to_graphs=True).padding()
    assert [padding[n] for n in (0, 1, 2, 3, 5, 8, 9, 250, 256, 257, 512)] == [0, 1, 2, 4, 8, 8, 16, 256, 256, 272, 512]
    assert HostTerms().padding() == []


def test_terms_of_the_chip_hold_on_that_chip_alone() -> None:
    of_chip = dict.fromkeys(OF_CHIP, 0.5)
    terms = HostTerms(gpus=("h100",), exposed=5, mixed_filling=7, **of_chip)  # type: ignore[arg-type]
    assert terms.on("h100") is terms
    elsewhere = terms.on("l40s")
    assert (elsewhere.exposed, elsewhere.mixed_filling) == (5, 7)
    assert [getattr(elsewhere, name) for name in OF_CHIP] == [0.0] * len(OF_CHIP)


def test_an_a100_keeps_the_clock_that_was_measured_elsewhere() -> None:
    terms = host_terms("vllm 0.11.0", "a100")
    assert terms is not None
    assert (terms.sustained_flops_share, terms.sampling_per_logit, terms.kv_bandwidth_share) == (0.736, 0.0, 0.0)
    assert host_terms("vllm 0.11.0", "a100-40g") == terms  # the same chip
    assert "sampling_per_logit" not in terms.provenance
    assert "Vidur" in terms.provenance["sustained_flops_share"]
    assert terms.overlapped_per_sequence == HostTerms.load("vllm-0.12-h100").overlapped_per_sequence  # the engine's
    model, gpu = ModelSpec.load("qwen3-14b"), Gpu.load("a100")
    long = Batch(8192, [(8192, 0)], sampled=1)
    cool, warm = (
        build_cost_model(model, gpu, host=h).price(long).gpu_ns
        for h in (replace(terms, sustained_flops_share=0.0), terms)
    )
    assert 1.1 < warm / cool < 1.3  # GEMMs at .74 of the data sheet, not the .90 of the table; attention is the same


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exposd: 3", 'did you mean "exposed"'),
        ("exposed: -3", "must be at least 0"),
        ("- 1", "must be a mapping of terms"),
        ("exposed: [", "not YAML"),
    ],
)
def test_bad_terms_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "terms.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        HostTerms.load(file)


@pytest.mark.parametrize("version", ["0.12", "v0.12.0", "0.12.0.post1", "0.12.0+cu128"])
def test_terms_do_not_depend_on_how_a_version_is_written(version: str) -> None:
    assert host_terms(f"vllm {version}", "h100") == host_terms("vllm 0.12.0", "h100")
    assert host_terms("vllm 0.9", "h100") == host_terms("vllm 0.10", "h100") != host_terms("vllm 0.23", "h100")


def test_shipped_terms_are_found_by_engine_version() -> None:
    found = host_terms("vllm 0.23.0", "h100")
    assert found is not None
    assert (found.name, found.engine) == ("vllm-0.23-h100", "vllm 0.23.0")
    assert found.provenance["steps"] > 100_000
    assert host_terms("tgi 3.3", "h100") is None
    sglang = host_terms("sglang 0.5.14", "h100")
    assert sglang is not None
    assert sglang.name == "sglang-0.5-h200"
    names = {
        version: host_terms(f"tensorrt-llm {version}", "h100") for version in ("0.20", "1.0.0rc3", "1.0", "1.4.0rc1")
    }
    assert [terms.name for terms in names.values() if terms is not None] == [
        *["tensorrt-llm-1.0-h100"] * 3,
        "tensorrt-llm-1.1-h200",
    ]


def test_without_a_version_the_terms_are_those_of_the_latest() -> None:
    for gpu in ("h100", "h200", "a100"):
        assert host_terms("tensorrt-llm", gpu) == host_terms("tensorrt-llm 1.4.0rc1", gpu)
        assert (terms := host_terms("tensorrt-llm", gpu)) is not None
        assert terms.name == "tensorrt-llm-1.1-h200"
    vllm = {gpu: host_terms("vllm", gpu) for gpu in ("h100", "h200")}
    assert [terms.name for terms in vllm.values() if terms is not None] == ["vllm-0.23-h100"] * 2


def _log(folder: Path, terms: HostTerms) -> None:
    """A step log of a made-up server that has exactly these terms."""
    cost = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("h100"), host=terms)
    rows = ["run,t_us,dt_us,contiguous,n_tokens_out,n_prefill_done,prefill_tokens_done,sum_ctx"]
    for decodes in (1, 2, 4, 8, 16, 32, 64, 128):
        for new in (0, 256, 1024, 4096):
            prefill = [(new, 0)] if new else []
            batch = Batch(
                decodes + new,
                prefill,
                decode_count=decodes,
                decode_context_sum=decodes * 900,
                sampled=decodes + len(prefill),
            )
            row = f"a,0,{cost.price(batch).ns / 1e3},True,{batch.sampled},{len(prefill)},{new},{decodes * 900 + new}"
            rows += [row] * FEW
    rows.append("a,0,,False,1,0,0,900")
    (folder / "steps.csv").write_text("\n".join(rows) + "\n")
    settings = {"vllm_version": "0.99.0", "model": "llama-3.1-8b", "gpu": "h100"}
    (folder / "server_config.json").write_text(json.dumps(settings))


def test_decodes_beside_a_prompt_cost_more_the_longer_it_is_up_to_a_length() -> None:
    model, gpu = ModelSpec.load("llama-3.1-8b"), Gpu.load("h100")
    plain, fitted = (build_cost_model(model, gpu, host=HostTerms(mixed_filling=ns)) for ns in (0.0, 33e3))
    for new, share in ((16, 16 / 1024), (512, 0.5), (1024, 1.0), (4096, 1.0)):
        batch = Batch(10 + new, [(new, 0)], decode_count=10, decode_context_sum=9000, sampled=11)
        more = fitted.price(batch).gpu_ns - plain.price(batch).gpu_ns
        assert more == pytest.approx(model.num_layers * 33e3 * 10 * 8 / FILLED * share, abs=2)
    decode = Batch.decodes(10, 9000)
    assert fitted.price(decode).gpu_ns == plain.price(decode).gpu_ns


def test_decodes_beside_a_prompt_fill_the_gpu_once_and_read_for_each() -> None:
    """132 multiprocessors: 17 sequences of 8 KV heads fill them; reading goes on in proportion, inside the window."""
    filling, reading = BesidePrompt(132.0, 0.0, 8), BesidePrompt(0.0, 0.5, 8, window=128)
    assert [filling.at(count, 1000.0, 2048)[0] for count in (1, 16, 17, 250)] == pytest.approx([8, 128, 132, 132])
    assert [reading.at(count, 100.0, 1024)[0] for count in (1, 250)] == [50.0, 12500.0]
    assert reading.at(4, 1000.0, 1024)[0] == 4 * 128 * 0.5


def test_starts_of_decode_blocks_hide_behind_reading_and_no_more_than_that() -> None:
    """A batch of 256 that takes 67 us on empty contexts where one sequence takes 12: all of that alone, half of the
    difference where reading takes as long, and next to none of it at long contexts."""
    attention = StreamedDecode(_Starts({1: 12e3, 256: 67e3}), 1.0)
    curve = attention.decode(256)
    assert curve.at(0) == 67e3
    equal = 55e3 / 256  # reading takes as long as starting
    assert curve.at(equal) == pytest.approx(12e3 + 55e3 + 55e3 / 2, rel=1e-3)
    assert curve.at(10_000) == pytest.approx(12e3 + 256 * 10_000, rel=2e-3)
    assert (np.diff([curve.at(x) for x in range(0, 4000, 10)]) > 0).all()
    assert attention.decode(1).at(1000) == 12e3 + 1000


class _Starts(FormulaAttention):
    """Attention that takes what is given on empty contexts."""

    def __init__(self, empty: dict[int, float]) -> None:
        super().__init__(empty[1], 0.0, 0.0)
        self._empty = empty

    def decode(self, count: int) -> Curve:
        return line(self._empty[count], 0.0)


def test_sampling_takes_time_by_rows_and_vocabulary() -> None:
    gpu, rows = Gpu.load("h100"), 64
    for name in ("llama-2-7b", "qwen3-14b"):
        model = ModelSpec.load(name)
        batch = Batch.decodes(rows, rows * 500)
        plain, fitted = (build_cost_model(model, gpu, host=HostTerms(sampling_per_logit=ns)) for ns in (0.0, 0.05))
        more = fitted.price(batch).gpu_ns - plain.price(batch).gpu_ns
        assert more == pytest.approx(rows * model.vocab_size * 0.05, abs=2)


def test_a_fit_finds_the_terms_a_log_was_made_with(tmp_path: Path) -> None:
    truth = HostTerms(
        exposed=180_000,
        sampling_per_logit=0.07,
        mixed_filling=30_000,
        mixed_kv_excess=0.5,
        pads_to_graphs=True,
        monotone_gemms=True,
        kv_bandwidth_share=0.9,
        sustained_after=30e6,
        sustained_flops_share=0.7,
        gpus=("h100",),
    )
    _log(tmp_path, truth)
    assert len(read_steps(tmp_path / "steps.csv", tmp_path)) == 32 * FEW
    found = fit_host(tmp_path)
    assert (found.engine, found.kv_bandwidth_share, found.front_in) == ("vllm 0.99.0", 0.9, 0.0)
    for name in ("exposed", "sampling_per_logit", "mixed_filling", "mixed_kv_excess", "sustained_flops_share"):
        np.testing.assert_allclose(getattr(found, name), getattr(truth, name), rtol=0.1, err_msg=name)
    assert found.provenance["mean_abs_residual_percent"] < 0.1


def test_gaps_hold_the_steps_of_several_prompts_and_bursts_are_one_step() -> None:
    """Requests 0 and 1 decode from 0 ms on. Two prompts end in one step at 70 ms. The old ones end at 80 ms, and the
    others, alone, at 100 ms. Events of a step are a millisecond apart. (The gap from first tokens to last ones is not
    used.)"""
    first, last = np.array([0, 1, 70, 71]), np.array([80, 81, 100, 101])
    prompts, answers = np.array([100, 200, 300, 400]), np.array([4, 4, 4, 4])
    sent = np.zeros(4, dtype=np.int64)
    run = RecordedRun("a", Path("a"), "spans", Server(), sent, prompts, answers, first * 1.0, last * 1.0)
    mixed, alone = read_gaps(run)
    assert (mixed.ns, mixed.batch.prefill, mixed.batch.decode_count) == (70e6, [(300, 0), (400, 0)], 2)
    assert (mixed.batch.sampled, mixed.batch.linear_tokens) == (4, 702)
    assert mixed.decode is not None
    assert (alone.ns, alone.batch.prefill, alone.batch.decode_count) == (20e6, [], 2)


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of its recorded runs names both model and GPU"):
        fit_host(tmp_path)


def test_terms_with_a_base_are_its_own_where_they_say_nothing_and_are_chosen_by_name_alone(tmp_path: Path) -> None:
    base = HostTerms.load("vllm-0.23-h100")
    (tmp_path / "mine.yaml").write_text("base: vllm-0.23-h100\nfront_per_request: 5\nprovenance: {}\n")
    mine = HostTerms.load(tmp_path / "mine.yaml")
    assert (mine.exposed, mine.gpus, mine.front_per_request, mine.engine) == (base.exposed, base.gpus, 5, "")
    chosen = host_terms("vllm 0.24.0", "h100")
    assert chosen is not None
    assert chosen.name == "vllm-0.23-h100"


def test_a_wrong_tokenizer_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("front_in_per_token_by_model: {gpt-oss: -1}\n")
    with pytest.raises(UserError, match="front_in_per_token_by_model is -1"):
        HostTerms.load(tmp_path / "mine.yaml")


def test_terms_that_are_not_given_take_no_time() -> None:
    given = {name: value for name, value in HostTerms().to_dict().items() if value}
    assert given == {}


@pytest.mark.parametrize(
    ("asked", "gpu", "found"),
    [
        ("e 2.5", "h200", "two-h200"),
        ("e 2.5", "h100", "two-h100"),
        ("e 2.0", "a100", "two-h100"),  # of equals the first by name
        ("e 1.9", "h200", "one"),
        ("e 0.5", "h200", "one"),  # all are newer: the earliest
        ("e", "h200", "three"),  # no version: the latest
        ("e", "h100", "three"),
        ("f 1.0", "h200", None),
    ],
)
def test_terms_are_the_latest_not_after_the_version_and_of_those_the_ones_of_the_gpu(
    asked: str, gpu: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (
        HostTerms(name="one", engine="e 1.0", gpus=("h100",)),
        HostTerms(name="three", engine="e 3.0", gpus=("h100",)),
        HostTerms(name="two-h100", engine="e 2.0", gpus=("h100",)),
        HostTerms(name="two-h200", engine="e 2.0", gpus=("h200",)),
    )
    monkeypatch.setattr("servesim.cost.host._all_shipped", lambda: shipped)
    terms = host_terms(asked, gpu)
    assert (terms and terms.name) == found


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("exposed", "x", "must be a number"),
        ("exposed", True, "must be a number"),
        ("pads_to_graphs", 1, "must be true or false"),
        ("engine", 7, "must be text"),
        ("provenance", [1], "must be a mapping"),
    ],
)
def test_a_term_of_another_kind_is_refused(key: str, value: object, told: str) -> None:
    with pytest.raises(UserError, match=f"host terms mine: {key} is {value!r} but {told}".replace("[", "\\[")):
        HostTerms.of({key: value}, "mine")
