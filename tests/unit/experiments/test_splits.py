"""Splits of GPUs between prefill and decode in capacity questions, with all together as the row to beat."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.splits import ratios, split
from servesim.experiments.worth import worth

QUESTION: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=600,output=20",
    "requests": 30,
    "model": "llama-3.2-1b",
    "gpu": "h100",
    "slo": "ttft:100",
    "jobs": 1,
    "replicates": 2,
    "tolerance": 0.3,
    "intervals": False,
}


def test_all_ratios_and_sizes_of_four_gpus() -> None:
    assert ratios(4) == ["1x1:3x1", "2x1:2x1", "2x1:1x2", "1x2:2x1", "1x2:1x2", "3x1:1x1"]
    assert len(ratios(8)) == 21


def test_a_number_of_gpus_is_split_and_beside_it_stand_all_together() -> None:
    variants = split([Variant("gpu=h100, pd=2", {"gpu": "h100", "pd": "2"}, {"gpu": "h100", "pd": "2"})])
    assert [one.label for one in variants] == [
        "gpu=h100, pd=together 2x1",
        "gpu=h100, pd=together 1x2",
        "gpu=h100, pd=1x1:1x1",
    ]
    assert variants[1].settings == {"gpu": "h100", "pd": None, "handoff": None, "tp": 2, "replicas": 1}
    given = [Variant("a", {}, {"pd": "1x1:1x1"}), Variant("b", {}, {})]
    assert split(given) == given


@pytest.mark.parametrize("gpus", ["1", "65"])
def test_too_few_or_too_many_are_refused(gpus: str) -> None:
    with pytest.raises(UserError, match="must be 2 to 64 GPUs"):
        split([Variant("a", {}, {"pd": gpus})])


@pytest.mark.slow
def test_every_split_is_answered_at_the_same_price() -> None:
    rows = servesim.capacity(**QUESTION, pd=2).attrs["document"]["rows"]
    assert [row["axes"]["pd"] for row in rows] == ["together 2x1", "together 1x2", "1x1:1x1"]
    assert {row["usd_per_hour"] for row in rows} == {rows[0]["usd_per_hour"]}
    assert {row["verdict"] for row in rows} <= {"carries", "no limit"}, rows
    assert {row["gpus"] for row in rows} == {2}


@pytest.mark.slow
def test_disaggregation_is_worth_what_the_same_gpus_carry_apart() -> None:
    (found,) = worth(**QUESTION, of="disaggregation", pd="1x1:1x1").attrs["document"]["worth"]
    assert found["of"] == "disaggregation"
    assert found["usd_per_hour"][0] == found["usd_per_hour"][1]
