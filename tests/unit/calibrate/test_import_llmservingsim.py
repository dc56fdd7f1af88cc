"""LLMServingSim's CSVs as kernel tables, on a hand-made profile of Llama-3.1-8B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servesim.calibrate.importers.llmservingsim import import_llmservingsim
from servesim.cli.app import app
from servesim.contracts.cost import Batch
from servesim.cost import KernelTables, TableCostModel, build_cost_model
from servesim.cost.attention import TableAttention, prefill_ns
from servesim.cost.breakdown import breakdown
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED
from servesim.cost.grid import HeadShape
from servesim.cost.host import HostTerms
from servesim.cost.measured import CachedPrefill, MixedExcess
from servesim.errors import UserError
from servesim.hardware import Gpu, ModelSpec

SHAPE = HeadShape(32, 8, 128)
LINEAR = {"qkv_proj": 36.0, "o_proj": 26.0, "gate_up_proj": 160.0, "down_proj": 86.0}
SMALL = {"layernorm": 2.0, "final_layernorm": 9.0, "act_fn": 3.0, "rotary_emb": 4.0, "embedding": 5.0}
ATTENTION = [
    # prompt tokens, cached before them, decodes, their context, microseconds
    (0, 0, 1, 100, 10.0),
    (0, 0, 1, 300, 12.0),
    (0, 0, 4, 100, 20.0),
    (0, 0, 4, 300, 40.0),
    (64, 0, 0, 0, 15.0),
    (128, 0, 0, 0, 30.0),
    (64, 256, 0, 0, 25.0),
    (128, 256, 0, 0, 50.0),
    (64, 0, 1, 100, 18.0),
    (64, 0, 1, 300, 22.0),
    (64, 0, 4, 100, 45.0),
    (64, 0, 4, 300, 95.0),
    (128, 0, 4, 300, 125.0),  # beside long contexts alone
    (64, 256, 4, 300, 130.0),  # over cached context: no axis of the schema
]


def _csv(path: Path, header: str, rows: Sequence[Sequence[object]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles" / "GPU" / "Llama-3.1-8B" / "tp1"
    folder.mkdir(parents=True)
    dense = [(layer, m, t * f) for layer, t in (LINEAR | SMALL).items() for m, f in ((1, 1), (64, 2), (128, 3))]
    _csv(folder / "dense.csv", "layer,tokens,time_us", dense)
    rows = [("lm_head", 1, 680.0), ("lm_head", 8, 690.0), ("sampler", 1, 26.0), ("sampler", 8, 30.0)]
    _csv(folder / "per_sequence.csv", "layer,sequences,time_us", rows)
    _csv(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", ATTENTION)
    return folder


@pytest.fixture
def tables(profile: Path, tmp_path: Path) -> KernelTables:
    import_llmservingsim(profile, tmp_path / "out")
    return KernelTables.load(folder=tmp_path / "out")


def cost(tables: KernelTables) -> TableCostModel:
    return build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("rtx-pro-6000"), tables=tables.folder)


def test_rows_carry_the_shapes_of_the_model_and_where_they_come_from(tables: KernelTables) -> None:
    gemm = tables.rows("gemm", "bf16")
    shapes = set(zip(gemm["n"].tolist(), gemm["k"].tolist(), strict=True))
    assert shapes == {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    assert tables.rows("norm", "bf16")["time_us"].tolist() == [2.0, 4.0, 6.0]  # not those of the final one
    assert set(tables.rows("rotary", "bf16")["n"].tolist()) == {5120}
    assert tables.rows("sampler", "bf16")["m"].tolist() == [1, 8]
    assert len(tables.rows("attention_mixed", "bf16")["time_us"]) == 5
    for entry in tables.provenance.values():
        assert (entry["licence"], entry["sources"][0]["profile"]) == ("MIT", "GPU/Llama-3.1-8B/tp1")


def test_a_step_is_the_sum_of_the_times_measured(tables: KernelTables) -> None:
    writes = 32 * 3.0 + 32 * 8 * 1024 / (1792e9 * 0.8) * 1e6  # writing the KV cache is not measured
    layer = sum(LINEAR.values()) + 2 * 2.0 + 3.0 + 4.0
    price = cost(tables).price(Batch.decodes(1, 101, 101**2, 101))
    assert price.gpu_ns / 1e3 == pytest.approx(32 * (layer + 10.0) + 2.0 + 5.0 + writes + 680.0 + 26.0, abs=0.5)
    assert price.shares[0] == pytest.approx(1.0 - writes / (price.gpu_ns / 1e3), abs=1e-4)


def test_prompts_over_cached_tokens_take_what_was_measured(tables: KernelTables) -> None:
    attention = TableAttention(tables, SHAPE, "bf16")
    assert prefill_ns(attention, [(64, 0)], False) == (15_000.0, MEASURED)
    assert prefill_ns(attention, [(64, 256)], False) == (25_000.0, MEASURED)
    assert prefill_ns(attention, [(64, 128)], False) == (20_000.0, INTERPOLATED)
    ns, source = prefill_ns(attention, [(64, 1024)], False)
    assert ns > 60_000.0
    assert source == EXTRAPOLATED


def test_decodes_beside_a_prompt_take_what_the_call_took(tables: KernelTables) -> None:
    model = cost(tables)

    def attention_us(batch: Batch) -> float:
        rest = Batch(batch.linear_tokens, sampled=batch.sampled)
        return (model.price(batch).gpu_ns - model.price(rest).gpu_ns) / 32e3

    for count, context, whole in ((1, 100, 18.0), (1, 300, 22.0), (4, 100, 45.0), (4, 300, 95.0), (4, 200, 70.0)):
        contexts = count * (context + 1)
        batch = Batch(
            64 + count,
            [(64, 0)],
            decode_count=count,
            decode_context_sum=contexts,
            decode_context_sumsq=count * (context + 1) ** 2,
            decode_context_max=context + 1,
            sampled=count,
        )
        assert attention_us(batch) == pytest.approx(whole, abs=1e-3)
        assert model.price(batch).ns == model.price_run(batch, 1)[0]


def test_decodes_beside_a_prompt_beyond_what_was_measured(tables: KernelTables) -> None:
    mixed = TableAttention(tables, SHAPE, "bf16").mixed
    assert mixed is not None
    known, source = mixed.at(4, 301, 64)
    assert source == INTERPOLATED
    assert mixed.at(8, 301, 64) == (2 * known, EXTRAPOLATED)
    assert mixed.at(4, 602, 64) == (2 * known, EXTRAPOLATED)
    assert mixed.at(4, 301, 4096) == (known, EXTRAPOLATED)
    assert mixed.at(4, 301, 8) == (known, EXTRAPOLATED)
    assert mixed.at(3, 101, 64)[0] == pytest.approx(3_000.0 + (20_000.0 - 3_000.0) * 2 / 3)


def test_a_call_measured_at_a_longer_context_than_larger_ones_keeps_its_time() -> None:
    mixed = MixedExcess({64: {1: [(101, 500.0), (301, 900.0)], 4: [(101, 2_000.0)]}})
    assert mixed.at(1, 301, 64)[0] == 900.0
    assert mixed.at(4, 301, 64) == (pytest.approx(2_000.0 * 301 / 101), EXTRAPOLATED)
    assert mixed.at(1, 602, 64) == (1_800.0, EXTRAPOLATED)


def test_other_heads_have_no_such_rows(tables: KernelTables) -> None:
    decode, prefill, mixed = (tables.rows(f"attention_{kind}", "bf16") for kind in ("decode", "prefill", "mixed"))
    other = HeadShape(16, 4, 128)
    assert CachedPrefill.of(prefill, other) is None
    assert MixedExcess.of(mixed, decode, prefill, other) is None
    assert MixedExcess.of({}, decode, prefill, SHAPE) is None
    ns, source = prefill_ns(TableAttention(tables, other, "bf16"), [(64, 256)], False)
    assert ns > 0.0
    assert source == EXTRAPOLATED


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dense.csv", "layer,tokens", "layer,token", r"dense.csv: column 'tokens' is missing"),
        (
            "dense.csv",
            "qkv_proj,64,72.0",
            "qkv_proj,64,nan",
            r"dense.csv: row 2: time_us is nan but must be a number above",
        ),
        ("attention.csv", "0,0,1,300,12.0", "0,0,1,300,-12", r"attention.csv: row 2: time_us is -12"),
        ("attention.csv", "0,0,1,300,12.0", "0,0,x,300,12", r"attention.csv: row 2: n_decode is 'x', not a number"),
        ("attention.csv", "0,0,1,300,12.0", "0,0,1.5,300,12", r"row 2: n_decode is 1.5 but must be a whole number"),
        ("per_sequence.csv", "lm_head", "head", r"no times for lm_head"),
    ],
)
def test_bad_files_are_refused(profile: Path, tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    text = (profile / file).read_text()
    assert old in text
    (profile / file).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        import_llmservingsim(profile, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_profile_is_refused(profile: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        import_llmservingsim(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(UserError, match=r"must hold one profile with a dense\.csv \(found: none\)"):
        import_llmservingsim(_empty(tmp_path), tmp_path / "out")
    odd = profile.rename(profile.with_name("two"))
    with pytest.raises(UserError, match="the folder must be named tp<number of GPUs>"):
        import_llmservingsim(odd, tmp_path / "out")


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_the_command_finds_the_one_profile_and_says_what_it_wrote(profile: Path, tmp_path: Path) -> None:
    above, out = profile.parents[2], tmp_path / "out"
    done = CliRunner().invoke(app, ["calibrate", "import", "llmservingsim", str(above), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "attention.parquet: 13 rows" in done.output.replace("\n", "")
    again = profile.with_name("tp2")
    again.mkdir()
    (again / "dense.csv").write_text("layer,tokens,time_us\n")
    failed = CliRunner().invoke(app, ["calibrate", "import", "llmservingsim", str(above), "--out", str(out)])
    assert failed.exit_code != 0


SKEW = [
    # decodes, prompt tokens, cached before it, mean context, longest context, equal contexts, unequal ones: of 3 calls
    (4, 0, 0, 100, 300, 60.0, 66.0),
    (4, 0, 0, 300, 700, 120.0, 132.0),
    (4, 64, 0, 100, 300, 135.0, 147.0),
    (4, 64, 256, 100, 300, 999.0, 999.0),  # over cached context: no axis of the schema
]


def _skewed(profile: Path, rows: Sequence[Sequence[object]], out: Path) -> KernelTables:
    _csv(profile / "skew.csv", "n,pc,kp,kv_mean,kv_big,t_mean_us,t_skew_us", rows)
    import_llmservingsim(profile, out)
    return KernelTables.load(folder=out)


def test_times_of_several_calls_are_told_by_equal_contexts(profile: Path, tmp_path: Path) -> None:
    rows = _skewed(profile, SKEW, tmp_path / "out").rows("attention_skew", "bf16")
    calls = zip(*(rows[c].tolist() for c in ("new_tokens", "past_tokens", "longest", "time_us")), strict=True)
    assert list(calls) == [
        *((0, 100, 100, 20.0), (0, 100, 300, 22.0), (0, 300, 300, 40.0), (0, 300, 700, 44.0)),
        *((64, 100, 100, 45.0), (64, 100, 300, 49.0)),
    ]
    other = [(n, pc, kp, mean, big, 1.2 * equal, unequal) for n, pc, kp, mean, big, equal, unequal in SKEW]
    with pytest.raises(UserError, match=r"skew.csv: decodes of equal contexts take 3.60 times what they take in"):
        _skewed(profile, other, tmp_path / "again")


def test_the_longest_context_is_paid_for_beyond_the_mean(profile: Path, tmp_path: Path) -> None:
    skew = TableAttention(_skewed(profile, SKEW, tmp_path / "out"), SHAPE, "bf16").skew
    assert skew is not None
    # 2 us for 200 tokens and 4 us for 400: 10 ns each; beside a prompt 4 us for 200
    assert skew.at(4, 4 * 200, False) == (pytest.approx(2000.0), INTERPOLATED)
    assert skew.at(4, 4 * 400, False)[0] == pytest.approx(4000.0)
    assert skew.at(4, 4 * 200, True)[0] == pytest.approx(4000.0)
    assert skew.at(8, 8 * 200, False)[1] == EXTRAPOLATED


def test_a_step_of_unequal_contexts_costs_their_excess_in_every_layer_and_along_a_run(
    profile: Path, tmp_path: Path
) -> None:
    model = cost(_skewed(profile, SKEW, tmp_path / "out"))
    equal, unequal = (Batch.decodes(4, 400, longest=longest) for longest in (100, 300))
    assert model.price(unequal).ns - model.price(equal).ns == pytest.approx(32 * 2000, abs=1)
    assert sum(breakdown(model, unequal).values()) == pytest.approx(model.price(unequal).gpu_ns, abs=1)
    run = model.gpu_run(unequal, 50)
    assert run.tolist() == [model.price(unequal.advance(j)).gpu_ns for j in range(50)]
    verified = replace(unequal, linear_tokens=12, queries_per_sequence=3, sampled=12)
    assert model.price(verified).ns == model.price(replace(verified, decode_context_max=100)).ns


def test_terms_fitted_to_served_steps_hold_the_excess_already(profile: Path, tmp_path: Path) -> None:
    tables = _skewed(profile, SKEW, tmp_path / "out")
    terms = HostTerms(name="some", exposed=1.0)
    model = build_cost_model(ModelSpec.load("llama-3.1-8b"), Gpu.load("rtx-pro-6000"), tables=tables.folder, host=terms)
    equal, unequal = (Batch.decodes(4, 400, longest=longest) for longest in (100, 300))
    assert model.price(unequal) == model.price(equal)
    equal, unequal = (
        Batch(68, [(64, 0)], decode_count=4, decode_context_sum=400, decode_context_max=longest, sampled=4)
        for longest in (100, 300)
    )
    excess = model.price(unequal).gpu_ns - model.price(equal).gpu_ns
    assert excess == pytest.approx(32 * 4000, abs=1), "measured beside prompts, where terms have none of it"
