"""Measurements that are valid numbers but cannot come from a healthy server, and missing measurements."""

from __future__ import annotations

import numpy as np

from servesim.contracts.warn import Warn
from servesim.cost.tables import KernelTables
from servesim.hardware.gpu import Gpu

ROUNDS = {"all_reduce": 2.0, "all_reduce_fused": 2.0, "all_reduce_nccl": 2.0, "all_gather": 1.0}
"""Number of times that a ring collective sends (n - 1) / n of the message from each GPU."""
_LEAST = 0.25
"""Minimum fraction of the data sheet's link rate that collectives of large messages reach. Good tables have 36 % (eight
GPUs over PCIe) to 104 % (NVLink, whose switches do the sums); the one faulty server has 6 to 18 %."""


def slow_collectives(tables: KernelTables, gpu: Gpu, gpus: int | None = None) -> list[str]:
    """Return the collectives (of `gpus` GPUs, or of any number) that do not come near the link rate at any size, one
    line each."""
    found: list[str] = []
    for op, rounds in ROUNDS.items():
        rows = tables.rows(op, "bf16")
        for n in np.unique(rows["gpus"]).tolist() if rows else []:
            mine = rows["gpus"] == n
            rate = rows["bytes"][mine] / (rows["time_us"][mine] * 1e-6)
            best = float(rate.max())
            share = rounds * (n - 1) / n * best / gpu.link_bandwidth
            if share < _LEAST and gpus in (None, n):
                found.append(
                    Warn(
                        f"{op} over {n} GPUs reaches at most {best / 1e9:.2g} GB/s, {share:.0%} of the link "
                        f"bandwidth of {gpu.name}. The measured server was probably faulty, so measure your own."
                    )
                )
    return found


def missing_collectives(tables: KernelTables, gpus: int) -> list[str]:
    """Return a line if the tables have no all-reduce over `gpus` GPUs by any kernel, else an empty list."""
    for op in ("all_reduce", "all_reduce_nccl"):
        rows = tables.rows(op, "bf16")
        if rows and (rows["gpus"] == gpus).any():
            return []
    return [f"all_reduce over {gpus} GPUs was not measured, so it is priced by formula from the data sheet's link rate"]
