"""The joint work of data-parallel ranks: routed experts over the tokens of all ranks, and the transfers to them.

**Parallelism.** `dp` ranks of `tp` GPUs each: attention, dense layers, routers, shared experts and the LM head belong
to a rank and process only its tokens; routed experts are spread over all `tp x dp` GPUs: whole experts are distributed
over `ep` of them and split by width over the rest. vLLM uses these terms (`--tensor-parallel-size`,
`--data-parallel-size`, `--enable-expert-parallel`: ep is all or 1); SGLang and TensorRT-LLM name the product (`--tp 8
--dp 8 --enable-dp-attention`: tp 1, dp 8 here).

**Transfers.** `allgather_reducescatter` (vLLM's default, and the method of SGLang and TensorRT-LLM without DeepEP's
all-to-all): every GPU gets the hidden states of all tokens, and sums are scattered; both take the time of NCCL's
all-gather for the same number of bytes (reduce-scatter of 1 MB and more on an H200 was measured within 20 % of it).
DeepEP, low latency and high throughput, takes the times of its kernels as measured in one box and, on H100 and H200,
over 2, 4 and 8 boxes; other widths are scaled by bytes. Between boxes without such rows, the time is the bytes divided
by the data-sheet rate of the network cards, which counts as formula.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, NamedTuple

from servesim.cost.curve import EXTRAPOLATED, MEASURED, Curve
from servesim.cost.curves import total
from servesim.cost.formula import line
from servesim.cost.linear import GemmTables, collective_curve
from servesim.cost.stage import Operator, Stage
from servesim.cost.tables import KernelTables
from servesim.errors import UserError
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import Experts
from servesim.hardware.model import ModelSpec

if TYPE_CHECKING:
    from servesim.cost.graph import LayerGraph

_OPS = {"deepep_low_latency": "all_to_all_ll", "deepep_high_throughput": "all_to_all_ht"}
_DISPATCHED, _COMBINED = 1.0, 2.0
"""Bytes per number on the way to an expert (DeepEP quantizes to fp8) and back (bf16)."""


class Box(NamedTuple):
    """GPUs connected by NVLink or PCIe, and the network between boxes."""

    gpus: int
    nic_bandwidth: float
    """Bytes per second of the network card of each GPU, one direction."""


_BOXES = {
    "gb200": Box(72, 50e9),
    "b300": Box(8, 100e9),
    "gb300": Box(72, 100e9),
}
_USUAL = Box(8, 50e9)
"""Default box: HGX boxes of 8 with a 400 Gbit/s card for each GPU; 800 Gbit/s on B300 and GB300 (data sheets,
2026-11)."""


def box_of(gpu: Gpu) -> Box:
    """Return the box that a GPU is sold in."""
    return _BOXES.get(gpu.name, _USUAL)


def check_ranks(model: ModelSpec, tp: int, dp: int, ep: int) -> None:
    """Raise UserError if ranks and experts do not fit together."""
    if dp == ep == 1:
        return
    gpus = tp * dp
    if model.experts is None:
        raise UserError(
            f"{model.name} has no experts to distribute. Without experts, use replicas instead of dp and ep."
        )
    if gpus % ep:
        raise UserError(f"ep = {ep} must divide the {gpus} GPUs of tp {tp} x dp {dp}")
    if model.experts.size % (gpus // ep):
        raise UserError(f"experts of width {model.experts.size} cannot be split over {gpus // ep} GPUs (increase ep)")


class Mixture(NamedTuple):
    """Joint work of the ranks on one pipeline stage, as a function of the tokens of all ranks."""

    decoding: Stage
    """Work if all ranks decode."""
    prompts: Stage
    """Work if any rank has part of a prompt."""


def mixture(graph: LayerGraph, all2all: str, stage: range) -> Mixture:
    """Return the work that ranks compute together in the layers of `stage`."""
    if all2all != "deepep_auto":
        alike = _mixture(graph, "allgather_reducescatter" if all2all == "auto" else all2all, stage)
        return Mixture(alike, alike)
    return Mixture(_mixture(graph, "deepep_low_latency", stage), _mixture(graph, "deepep_high_throughput", stage))


def _mixture(graph: LayerGraph, all2all: str, stage: range) -> Stage:
    moe = graph.model.experts
    assert moe is not None
    count = sum(graph.model.layers[i].experts for i in stage)
    there_and_back = _ways(graph, all2all)
    operators = [
        Operator("experts", graph.routed(moe).scaled(float(count)), None, count),
        Operator("all_to_all", there_and_back.scaled(float(count)), None, 2 * count),
    ]
    return Stage(operators, [], [], graph.roofline)


def _ways(graph: LayerGraph, backend: str) -> Curve:
    """Return the time to send the tokens of one layer to the experts and back, as a function of the tokens of all
    ranks."""
    gpus, hidden = graph.tp * graph.dp, graph.model.hidden_size
    box = box_of(graph.gpu)
    if backend == "allgather_reducescatter":
        within = collective_curve(graph.gemms.tables, graph.roofline, "all_gather", min(gpus, box.gpus), 2 * hidden)
        if gpus > box.gpus:
            boxes = gpus / box.gpus
            between = 2.0 * hidden * (1 - 1 / boxes) / (box.gpus * box.nic_bandwidth * graph.roofline.bandwidth_share)
            within = total([within, line(graph.roofline.link_latency_ns, between * 1e9)])
        return within.scaled(2.0)
    moe = graph.model.experts
    assert moe is not None
    return deepep_curve(graph.gemms, hidden, moe, _OPS[backend], gpus, box)


def deepep_curve(gemms: GemmTables, hidden: int, moe: Experts, op: str, gpus: int, box: Box) -> Curve:
    """Return the time of dispatch and combine through DeepEP (`op`: all_to_all_ll or all_to_all_ht) as a function of
    the tokens of all GPUs.

    It uses the largest measured number of GPUs that is not larger than the actual one, and the measured shape with the
    nearest bytes per token. Boxes beyond those measured add the time of the additional bytes that cross the network.
    """
    tables, per_token = gemms.tables, moe.per_token
    rows = tables.rows(op, "bf16") if tables is not None else {}
    if tables is not None and not rows and (own := gemms.measured_on.gpu.tables) is not None:
        rows = KernelTables.load(own).rows(op, "bf16")  # the library's rows do not depend on the engine
    a_token = hidden * per_token * (_DISPATCHED + _COMBINED)
    if not rows:
        each = a_token * (gpus - 1) / gpus / gemms.roofline.link_rate
        curve, most = line(2 * gemms.roofline.link_latency_ns, each / gpus), 1
        return _between(curve, gemms, hidden, moe, op, most, gpus, box)
    most = max(g for g in set(rows["gpus"].tolist()) if g <= gpus) if gpus >= min(rows["gpus"]) else min(rows["gpus"])
    mine = {name: column[rows["gpus"] == most] for name, column in rows.items()}
    shapes = sorted(set(zip(mine["k"].tolist(), mine["topk"].tolist(), mine["experts"].tolist(), strict=True)))
    own_shape = (hidden, per_token, moe.count)
    near = min(
        shapes,
        key=lambda s: (abs(log(s[0] * s[1] / (hidden * per_token))), abs(log(s[2] / moe.count)), s != own_shape, s),
    )
    chosen = (mine["k"] == near[0]) & (mine["topk"] == near[1]) & (mine["experts"] == near[2])
    points = sorted(zip(mine["m"][chosen].tolist(), mine["time_us"][chosen].tolist(), strict=True))
    exact = near[:2] == (hidden, per_token) and most == gpus
    scale = near[0] * near[1] / (hidden * per_token) * gpus  # converts to tokens of all ranks with equal bytes
    source = MEASURED if exact else EXTRAPOLATED
    times = _rising([us * 1e3 for _, us in points])
    curve = Curve([m * scale for m, _ in points], times, source)
    return _between(curve, gemms, hidden, moe, op, most, gpus, box)


def _rising(times: list[float]) -> list[float]:
    """Return times that never decrease as the number of tokens grows."""
    for i in range(1, len(times)):
        times[i] = max(times[i], times[i - 1])
    return times


def _between(
    curve: Curve, gemms: GemmTables, hidden: int, moe: Experts, op: str, measured: int, gpus: int, box: Box
) -> Curve:
    """Return the curve plus the time of network transfers that the `measured` GPUs did not make."""
    if gpus <= max(measured, box.gpus):
        return curve
    copies = _crossing(op, moe, gpus / box.gpus) - _crossing(op, moe, measured / box.gpus)
    a_token = hidden * copies * (_DISPATCHED + _COMBINED) / gpus
    rate = box.nic_bandwidth * gemms.roofline.bandwidth_share / 1e9
    latency = 2 * gemms.roofline.link_latency_ns if measured <= box.gpus else 0.0
    return total([curve, line(latency, a_token / rate)])


def _crossing(op: str, moe: Experts, boxes: float) -> float:
    """Return how many copies of a token leave its box: with low latency, one for each of its experts in another box;
    with high throughput, one for each other box."""
    if boxes <= 1:
        return 0.0
    return (moe.per_token if op == "all_to_all_ll" else min(moe.per_token, boxes)) * (1 - 1 / boxes)
