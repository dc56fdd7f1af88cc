"""Construction of a cost model from a model, a GPU and its parallelism."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

from servesim.contracts.speculator import Speculator
from servesim.cost.data_parallel import check_ranks, mixture
from servesim.cost.draft import drafting
from servesim.cost.formula import COMPUTE_DTYPE, Roofline, format_on
from servesim.cost.graph import LayerGraph
from servesim.cost.host import HostTerms
from servesim.cost.linear import GemmTables
from servesim.cost.model import TableCostModel
from servesim.cost.stage import Stage
from servesim.cost.suspect import missing_collectives, slow_collectives
from servesim.cost.tables import KernelTables
from servesim.errors import UserError, suggest
from servesim.hardware.gpu import Gpu, gpu_names
from servesim.hardware.layers import pipeline_layers
from servesim.hardware.model import ModelSpec, check_tp
from servesim.versions import EngineFacts

KV_DTYPES = ("bf16", "fp16", "fp8", "fp32")
ROOFLINE_ONLY, IDEAL = "roofline", "ideal"
"""Values of `tables` that select formulas instead: at the rates that kernels are known to reach, or at the data sheet's
rates."""


def build_cost_model(
    model: ModelSpec,
    gpu: Gpu,
    tp: int = 1,
    dtype: str = "bf16",
    *,
    pp: int = 1,
    kv_dtype: str = "bf16",
    tables: str | Path | None = None,
    host: HostTerms | None = None,
    speculator: Speculator | None = None,
    moe_backend: str = "auto",
    dp: int = 1,
    ep: int = 1,
    all2all: str = "auto",
    load: float | None = None,
    attention_backend: str = "auto",
    engine: EngineFacts | None = None,
    float32_matmul_precision: str = "highest",
    fuse_allreduce_rms: bool | None = None,
) -> TableCostModel:
    """Return the cost model of `model` on `pp` pipeline stages of `tp` identical GPUs each.

    `dtype` applies to the linear layers (the LM head and most routers stay in 16 bits, as in vLLM; experts published in
    only one precision keep it), `kv_dtype` to the KV cache. `tables` is a folder of kernel tables measured on `gpu`,
    used instead of the shipped ones, or "roofline": no tables, everything by formula from the GPU's data sheet, or
    "ideal": the same at the data sheet's full rates (`Roofline.ideal`). Anything missing from the tables is priced by
    formula and appears as such in `Price.shares`. `host` is the engine's overhead on top of its kernels, or None for no
    overhead. `speculator` drafts after every step, at a cost. `moe_backend` is the kernel of routed experts
    (`servesim.cost.moe.MOE_BACKENDS`; auto: the one that `engine` is known to run, else the fastest measured). Whole
    experts are distributed over `ep` of the GPUs and split by width over the rest. `dp` data-parallel ranks of `tp`
    GPUs each compute the experts together (`servesim.cost.data_parallel`), with tokens dispatched and combined by
    `all2all`. `load` is the load of the most loaded GPU relative to the mean (None: as measured). `engine` holds the
    known facts about the serving engine's choice of kernels, or None. `attention_backend` "eager" means no fused
    attention kernel (`servesim.cost.eager`). `float32_matmul_precision` "high" computes products of float32 in TF32.
    `fuse_allreduce_rms` says whether the all-reduce also normalizes (None: as the engine does by default).
    """
    _check(model, gpu, tp, dtype, kv_dtype, engine)
    check_ranks(model, tp, dp, ep)
    kernels, measured_on, rows = _kernels(model, gpu, tables, engine)
    if gpu.name == measured_on.name and _same_rates(
        gpu, measured_on, arithmetic(model, dtype, kv_dtype), links=tp * pp > 1
    ):
        measured_on = gpu  # changes to price or memory do not affect measured kernels
    smooth = host is not None and host.monotone_gemms
    roofline = Roofline.ideal if tables == IDEAL else Roofline
    by_formula = tables in (ROOFLINE_ONLY, IDEAL)
    rate, sinks = (
        inf if engine is None or by_formula else engine.get(name, inf)
        for name in ("weight_only_flops", "sink_prefill_flops")
    )
    keeps_fp32 = engine is not None and not by_formula and model.model_type in engine.get("fp32_routers", ())
    keeps_fp32 = keeps_fp32 and {"fp32", "bf16"} <= gpu.flops.keys()
    gemms = GemmTables(kernels, roofline(gpu), roofline(measured_on), smooth, rows.get("quantizing_us", {}), rate)
    eager = attention_backend == "eager"
    if eager and model.latent is not None:
        raise UserError(
            f"attention_backend eager: {model.name} uses latent attention, which is modeled only with fused kernels"
        )
    weights = format_on(gpu, dtype)
    if weights == "fp8" and model.block_scaled and _has(kernels, "fp8_block"):
        weights = "fp8_block"
    if moe_backend == "auto" and engine is not None and model.experts is not None:
        moe_backend = _experts_kernel(engine, model.experts.dtype or weights, tp * dp, ep > 1)
    if host is not None and model.experts is not None:
        host = host.with_experts(model.experts_dtype or weights, moe_backend)
    graph = LayerGraph(
        model,
        gpu,
        tp,
        weights,
        kv_dtype,
        gemms,
        host,
        moe_backend,
        ep,
        eager,
        _own_all_reduce_below(engine, tp),
        _fused_norm_below(engine, tp, model, fuse_allreduce_rms, dp * pp == 1),
        frozenset(rows.get("attention_with", ())),
        dp,
        load,
        sinks if model.attention_sinks else inf,
        float32_matmul_precision if keeps_fp32 else None,
    )
    stages = [
        Stage(
            graph.per_token(layers),
            graph.per_sample() if layers.stop == model.num_layers else [],
            graph.attention(layers),
            gemms.roofline,
            len(layers) / model.num_layers,
            host.sustained_after if host is not None else 0.0,
        )
        for layers in pipeline_layers(model.num_layers, pp)
    ]
    shared = []
    for stage, layers in zip(stages, pipeline_layers(model.num_layers, pp), strict=True) if dp > 1 else ():
        stage.mixtures = sum(model.layers[i].experts for i in layers)
        shared.append(mixture(graph, all2all, layers))
    gpus = f"{tp} x {gpu.name}" if pp == 1 else f"{pp} stages of {tp} x {gpu.name}"
    gpus = f"{dp} ranks of {gpus}" if dp > 1 else gpus
    description = f"{model.name} on {gpus}, {dtype} weights, {kv_dtype} KV"
    if model.experts is not None:
        description += (
            "; token routing is assumed to follow a power law where experts were measured, and to be uniform elsewhere"
        )
    if moe_backend.startswith("deepgemm") and weights == "fp8_block":
        description += "; fp8 experts use DeepGEMM's grouped kernel, whose times come from the table's dense rows"
    if model.experts is not None and (model.experts_dtype or weights) == "fp8":
        description += "; fp8 experts use the fastest measured kernel, although no engine is known to choose it"
    suspect = []
    if kernels is not None and tp > 1:
        suspect = [*slow_collectives(kernels, measured_on, tp), *missing_collectives(kernels, tp)]
    drafts = drafting(speculator, graph, all2all) if speculator is not None else None
    return TableCostModel(stages, description, host, kernels, suspect, drafts, shared)


def _kernels(
    model: ModelSpec, gpu: Gpu, tables: str | Path | None, engine: EngineFacts | None
) -> tuple[KernelTables | None, Gpu, dict[str, Any]]:
    """Return the requested tables, else the engine's own if they have the model's attention, else those of the GPU; the
    GPU they were measured on; and the extra work that the engine's own rows include in addition to the kernel they are
    named after."""
    if tables in (ROOFLINE_ONLY, IDEAL):
        return None, gpu, {}
    if tables is not None:
        return KernelTables.load(folder=tables), _unchanged(gpu), {}
    own = engine.get("kernel_tables") if engine is not None and gpu.tables is not None else None
    if engine is not None and own is not None and (model.latent is None or _has_latent(KernelTables.load(own))):
        return KernelTables.load(own), Gpu.load(own.partition("-")[0]), engine.get("kernel_rows", {})
    if gpu.tables is not None:
        return KernelTables.load(gpu.tables), Gpu.load(gpu.tables), {}
    return None, gpu, {}


def _unchanged(gpu: Gpu) -> Gpu:
    """Return the GPU with its data-sheet values, since the tables were measured with those even if settings change
    them. A GPU described only by a file is returned unchanged."""
    return Gpu.load(gpu.name) if gpu.name in gpu_names() else gpu


def arithmetic(model: ModelSpec, dtype: str, kv_dtype: str) -> frozenset[str]:
    """Return the rates of a data sheet (keys of its flops) that a model's kernels depend on."""
    experts = COMPUTE_DTYPE[model.experts_dtype or dtype]
    return frozenset(("bf16", "fp16", COMPUTE_DTYPE[dtype], experts, *((kv_dtype,) if kv_dtype != "bf16" else ())))


