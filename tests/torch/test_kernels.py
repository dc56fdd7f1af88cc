"""Kernel sets and timing: the CPU's for real, the GPU's as a dry run in which every call and argument is made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")

from torch import library  # noqa: E402

from servesim.calibrate.kernels import KERNEL_SETS, kernel_set, open_kernels  # noqa: E402
from servesim.calibrate.kernels.cpu_torch import CpuTorch, dense_mask  # noqa: E402
from servesim.calibrate.kernels.cuda_fa3_vllm import CudaFa3Vllm  # noqa: E402
from servesim.calibrate.kernels.torch_ops import BLOCK, PagedBatch  # noqa: E402
from servesim.calibrate.points import Limits, Shard, points  # noqa: E402
from servesim.calibrate.profile import Options, profile  # noqa: E402
from servesim.calibrate.timing import CpuDevice, CudaDevice, open_device  # noqa: E402
from servesim.cost import KernelTables  # noqa: E402
from servesim.cost.grid import HeadShape  # noqa: E402
from servesim.errors import UserError  # noqa: E402
from servesim.hardware import ModelSpec  # noqa: E402
from tests.support.fake_cuda import FakeCuda  # noqa: E402

SHAPE = HeadShape(4, 2, 64)
TINY = Shard(ModelSpec.load("tiny-llama"), 1, "bf16")
# as the library of vllm 0.26.0 declares them
FWD = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, "
    "int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap, "
    "bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, "
    "Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"
)
METADATA = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, "
    "bool is_causal, int window_size_left, int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, "
    "int sm_margin) -> Tensor"
)
SMALL_OPS = (
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
    "silu_and_mul(Tensor! result, Tensor input) -> ()",
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
)


def causal(q: Any, k: Any, v: Any) -> Any:
    """[new, heads, dim] over [context, kv heads, dim], the last query at the last key."""
    new, context = q.shape[0], k.shape[0]
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * q.shape[2] ** -0.5
    seen = torch.ones(new, context, dtype=torch.bool).tril(context - new)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


def fa3_fwd(q: Any, k: Any, v: Any, *rest: Any) -> list[Any]:
    """The documented meaning of the arguments that are given; the others must be what vLLM passes."""
    (k_new, v_new, q_v, out, starts, cu_k, cu_k_new, used_q, used, max_q, max_k, table, batch_idx, leftpad, cos, sin,
     rotary, q_scale, k_scale, v_scale, scale, is_causal, left, right, softcap, interleaved, metadata, splits, pack,
     margin, aux, world, rank, tot) = rest  # fmt: skip
    nothing = (k_new, v_new, q_v, cu_k, cu_k_new, used_q, batch_idx, leftpad, cos, sin, rotary, q_scale, k_scale,
               v_scale, pack, aux, tot)  # fmt: skip
    assert all(value is None for value in nothing)
    assert (is_causal, left, right, softcap, interleaved, margin, world, rank) == (True, -1, -1, 0.0, True, 0, 1, 0)
    assert scale == q.shape[2] ** -0.5
    assert (starts.dtype, used.dtype, table.dtype) == (torch.int32,) * 3
    assert max_q == max(b - a for a, b in pairwise(starts.tolist()))
    assert max_k == used.max()
    assert splits == (32 if q.shape[0] <= 512 else 0)
    assert metadata.tolist() == [len(used), splits]
    for i, (a, b) in enumerate(pairwise(starts.tolist())):
        context = int(used[i])
        blocks = table[i, : -(-context // BLOCK)].long()
        keys, values = (x[blocks].flatten(0, 1)[:context] for x in (k, v))
        out[a:b] = causal(q[a:b], keys, values).to(q.dtype)
    return []


@pytest.fixture
def vllm_ops() -> Iterator[None]:
    """vLLM's operators by their declarations, attention with a meaning."""
    fa3, c = library.Library("_vllm_fa3_C", "DEF"), library.Library("_C", "DEF")
    fa3.define(FWD)
    fa3.define(METADATA)
    fa3.impl("fwd", fa3_fwd, "CompositeExplicitAutograd")
    fa3.impl("get_scheduler_metadata", lambda *a: torch.tensor([a[0], a[20]]), "CompositeExplicitAutograd")
    for schema in SMALL_OPS:
        c.define(schema)
        c.impl(schema.partition("(")[0], lambda *a: None, "CompositeExplicitAutograd")
    yield
    fa3._destroy()
    c._destroy()
    for namespace in (torch.ops._vllm_fa3_C, torch.ops._C):
        for name in set(vars(namespace)) & {"fwd", "get_scheduler_metadata", *(s.partition("(")[0] for s in SMALL_OPS)}:
            delattr(namespace, name)


