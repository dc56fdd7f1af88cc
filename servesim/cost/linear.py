"""Times of linear layers and collectives as functions of the tokens in a step, from measured points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve
from servesim.cost.curves import rise, upper, without_spikes
from servesim.cost.formula import Roofline, line
from servesim.cost.suspect import ROUNDS
from servesim.cost.tables import KernelTables

NORM_WITHIN_US = 2.5
"""Microseconds that the residual and norm add to TensorRT-LLM's all-reduce in one kernel, whose rows are of the
reduction alone. Fitted to steps of 4 sequences of MiniMax-M2.5 in NVFP4 on B300 under vLLM 0.19 (InferenceX): on one
GPU they take .40 ms more than priced, on four GPUs, with 124 reductions, .71 ms."""
_NORM_BYTES = 3.0
"""Bytes that the residual and norm move per byte of the message: the residual in and out, and the normed output."""
WEIGHT_ONLY = ("int8_wo", "int4", "mxfp4")
"""Formats of weights that vLLM and SGLang unpack in Marlin's kernel, which computes in bf16."""


@dataclass(frozen=True)
class GemmTables:
    """GEMM times of one GPU in one dtype.

    Times are interpolated linearly between token counts, since tile quantization causes steps that a logarithmic scale
    would smear. At every measured token count, widths that were not measured reach the mean share of the roofline of
    the four nearest measured ones: nearest in (log n, log k), weighted by the inverse square of the distance, as in the
    package that most tables come from. (With all curves of one width held out at a time, on H100: 6.2 % mean error,
    versus 5.8 % for interpolation bilinear in log n and log k; across gaps of a factor of three, 10.4 % versus 6.8 %.
    On the steps of a recorded H100 server of Qwen3-14B, two of whose projections are in such a gap: 2.4 %, versus 3.5 %
    for bilinear.)
    """

    tables: KernelTables | None
    roofline: Roofline
    measured_on: Roofline
    """GPU on which the table was measured. On a different GPU, the measured shares of the roofline are kept."""
    monotone: bool = False
    """Whether an interpolated GEMM over m tokens takes at most the time of one over more tokens, since a library's bad
    kernel choices are specific to the shapes they were measured on. (With whole curves held out of the H100 table, the
    mean error is 4.7 % without this and 4.3 % with it up to 16 tokens, 6.2 % and 6.0 % from 65 to 256 tokens, but times
    are 3 % too short.)"""
    quantizing_us: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Time, by format, that each row of the table spends on quantizing activations, if the engine does that elsewhere:
    microseconds, and microseconds per 1,000 inputs."""
    weight_only_flops: float = inf
    """Highest rate in FLOP/s of the engine's kernel for `WEIGHT_ONLY` formats, or infinity if only rows limit it."""

    def curve(self, n: int, k: int, dtype: str) -> Curve:
        """Return the time of [m, k] x [k, n] as a function of m."""
        return self.limited(self._curve(n, k, dtype), 2.0 * n * k, dtype)

    def limited(self, curve: Curve, flops_per_token: float, dtype: str) -> Curve:
        """Return a curve limited by the rate of the engine's kernel for weights in `dtype`."""
        if dtype not in WEIGHT_ONLY or self.weight_only_flops == inf:
            return curve
        return upper(curve, line(0.0, flops_per_token / self.weight_only_flops * 1e9))

    def _curve(self, n: int, k: int, dtype: str) -> Curve:
        table = "bf16" if dtype == "fp16" else dtype
        rows = self.tables.rows("gemm", table) if self.tables else {}
        if not rows or self.tables is None:
            return self.roofline.gemm_curve(n, k, dtype)
        if self.roofline == self.measured_on and (measured := self._alone(_points(rows, n, k), n, k, dtype)):
            tokens = sorted(measured)
            return self._extended(tokens, [measured[m] for m in tokens], MEASURED, n, k, dtype)
        source = EXTRAPOLATED if self.roofline != self.measured_on else _source(rows, n, k)
        widths = self.tables.widths("gemm", table)
        nearest = [(weight, cn, ck, _points(rows, cn, ck)) for weight, cn, ck in _nearest(widths, n, k)]
        sites = [(weight, cn, ck, self._alone(at, cn, ck, dtype)) for weight, cn, ck, at in nearest]
        tokens = sorted({m for site in sites for m in site[3]})
        times = []
        for m in tokens:
            known = [(w, self.measured_on.gemm(m, cn, ck, dtype) / at[m]) for w, cn, ck, at in sites if m in at]
            share = sum(w * reached for w, reached in known) / sum(w for w, _ in known)
            times.append(self.roofline.gemm(m, n, k, dtype) / share)
        if self.monotone:
            for i in range(len(times) - 2, -1, -1):
                times[i] = min(times[i], times[i + 1])
        return self._extended(tokens, times, source, n, k, dtype)

    def _alone(self, points: dict[int, float], n: int, k: int, dtype: str) -> dict[int, float]:
        """Return measured nanoseconds by number of tokens, without the time to quantize, but no less than the data
        sheet's rates allow."""
        if dtype not in self.quantizing_us:
            return points
        once, wide = self.quantizing_us[dtype]
        beside = 1e3 * once + wide * k
        least = {m: self.measured_on.gemm(m, n, k, dtype) for m in points}
        return {m: min(ns, max(ns - beside, least[m])) for m, ns in points.items()}

    def _extended(self, tokens: list[int], times: list[float], source: int, n: int, k: int, dtype: str) -> Curve:
        """Return the curve, with a knot at twice its last token count. Past it the curve holds the median share of the
        roofline that the last three points reach, since any one of them may be a bad kernel choice of the library.
        (This is the method of the package that most tables come from. With the largest points held out of the H100
        table, the mean error is 13 %, against 7 % for continuing at the median of the last slopes, which leaves its
        steps of 65,536 tokens and more by up to 8 %.)"""
        shares = sorted(self.roofline.gemm(m, n, k, dtype) / t for m, t in zip(tokens[-3:], times[-3:], strict=True))
        far = 2 * tokens[-1]
        beyond = max(times[-1], self.roofline.gemm(far, n, k, dtype) / shares[len(shares) // 2])
        return Curve([*tokens, far], [*times, beyond], [source] * len(tokens) + [EXTRAPOLATED])


def collective_curve(
    tables: KernelTables | None,
    roofline: Roofline,
    op: str,
    gpus: int,
    bytes_per_token: int,
    own_below: float = inf,
    fused_below: float = 0.0,
) -> Curve:
    """Return the time of an `all_reduce` or `all_gather` as a function of the number of tokens, each `bytes_per_token`
    bytes. `own_below` is the size in bytes from which the engine leaves all-reduce to NCCL, used if the table has
    separate times for NCCL; in other tables, the rows reflect the choice of the measured engine. Up to `fused_below`
    bytes, all-reduce takes the time of the kernel that also normalizes, if the table has it (otherwise the norm is
    free)."""
    size, time = _messages(tables, op, gpus)
    if op == "all_reduce":
        nccl, its_time = _messages(tables, "all_reduce_nccl", gpus)
        own = size < own_below
        rest = nccl >= (own_below if own.any() else 0)
        size, time = np.concatenate((size[own], nccl[rest])), np.concatenate((time[own], its_time[rest]))
        fused, fused_time = _messages(tables, "all_reduce_fused", gpus)
        fused_time = fused_time + NORM_WITHIN_US + _NORM_BYTES * fused / roofline.rate / 1e3
        if (with_norm := fused <= fused_below).any():
            beyond = (fused_below // bytes_per_token + 1) * bytes_per_token
            size, time = np.append(size, beyond), np.append(time, np.interp(beyond, size, time))
            order = np.argsort(size, kind="stable")
            size, time = size[order], time[order]
            apart = size > fused_below
            size, time = (
                np.concatenate(both) for both in ((fused[with_norm], size[apart]), (fused_time[with_norm], time[apart]))
            )
    if not size.size:
        return roofline.collective(ROUNDS[op] * (gpus - 1) / gpus * bytes_per_token)
    return _by_size(size / bytes_per_token, time)


def _messages(tables: KernelTables | None, op: str, gpus: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return bytes and microseconds of a collective of `gpus` GPUs, or empty arrays if it was not measured."""
    rows = tables.rows(op, "bf16") if tables else {}
    if not rows:
        return np.zeros(0), np.zeros(0)
    mine = rows["gpus"] == gpus
    return rows["bytes"][mine], rows["time_us"][mine]


def row_curve(gemms: GemmTables, op: str, width: int, bytes_per_row: float, dtype: str = "bf16") -> Curve:
    """Return the time of a small operator (`norm`, `activation`, `rotary`, `kv_write`, `embedding`, `sampler`) as a
    function of the number of rows with `width` outputs: as measured at that width on this GPU, otherwise by formula
    from the bytes that a row moves."""
    rows = gemms.tables.rows(op, dtype) if gemms.tables and gemms.roofline == gemms.measured_on else {}
    mask = rows["n"] == width if rows else np.zeros(0, bool)
    if not mask.any():
        return gemms.roofline.memory_op(bytes_per_row)
    return _by_size(rows["m"][mask], rows["time_us"][mask])


def _by_size(sizes: NDArray[Any], us: NDArray[np.float64]) -> Curve:
    """Return the curve of an operator whose time is a constant plus a part proportional to its size, at least for the
    largest sizes."""
    points = without_spikes(dict(zip(sizes.tolist(), (us * 1e3).tolist(), strict=True)))
    xs = sorted(points)
    times = [points[x] for x in xs]
    return Curve(xs, times, last_slope=rise(xs, times))


_SITES = 4


def _nearest(sites: Sequence[tuple[int, int]], n: int, k: int) -> list[tuple[float, int, int]]:
    """Return the measured widths nearest to (n, k) as (weight, n, k); just one entry if (n, k) itself was measured."""
    if (n, k) in sites:
        return [(1.0, n, k)]
    nearest = sorted((log(n / cn) ** 2 + log(k / ck) ** 2, cn, ck) for cn, ck in sites)[:_SITES]
    return [(1.0 / squared, cn, ck) for squared, cn, ck in nearest]


def _points(rows: dict[str, NDArray[Any]], n: int, k: int) -> dict[int, float]:
    """Return nanoseconds by number of tokens at one measured pair of widths."""
    mask = (rows["n"] == n) & (rows["k"] == k)
    return dict(zip(rows["m"][mask].tolist(), (rows["time_us"][mask] * 1e3).tolist(), strict=True))


def _source(rows: dict[str, NDArray[Any]], n: int, k: int) -> int:
    inside = rows["n"].min() <= n <= rows["n"].max() and rows["k"].min() <= k <= rows["k"].max()
    return INTERPOLATED if inside else EXTRAPOLATED