def _same_rates(gpu: Gpu, other: Gpu, dtypes: frozenset[str], links: bool) -> bool:
    """Return whether two data sheets agree on all rates that affect kernels. `links`: also compare link rates, for
    several GPUs."""

    def rates(one: Gpu) -> tuple[object, ...]:
        flops = {dtype: rate for dtype, rate in one.flops.items() if dtype in dtypes}
        return one.bandwidth, one.link_bandwidth if links else None, flops

    return rates(gpu) == rates(other)


def _experts_kernel(engine: EngineFacts, weights: str, tp: int, expert_parallel: bool) -> str:
    """Return the kernel that the engine uses for experts (see `servesim.cost.moe.MOE_BACKENDS`)."""
    if weights != "fp8_block":
        return str(engine.get("mxfp4_experts", "auto"))
    known = engine.get("fp8_experts", {})
    applies = known.get("kernel", "measured") != "measured" and (expert_parallel or tp < known.get("below_tp", inf))
    return str(known["kernel"]) if applies else "auto"


def _fused_norm_below(engine: EngineFacts | None, tp: int, model: ModelSpec, fuse: bool | None, alone: bool) -> float:
    """Return the message size in bytes up to which the engine's all-reduce of this model also normalizes; 0: never.
    vLLM does so without pipeline stages and data-parallel ranks (issues 34458 and 35426). `alone`: there are none."""
    if engine is None or model.model_type in engine.get("unfused_norm_models", ()):
        return 0.0
    if engine.engine == "vllm" and not alone:
        return 0.0
    if not (engine.get("fuse_allreduce_rms", True) if fuse is None else fuse):
        return 0.0
    return float(engine.get("fused_all_reduce_norm_mib", {}).get(tp, 0.0) * 2**20)


