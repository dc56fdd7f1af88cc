"""Scenarios for measured cells with disaggregated prefill and decode: the pools of both sides, and the transfer between
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.accuracy.cells import Cell, Side

WAVES = 3
"""Number of client turns simulated for a cell with many clients: the first, a middle one and the last."""


def settings_apart(cell: Cell, sides: tuple[Side, Side], table: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the scenario settings that both sides imply, and the number of client turns that were measured if only
    WAVES of them are simulated, else 0. `table` is the recipes' entry `apart`."""
    prefill, decode = (
        {"name": role, "role": role, **_pool(side, cell.engine in table["dealt_by_default"], table)}
        for role, side in zip(("prefill", "decode"), sides, strict=True)
    )
    handoff = {"name": table["protocols"][cell.engine], **table["handoff"]}
    found = {"pools": [prefill, decode], "router": dict(table["router"]), "handoff": handoff}
    measured = table["per_client"] if cell.concurrency >= table["waves_from"] and not cell.requests else 0
    return found | ({"requests": WAVES * cell.concurrency} if measured else {}), measured


def _pool(side: Side, dealt: bool, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one side. `dealt`: with attention in ranks all GPUs share the experts, whatever the label
    says."""
    gpus = side.tp * side.dp
    ep = gpus if dealt and side.dp > 1 else side.ep
    found: dict[str, Any] = {"replicas": side.workers, "tp": side.tp}
    if side.dp > 1:
        found["dp"] = side.dp
    if ep == gpus > 1:
        found["engine"] = {"enable_expert_parallel": True}
    elif ep > 1:
        found["ep"] = ep
    if ep >= table["balanced_from"]:
        balanced = {"enable_eplb": True, "num_redundant_experts": table["redundant_experts"]}
        found["engine"] = found.get("engine", {}) | balanced
    return found


def mean_of_turns(values: NDArray[np.int64], waves: int, clients: int) -> float:
    """Return the mean over `waves` turns of all clients, estimated from WAVES simulated turns. Values are in the order
    in which requests were sent. The first and the last turn count once; the middle one stands for all others."""
    turns = values[: WAVES * clients].reshape(WAVES, clients).mean(axis=1)
    return float((turns[0] + (waves - 2) * turns[1] + turns[2]) / waves)
