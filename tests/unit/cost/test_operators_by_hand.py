"""What each operator of a layer moves and computes, by hand: on a GPU of a byte a nanosecond and boundless arithmetic
a kernel's time is the bytes it moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from servesim.cost.attention import TableAttention
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, Curve
from servesim.cost.formula import Roofline
from servesim.cost.graph import LayerGraph
from servesim.cost.grid import HeadShape
from servesim.cost.host import HostTerms
from servesim.cost.linear import GemmTables, collective_curve
from servesim.cost.stage import Operator
from servesim.cost.streamed import BesidePrompt
from servesim.cost.tables import KernelTables
from servesim.hardware import Gpu, ModelSpec

BYTES = replace(
    Gpu.load("h100"),
    bandwidth=1e9,
    nvlink_bandwidth=1e9,
    flops=dict.fromkeys(("bf16", "fp16", "fp32", "fp8"), 1e30),
)
PLAIN = Roofline(BYTES, 1.0, 1.0, 0.0, 0.0)
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip
MODEL = ModelSpec.from_config(CONFIG, "x")
WORD = 2
"""Bytes of an activation and of a weight."""


def graph(tp: int = 1, dtype: str = "bf16", host: HostTerms | None = None, **more: Any) -> LayerGraph:
    """The layers of CONFIG, or of `model`, with some of its settings or of the graph's changed."""
    gpu, model = more.pop("gpu", BYTES), more.pop("model", MODEL)
    roofline = more.pop("roofline", replace(PLAIN, gpu=gpu))
    options = {key: more.pop(key) for key in list(more) if key in LayerGraph.__dataclass_fields__}
    return LayerGraph(
        replace(model, **more), gpu, tp, dtype, dtype, GemmTables(None, roofline, roofline), host, **options
    )


def times(operators: list[Operator], tokens: int) -> dict[str, float]:
    found: Counter[str] = Counter()
    for operator in operators:
        found[operator.name] += operator.curve.at(tokens)  # type: ignore[assignment]
    return dict(found)


def gemm(m: int, n: int, k: int, word: int = WORD) -> int:
    """Bytes of weights, inputs and outputs."""
    return word * (n * k + m * (k + n))


def test_each_operator_of_a_dense_layer_moves_its_bytes() -> None:
    """Four heads of 16 over 64 hidden, two of keys and values; seven tokens, three layers."""
    m = 7
    assert times(graph().per_token(range(3)), m) == {
        "qkv": 3 * gemm(m, 64 + 2 * 32, 64),
        "attention_out": 3 * gemm(m, 64, 64),
        "kv_write": 3 * m * 2 * WORD * 2 * 32,  # keys and values, read and written
        "rotary": 3 * m * 2 * WORD * (64 + 32),  # queries and keys, read and written
        "up": 3 * gemm(m, 2 * 128, 64),
        "activation": 3 * m * WORD * (2 * 128 + 128),
        "down": 3 * gemm(m, 64, 128),
        "norm": (2 * 3 + 1) * m * WORD * 4 * 64,  # hidden state and residual, read and written
        "embedding": m * 2 * WORD * 64,
    }


def test_two_gpus_share_heads_widths_and_vocabulary_and_reduce_after_both_halves_of_a_layer() -> None:
    m, each = 7, 2 * (2 - 1) / 2 * WORD * 64  # a ring sends each half twice
    found = times(graph(2).per_token(range(3)), m)
    assert found["qkv"] == 3 * gemm(m, 32 + 2 * 16, 64)
    assert found["attention_out"] == 3 * gemm(m, 64, 32)
    assert found["up"] == 3 * gemm(m, 128, 64)
    assert found["activation"] == 3 * m * WORD * (128 + 64)
    assert found["kv_write"] == 3 * m * 2 * WORD * 2 * 16
    assert found["all_reduce"] == (2 * 3 + 1) * m * each  # and the embedding's
    head = times(graph(2).per_sample(), m)
    assert head == {"lm_head": gemm(m, 50, 64), "sampler": m * 14 * 100, "all_gather": m * WORD * 100 / 2}
    assert times(graph(1).per_sample(), m) == {"lm_head": gemm(m, 100, 64), "sampler": m * 14 * 100}


