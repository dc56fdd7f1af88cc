"""Transfers over links beside measured ones."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from servesim.contracts.request import Request
from servesim.engine.clock import Clock
from servesim.features.handoff.links import KINDS, Links

UNITS = {"MB": 10**6, "GB": 10**9}
WITHIN = 0.10


def test_mooncakes_transfers_take_as_long_as_measured_within_10_percent(shared_data: Callable[[str], Path]) -> None:
    """20 MB to 4.5 GB between two servers of 8 GPUs, on which the link was fitted (two numbers on six times)."""
    table = shared_data("groundtruth/cluster/mooncake_connector_h800_qwen3_8b_tp8.csv")
    kind, measured = KINDS["rdma-200"], []
    for row in csv.DictReader(table.read_text().splitlines()):
        if row["kv_bytes"]:
            size, unit = row["kv_bytes"].split()
            measured.append((round(float(size) * UNITS[unit]), float(row["transfer_ms"])))
    assert len(measured) == 6
    for size, ms in measured:
        clock, came = Clock(), []
        rate = [round(kind.gb_s * 1e9) * 8] * 2
        links = Links(rate, rate, round(kind.start_us * 1000))
        links.join(clock)
        links.send(0, 1, size, Request(0, "r", 1, 1, 0), lambda came=came, clock=clock: came.append(clock.ns))
        clock.run()
        assert came[0] / 1e6 == pytest.approx(ms, rel=WITHIN)