def _own_all_reduce_below(engine: EngineFacts | None, tp: int) -> float:
    """Return the message size in bytes from which the engine leaves all-reduce to NCCL, or infinity if unknown."""
    limits = ("custom_all_reduce_mib", "symm_mem_all_reduce_mib")
    known = [engine.get(name, {}).get(tp, 0.0) for name in limits] if engine is not None else []
    return max(known, default=0.0) * 2**20 or inf


def _has_latent(tables: KernelTables) -> bool:
    return bool(tables.dtypes("mla_decode") or tables.dtypes("mla_kernel_decode"))


def _has(tables: KernelTables | None, dtype: str) -> bool:
    return tables is not None and bool(tables.rows("gemm", dtype))


def _check(model: ModelSpec, gpu: Gpu, tp: int, dtype: str, kv_dtype: str, engine: EngineFacts | None) -> None:
    check_tp(model, tp)
    if dtype not in COMPUTE_DTYPE:
        raise UserError(f"unknown dtype {dtype!r}{suggest(dtype, COMPUTE_DTYPE)}")
    check_arithmetic(model, gpu, dtype, engine)
    if kv_dtype not in KV_DTYPES:
        raise UserError(f"unknown kv_dtype {kv_dtype!r}{suggest(kv_dtype, KV_DTYPES)}")


def check_arithmetic(model: ModelSpec, gpu: Gpu, dtype: str, engine: EngineFacts | None) -> None:
    """Raise UserError for weights that the GPU has no arithmetic for, and the engine (None: vLLM) no weight-only
    kernel."""
    layers = {"linear layers": dtype}
    if model.experts is not None:
        layers["experts"] = model.experts_dtype or dtype
    for what, known in layers.items():
        priced = format_on(gpu, known)
        if COMPUTE_DTYPE[priced] not in gpu.flops:
            raise UserError(f"{gpu.name} has no {known} arithmetic (choose from: {', '.join(sorted(gpu.flops))})")
        if priced != known and engine is not None and what not in engine.get("fp8_weight_only", ()):
            raise UserError(
                f"{gpu.name} has no {known} arithmetic, and {engine.engine} has no weight-only kernel for {what} "
                f"with it (choose from: {', '.join(sorted(gpu.flops))})"
            )