def test_in_32_bits_every_operator_moves_twice_the_bytes() -> None:
    m = 7
    narrow, wide = (times(graph(1, dtype).per_token(range(3)), m) for dtype in ("bf16", "fp32"))
    assert wide == {name: 2 * ns for name, ns in narrow.items()}
    assert times(graph(1, "fp32").per_sample(), m)["lm_head"] == gemm(m, 100, 64, 4)


def test_a_stage_in_the_middle_neither_looks_up_embeddings_nor_norms_at_its_end_but_sends() -> None:
    m, first, middle, last = 7, graph(2), range(1, 2), range(2, 3)
    found = times(first.per_token(middle), m)
    assert "embedding" not in found
    assert found["norm"] == 2 * m * WORD * 4 * 64
    assert found["all_reduce"] == 2 * m * WORD * 64
    assert found["send"] == m * 4 * 64 / 2  # hidden state and residual, each GPU its half
    assert found["all_gather"] == m * 4 * 64 / 2
    assert not {"send", "all_gather"} & set(times(first.per_token(last), m))
    assert times(first.per_token(range(1)), m)["all_reduce"] == 3 * m * WORD * 64
    alone = times(graph(1).per_token(middle), m)
    assert (alone["send"], "all_gather" in alone) == (m * 4 * 64, False)


def test_a_third_and_fourth_norm_of_a_layer_read_and_write_the_hidden_state_alone() -> None:
    m = 7
    plain = times(graph().per_token(range(3)), m)["norm"]
    for beyond in (1, 2):
        assert (
            times(graph(norms_per_layer=2 + beyond).per_token(range(3)), m)["norm"] == plain + beyond * 3 * m * 4 * 64
        )


def test_a_norm_over_all_heads_of_two_gpus_takes_two_passes_and_a_sum_of_two_numbers() -> None:
    m, width = 7, 32 + 16
    plain, found = (times(graph(2, qk_norm_all_heads=each).per_token(range(3)), m) for each in (False, True))
    assert found["norm"] - plain["norm"] == 3 * m * (2 + 4) * width
    assert found["all_reduce"] - plain["all_reduce"] == 3 * m * 8  # two GPUs, each half sent twice: 8 bytes
    alone = graph(1, qk_norm_all_heads=True).per_token(range(3))
    assert times(alone, m) == times(graph().per_token(range(3)), m)


def test_what_the_attention_kernel_does_itself_is_no_operator() -> None:
    both = frozenset(("kv_write", "rotary"))
    assert not both & set(times(graph(within_attention=both).per_token(range(3)), 1))
    assert "rotary" in times(graph(within_attention=both, qk_norm=True).per_token(range(3)), 1)
    assert "rotary" not in times(graph(learned_positions=512).per_token(range(3)), 1)
    assert "kv_write" in times(graph(within_attention=frozenset(("rotary",))).per_token(range(3)), 1)


def test_a_fused_norm_is_free_up_to_its_bytes_on_several_gpus() -> None:
    """A token's message is 128 bytes: 640 are five tokens."""
    small, large = (times(graph(2, fused_norm_to=640).per_token(range(1, 2)), m).get("norm") for m in (5, 6))
    assert (small, large) == (0, 2 * 6 * WORD * 4 * 64)
    assert times(graph(1, fused_norm_to=640).per_token(range(1, 2)), 5)["norm"] == 2 * 5 * WORD * 4 * 64


def test_layers_that_share_keys_and_values_project_and_write_none() -> None:
    m = 7
    model = ModelSpec.from_config(CONFIG | {"num_kv_shared_layers": 2}, "x")
    found = times(graph(model=model).per_token(range(3)), m)
    assert found["qkv"] == gemm(m, 128, 64) + 2 * gemm(m, 64, 64)
    assert found["kv_write"] == m * 2 * WORD * 2 * 32
    assert found["rotary"] == m * 2 * WORD * (3 * 64 + 32)