def dry(api: FakeCuda | None = None) -> CudaDevice:
    return CudaDevice(torch, api or FakeCuda(), target="cpu")


PIECES = [[(1, 5), (1, 300)], [(40, 0)], [(17, 33), (1, 16), (1, 15), (3, 0)], [(600, 8)]]


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", KERNEL_SETS)
def test_attention_of_every_set_is_causal_and_goes_through_block_tables(
    vllm_ops: None, name: str, pieces: list[tuple[int, int]]
) -> None:
    kernels: Any = kernel_set(name)(CpuDevice(torch) if name == "cpu_torch" else dry(), "bf16")
    batch = PagedBatch(torch, "cpu", pieces)
    q = kernels.randn(batch.tokens, SHAPE.heads, SHAPE.head_dim)
    keys, values = (kernels.randn(batch.blocks, BLOCK, SHAPE.kv_heads, SHAPE.head_dim) for _ in range(2))
    out = torch.full_like(q, float("nan"))
    kernels.paged_attention(SHAPE, batch)(q, keys, values, out)
    at = 0
    for i, (new, past) in enumerate(pieces):
        blocks = batch.table[i, : -(-(new + past) // BLOCK)].long()
        k, v = (x[blocks].flatten(0, 1)[: new + past] for x in (keys, values))
        # sums are float32: probabilities and the result are rounded to bf16 once each, by half an eps of the values
        rounding = torch.finfo(torch.bfloat16).eps * v.abs().max()
        assert (out[at : at + new].float() - causal(q[at : at + new], k, v)).abs().max() <= rounding
        at += new
    work = kernels.attention(SHAPE, pieces)
    assert work.kernel == {"cpu_torch": "torch sdpa, dense mask", "cuda_fa3_vllm": "vllm fa3 paged"}.get(
        name, "torch gather, sdpa"
    )
    for call in work.calls[:2]:
        call()


def test_blocks_belong_to_one_sequence_and_new_tokens_are_written_where_they_are_read() -> None:
    batch = PagedBatch(torch, "cpu", [(3, 14), (1, 31), (20, 0)])
    owned = [set(slots.tolist()) for slots in batch.read]
    assert [len(slots) for slots in owned] == [17, 32, 20]
    assert len(set.union(*owned)) == 17 + 32 + 20
    new = batch.write.split([3, 1, 20])
    assert [w.tolist() for w in new] == [r[-n:].tolist() for r, n in zip(batch.read, (3, 1, 20), strict=True)]
    assert batch.positions.tolist() == [14, 15, 16, 31, *range(20)]


def test_the_dense_mask_lets_every_query_see_its_own_sequence_up_to_itself() -> None:
    mask = dense_mask(torch, [(2, 1), (1, 2)], torch.float32)[0, 0]
    seen = [[c for c in range(6) if mask[r, c] == 0] for r in range(3)]
    assert seen == [[0, 1], [0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8", "int4"])
@pytest.mark.parametrize("m", [1, 40])
def test_gemms_run_in_every_format_a_processor_has(dtype: str, m: int) -> None:
    out: Any = CpuTorch(CpuDevice(torch), dtype).gemm(m, 256, 512, dtype).calls[0]()
    assert out.shape == (m, 256)
    assert out.isfinite().all()


def test_every_point_of_a_profile_can_be_made_by_the_gpu_sets(vllm_ops: None) -> None:
    limits = Limits(tokens=64, context=64, batch=4, kv_bytes=1 << 30)
    for name in ("cuda_fa3_vllm", "cuda_torch_sdpa"):
        kernels = kernel_set(name)(dry(), "bf16")
        for point in points([TINY], limits):
            if point.op == "gemm":
                work = kernels.gemm(point.m or 0, point.n or 0, point.k or 0, point.dtype)
            elif point.pieces:
                work = kernels.attention(point.shape, point.sequences)
            else:
                work = kernels.rows(point.op, point.m or 0, point.n or 0, point.shape if point.heads else None)
            work.calls[-1]()


def test_small_operators_are_vllms_own_where_its_library_has_them(vllm_ops: None) -> None:
    kernels = CudaFa3Vllm(dry(), "bf16")
    ops = ("norm", "activation", "rotary", "kv_write")
    names = {op: kernels.rows(op, 8, 128, SHAPE if op == "rotary" else None).kernel for op in ops}
    assert names == {
        "norm": "vllm fused_add_rms_norm",
        "activation": "vllm silu_and_mul",
        "rotary": "vllm rotary_embedding",
        "kv_write": "vllm reshape_and_cache_flash",
    }


def test_a_profile_of_the_gpu_sets_is_whole_on_a_dry_run(vllm_ops: None, tmp_path: Path) -> None:
    device = dry()
    outcome = profile(device, CudaFa3Vllm(device, "bf16"), [TINY], Options(tmp_path / "p", 120.0, 1.0, 16, 64, 2))
    assert outcome.skipped == {}
    assert outcome.measured == outcome.total
    rows = KernelTables.load(folder=tmp_path / "p").rows("attention_decode", "bf16")
    assert rows["time_us"].min() > 0


def test_replays_of_a_graph_are_divided_by_the_calls_captured() -> None:
    api = FakeCuda()
    captured: list[int] = []
    timing = dry(api).time([lambda i=i: captured.append(i) if api.capturing else None for i in range(4)])  # type: ignore[misc]
    assert timing.method == "graph"
    assert 4 <= len(captured) <= 20
    assert captured[:5] == [0, 1, 2, 3, 0]  # in turn
    assert timing.median_us == pytest.approx(1000.0 / len(captured))
    assert api.log.count("replay") == 3 + 10
    assert api.log[-1] == "reset"
    assert (timing.samples, timing.p10_us, timing.p90_us) == (10, timing.median_us, timing.median_us)


def test_what_cannot_be_captured_is_timed_one_by_one_and_says_so() -> None:
    api = FakeCuda()
    api.refuse = True

    def call() -> None:
        api.us += 7.0

    timing = dry(api).time([call])
    assert (timing.method, timing.median_us) == ("eager", pytest.approx(7.0))


def test_weights_turn_over_twice_the_cache() -> None:
    device = dry()
    assert device.cache_bytes == 60 << 20
    assert device.copies(30 << 20) == 4
    assert device.copies(1 << 30) == 1
    assert device.copies(100) == 20


def test_a_machine_without_a_gpu_is_said_in_one_line() -> None:
    with pytest.raises(UserError, match=r"no CUDA GPU: torch .* sees none .*--device cpu"):
        dry(FakeCuda(available=False))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA GPU"):
            open_device("cuda")


def test_a_missing_kernel_library_is_named_with_what_does_without(tmp_path: Path) -> None:
    device = dry()
    with pytest.raises(UserError, match=r"needs --library _vllm_fa3_C.abi3.so .*--kernels cuda_torch_sdpa"):
        open_kernels(device, None, None, [])
    with pytest.raises(UserError, match="no such file"):
        open_kernels(device, None, None, [tmp_path / "_vllm_fa3_C.abi3.so"])
    (tmp_path / "broken.so").write_bytes(b"no library")
    with pytest.raises(UserError, match="cannot be loaded with this torch"):
        open_kernels(device, None, None, [tmp_path / "broken.so"])


def test_flash_attention_3_is_refused_on_other_chips(vllm_ops: None) -> None:
    with pytest.raises(UserError, match=r"Hopper GPUs .* is sm_80"):
        CudaFa3Vllm(dry(FakeCuda(capability=(8, 0))), "bf16")


def test_kernel_sets_and_formats_are_checked_by_name() -> None:
    with pytest.raises(UserError, match=r"unknown kernel set 'cpu_torhc'.*cpu_torch"):
        open_kernels(CpuDevice(torch), "cpu_torhc", None, [])
    with pytest.raises(UserError, match="is for --device cuda, not cpu"):
        open_kernels(CpuDevice(torch), "cuda_torch_sdpa", None, [])
    with pytest.raises(UserError, match="has no fp8 GEMMs"):
        open_kernels(CpuDevice(torch), None, "fp8", [])
