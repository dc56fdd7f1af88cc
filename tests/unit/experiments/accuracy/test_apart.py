"""Cells whose prefill and decode are apart become pools of both sides."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servesim.errors import UserError
from servesim.experiments.accuracy.answers import answer
from servesim.experiments.accuracy.apart import WAVES, mean_of_turns
from servesim.experiments.accuracy.cells import Cell, Side
from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.accuracy.screen import screen
from servesim.run.scenario import Scenario
from tests.support.cells import cell

LINE = {
    "id": "x", "backend": "sglang", "backend_version": "0.5.8", "model_path": "deepseek-ai/DeepSeek-V3",
    "system": "gb200", "precision": "fp4", "isl": 1024, "osl": 1024, "conc": 32.0,
    "prefill_num_workers": 2, "prefill_tp_size": 1, "prefill_attention_dp_size": 4, "prefill_moe_tp_size": 1,
    "prefill_moe_ep_size": 4, "decode_num_workers": 1, "decode_tp_size": 4, "decode_attention_dp_size": 1,
    "decode_moe_tp_size": 4, "decode_moe_ep_size": 1, "silicon_ttft_ms": 496.0, "silicon_tpot_ms": 11.2,
}  # fmt: skip
SIDES = (Side(2, 1, 4, 1, 4), Side(1, 4, 1, 4, 1))


def table(path: Path, **other: Any) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, list(LINE))
        rows.writeheader()
        rows.writerow(LINE | other)
    return path


def apart(**other: Any) -> Cell:
    plain = {"mode": "disagg", "tp": 0, "dp": 0, "engine": "vllm", "sides": (Side(1, 1, 1, 1, 1), Side(2, 1, 1, 1, 1))}
    return cell(**(plain | other))


def test_a_table_of_both_sides_is_read_by_its_own_columns(tmp_path: Path) -> None:
    (found,) = read([table(tmp_path / "pd.csv")])
    assert (found.mode, found.sides, found.concurrency, found.gpus) == ("disagg", SIDES, 32, 12)
    assert screen([found]) == [""], "limits of one server say nothing of several"


def decode_engine(tmp_path: Path, gpus: int, label: int, engine: str = "sglang") -> dict[str, Any]:
    """The engine settings of a decode side of `gpus` ranks whose label says EP `label`."""
    labels = {"decode_tp_size": 1, "decode_attention_dp_size": gpus, "decode_moe_tp_size": 1}
    path = table(tmp_path / "pd.csv", backend=engine, decode_moe_ep_size=label, **labels)
    found: dict[str, Any] = recipe(read([path])[0]).settings["pools"][1].get("engine", {})
    return found


@pytest.mark.feature("data_parallel", "handoff", "view_lag")
def test_sglangs_ranks_share_the_experts_whatever_the_label_says(tmp_path: Path) -> None:
    assert decode_engine(tmp_path, 4, 1) == {"enable_expert_parallel": True}
    assert decode_engine(tmp_path, 4, 1, "trtllm") == {}


@pytest.mark.feature("data_parallel", "handoff", "view_lag")
def test_experts_over_sixteen_gpus_are_balanced(tmp_path: Path) -> None:
    balanced = {"enable_expert_parallel": True, "enable_eplb": True, "num_redundant_experts": 32}
    assert decode_engine(tmp_path, 32, 32) == balanced
    assert decode_engine(tmp_path, 16, 16, "trtllm") == balanced
    assert decode_engine(tmp_path, 8, 8) == {"enable_expert_parallel": True}


@pytest.mark.feature("data_parallel", "handoff", "view_lag")
def test_both_sides_are_pools_with_ranks_and_experts_as_labelled(tmp_path: Path) -> None:
    settings = recipe(read([table(tmp_path / "pd.csv")])[0]).settings
    assert settings["pools"] == [
        {"name": "prefill", "role": "prefill", "replicas": 2, "tp": 1, "dp": 4,
         "engine": {"enable_expert_parallel": True}},
        {"name": "decode", "role": "decode", "replicas": 1, "tp": 4},
    ]  # fmt: skip
    assert (settings["model"], settings["dtype"]) == ("deepseek-v3-nvfp4", "bf16"), "by the precision: no other label"
    assert settings["handoff"] == {"name": "sglang", "link": "rdma-400"}
    assert settings["requests"] == 320
    Scenario.of(settings)
    assert recipe(apart(sides=(Side(1, 1, 8, 2, 4), SIDES[1]))).settings["pools"][0]["ep"] == 4


@pytest.mark.feature("handoff")
def test_changes_stand_above_the_recipe() -> None:
    found = recipe(apart(), {"handoff.gb_s": "17.4"}).settings["handoff"]
    assert found == {"name": "vllm-nixl", "link": "rdma-400", "gb_s": "17.4"}
    assert answer(apart(), {"handoff.gb_s": "0"}).reason.startswith("handoff: ")


@pytest.mark.feature("handoff")
def test_a_slower_link_is_a_later_first_token() -> None:
    fast, slow = (answer(apart(isl=8192, osl=8), {"handoff.gb_s": rate}) for rate in ("34.8", "3.48"))
    assert fast.ttft_ms is not None
    assert slow.ttft_ms is not None, slow.reason
    sent_ms = 8192 * 0.9 * 131_072 / 3.48e9 * 1e3  # at the mean length, alone on the wire
    assert 0.5 * sent_ms < slow.ttft_ms - fast.ttft_ms < 4 * sent_ms, "four clients, one source"


def test_without_the_numbers_of_workers_there_is_no_answer() -> None:
    with pytest.raises(UserError, match="whose numbers are unknown"):
        recipe(cell(mode="disagg"))


def test_many_clients_are_simulated_in_three_turns_of_the_ten_that_were_measured() -> None:
    found = recipe(apart(concurrency=512))
    assert (found.settings["requests"], found.waves) == (3 * 512, 10)
    assert recipe(apart(concurrency=255)).waves == 0
    turns = np.repeat([10, 2, 5], 4)
    assert len(turns) == WAVES * 4
    assert mean_of_turns(turns, 10, 4) == pytest.approx((10 + 8 * 2 + 5) / 10)