def test_small_operators_of_latent_attention_move_latents_and_rotated_heads() -> None:
    m, model = 7, ModelSpec.load("deepseek-v3")
    latent = model.latent
    assert latent is not None
    found = times(graph(8, model=model).per_token(range(1, 4)), m)
    norms = 2 * m * WORD * 4 * 7168 + m * 2 * WORD * (1536 + 512)
    assert found["norm"] == 3 * norms
    assert found["kv_write"] == 3 * m * 2 * WORD * 576
    assert found["rotary"] == 3 * m * 2 * WORD * (128 // 8 + 1) * 64  # each head's queries, and the one key


def test_logits_cost_what_host_terms_say_besides_the_sampler() -> None:
    plain, slow = (graph(host=HostTerms(sampling_per_logit=share)).per_sample()[1].curve for share in (0.0, 0.5))
    for rows in (1, 4):
        assert slow.at(rows) - plain.at(rows) == rows * 0.5 * 100


def test_dense_layers_are_held_to_the_sustained_share_of_arithmetic() -> None:
    """At 2 operations a nanosecond a token's n x k takes n * k ns, at half of that twice as long; 16 bits and 8 have
    shares of their own, and no share is no limit."""
    gpu = replace(BYTES, flops={"bf16": 2e9, "fp16": 2e9, "fp8": 2e9, "fp32": 2e9})
    host = HostTerms(sustained_flops_share=0.5, sustained_fp8_share=0.25)
    for dtype, share in (("bf16", 0.5), ("fp8", 0.25)):
        qkv = graph(dtype=dtype, host=host, gpu=gpu).per_token(range(3))[0]
        assert (qkv.name, qkv.runs) == ("qkv", 3)
        assert qkv.throttled is not None
        assert qkv.throttled.at(1000) == pytest.approx(3 * 1000 * 128 * 64 / share)
        assert qkv.curve.at(1000) == pytest.approx(3 * 1000 * 128 * 64)
    assert graph(gpu=gpu).per_token(range(3))[0].throttled is None
    assert graph(host=HostTerms(), gpu=gpu).per_token(range(3))[0].throttled is None


def test_keys_and_values_are_read_at_the_share_of_the_data_sheet_that_host_terms_give() -> None:
    """Two heads of 16, keys and values, 2 bytes each: 128 ns a token at the full rate, a quarter longer at 0.8."""
    (plain,) = graph().attention(range(3))
    (read,) = graph(host=HostTerms(kv_bandwidth_share=0.8)).attention(range(3))
    assert (plain.layers, read.layers) == (3, 3)
    for attention, token in ((plain.attention, 128), (read.attention, 160)):
        curve = attention.decode(5)
        assert curve.at(300) - curve.at(200) == pytest.approx(5 * 100 * token)
    mixed = graph(host=HostTerms(mixed_kv_excess=2.0)).attention(range(3))[0].attention.mixed
    assert isinstance(mixed, BesidePrompt)
    assert mixed.at(5, 100, 4096)[0] == pytest.approx(2 * 5 * 100 * 128)


def test_an_ideal_step_reads_the_input_embedding_whole_unless_the_head_is_the_same() -> None:
    """100 rows of 64 numbers, shared by two GPUs, and 512 learned positions on each."""
    ideal = Roofline.ideal(BYTES)
    for tied, positions, tp, rows in ((True, 0, 1, 0), (False, 0, 1, 100), (False, 0, 2, 50), (True, 512, 2, 512)):
        made = graph(tp, roofline=ideal, tie_embeddings=tied, learned_positions=positions)
        embedding = next(o.curve for o in made.per_token(range(3)) if o.name == "embedding")
        assert [embedding.at(m) for m in (1, 9)] == [rows * 64 * WORD] * 2


def test_experts_are_routed_in_bf16_and_what_every_token_passes_is_a_layer_of_its_own() -> None:
    m, model = 7, ModelSpec.load("deepseek-v3")
    moe = model.experts
    assert moe is not None
    found = times(graph(8, "fp8", model=model).per_token(range(3, 5)), m)
    assert found["router"] == 2 * gemm(m, moe.count, 7168)
    assert found["shared_activation"] == 2 * m * WORD * 3 * moe.shared_size / 8
    split, whole = (times(graph(8, "fp8", model=model, ep=ep).per_token(range(3, 5)), m) for ep in (1, 8))
    assert found["experts"] == split["experts"] != whole["experts"]
    operators = graph(8, model=model).per_token(range(2, 5))  # the first three layers are dense
    runs = {o.name: o.runs for o in operators}
    assert (runs["up"], runs["router"], runs["experts"], runs["shared_up"]) == (1, 2, 2, 2)


def test_keys_and_values_in_8_bits_are_priced_by_their_own_rows_and_fp16_by_those_of_bf16() -> None:
    tables, shape = KernelTables.load("h100"), HeadShape(32, 8, 128)
    bf16, fp16, fp8 = (TableAttention(tables, shape, each).decode(64).at(8000) for each in ("bf16", "fp16", "fp8"))
    assert fp8 < 0.7 * bf16
    assert fp16 == bf16


def table(widths: list[tuple[int, int]], tokens: tuple[int, ...] = (16, 32, 64)) -> KernelTables:
    """GEMMs in bf16 that all take what their bytes take."""
    rows = [(m, n, k, PLAIN.gemm(m, n, k, "bf16") / 1e3) for n, k in widths for m in tokens]
    columns = zip(("m", "n", "k", "time_us"), map(np.array, zip(*rows, strict=True)), strict=True)
    return KernelTables.load("h100").with_rows("gemm", "bf16", dict(columns))


@pytest.mark.parametrize(
    ("n", "k", "source"),
    [(512, 512, INTERPOLATED), (256, 300, INTERPOLATED), (1024, 300, INTERPOLATED), (300, 256, INTERPOLATED),
     (300, 1024, INTERPOLATED), (255, 300, EXTRAPOLATED), (1025, 300, EXTRAPOLATED), (300, 255, EXTRAPOLATED),
     (300, 1025, EXTRAPOLATED)],
)  # fmt: skip
def test_widths_at_the_edge_of_the_table_are_inside_it(n: int, k: int, source: int) -> None:
    corners = [(256, 256), (256, 1024), (1024, 256), (1024, 1024)]
    curve = GemmTables(table(corners), PLAIN, PLAIN).curve(n, k, "bf16")
    assert curve.source(32) == source
    assert curve.at(32) == pytest.approx(PLAIN.gemm(32, n, k, "bf16"))  # all of them reach the roofline whole


def test_beyond_the_table_a_gemm_has_a_knot_at_twice_its_last_count() -> None:
    curve = GemmTables(table([(256, 256)]), PLAIN, PLAIN).curve(256, 256, "bf16")
    assert curve.xs == [0, 16, 32, 64, 128]
    assert curve.known_to == 64
    assert curve.at(128) == pytest.approx(PLAIN.gemm(128, 256, 256, "bf16"))


def test_a_hump_at_the_last_but_one_count_is_smoothed_too() -> None:
    tables = table([(256, 256), (1024, 1024)])
    rows = dict(tables.rows("gemm", "bf16"))
    rows["time_us"] = rows["time_us"] * np.where(rows["m"] == 32, 1000, 1)
    humps = [GemmTables(tables.with_rows("gemm", "bf16", rows), PLAIN, PLAIN, monotone=on) for on in (False, True)]
    plain, smooth = (each.curve(512, 512, "bf16") for each in humps)
    assert plain.at(32) > plain.at(64)
    assert smooth.at(32) == smooth.at(64) == plain.at(64)
    assert smooth.at(16) == plain.at(16)


def reduction(sizes: dict[str, dict[int, float]], own_below: float = inf) -> Curve:
    """An all-reduce of two GPUs from microseconds by bytes."""
    tables = KernelTables.load("h100")
    for op, times_us in sizes.items():
        columns = {"gpus": [2] * len(times_us), "bytes": [*times_us], "time_us": [*times_us.values()]}
        rows = {name: np.array(values) for name, values in columns.items()}
        tables = tables.with_rows(op, "bf16", rows)
    return collective_curve(tables, PLAIN, "all_reduce", 2, 100, own_below)


def test_messages_from_a_size_on_are_reduced_by_nccl() -> None:
    own, nccl = {100: 1.0, 200: 2.0, 400: 4.0}, {200: 7.0, 400: 8.0}
    both = {"all_reduce": own, "all_reduce_nccl": nccl}
    assert [reduction(both, 400).at(x) for x in (1, 2, 4)] == [1000, 2000, 8000]
    assert [reduction(both, 200).at(x) for x in (1, 2, 4)] == [1000, 7000, 8000]
    assert [reduction(both).at(x) for x in (1, 2, 4)] == [1000, 2000, 4000]
    assert [reduction(both, 100).at(x) for x in (2, 4)] == [7000, 8000]  # NCCL's alone
