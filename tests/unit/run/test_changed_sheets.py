"""Parts of a GPU's data sheet and of a model's config, changed by name: each has its effect, is named, or is
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim.cli.run import settings_over
from servesim.errors import UserError
from servesim.experiments.axes import product
from servesim.experiments.input_files import input_digests
from servesim.hardware import Gpu, ModelSpec
from servesim.parsing import split_changes, with_changes
from servesim.run.scenario import Scenario
from servesim.run.setting_names import override

RUN: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=300,output=20",
    "requests": 30,
    "model": "llama-3.1-8b",
    "gpu": "h100",
}


def said(result: servesim.Result, key: str) -> list[str]:
    return [note for note in (*result.summary["warnings"], *result.summary["notes"]) if note.startswith(key)]


@pytest.fixture(scope="module")
def plain() -> servesim.Result:
    return servesim.simulate(RUN)


def test_a_price_set_for_a_gpu_is_the_price_and_moves_nothing_else(plain: servesim.Result) -> None:
    result = servesim.simulate(override(RUN, ["gpu.usd_per_hour=1.5"]))
    assert result.summary["price"]["usd_per_gpu_hour"] == 1.5
    assert result.summary["latency_ms"] == plain.summary["latency_ms"]
    ratio = result.summary["price"]["usd_per_million_tokens"] / plain.summary["price"]["usd_per_million_tokens"]
    assert ratio == pytest.approx(0.5)  # the sheet says 3.00
    assert said(result, "gpu.") == ["gpu.usd_per_hour=1.5 instead of the data sheet's 3"]
    again = servesim.simulate(result.scenario)
    assert again.summary == result.summary


def test_memory_of_a_gpu_changes_its_blocks_alone(plain: servesim.Result) -> None:
    result = servesim.simulate(override(RUN, ["gpu.memory_bytes=80e9"]))
    lost = plain.scenario.engine.num_gpu_blocks - result.scenario.engine.num_gpu_blocks  # type: ignore[operator]
    # 0.92 of the bytes taken away, at 131,072 bytes a token and 16 tokens a block; from 70 GiB on defaults are the same
    assert lost == pytest.approx(0.92 * (84943970304 - 80e9) / (131072 * 16), abs=1)
    assert result.summary["latency_ms"] == plain.summary["latency_ms"]


def test_a_slower_memory_makes_tokens_slower(plain: servesim.Result) -> None:
    result = servesim.simulate({**RUN, "gpu": {"name": "h100", "bandwidth": 1.675e12}})
    tpot = [r.summary["latency_ms"]["tpot"]["mean"] for r in (plain, result)]
    assert 1.5 < tpot[1] / tpot[0] < 2.1  # decodes of a small batch read the weights: half the rate, twice the time


def test_fewer_layers_take_less_time(plain: servesim.Result) -> None:
    result = servesim.simulate(override(RUN, ["model.num_hidden_layers=4"]))
    assert result.summary["latency_ms"]["tpot"]["mean"] < plain.summary["latency_ms"]["tpot"]["mean"] / 2
    assert said(result, "model.") == ["model.num_hidden_layers=4 instead of 32 in the config"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("gpu.usd_per_hour=3", "the data sheet has the same value"),
        ("gpu.nvlink_bandwidth=3e9", "each replica has one GPU, so nothing is communicated"),
        ("gpu.pcie_bandwidth=3e9", "this run transfers nothing over PCIe"),
        ("gpu.flops.fp8=3e12", "no operation runs in fp8"),
        ("model.num_hidden_layers=32", "the config has the same value"),
        ("model.num_experts=0", "no shape depends on it"),
    ],
)
def test_a_change_without_effect_says_so_and_has_none(plain: servesim.Result, change: str, why: str) -> None:
    result = servesim.simulate(override(RUN, [change]))
    key = change.partition("=")[0]
    assert [note.partition(" has no effect: ")[2] for note in said(result, key)] == [f"{why}. Remove this setting."]
    assert result.summary["latency_ms"] == plain.summary["latency_ms"]


def test_a_price_that_another_one_overrules_is_named() -> None:
    result = servesim.simulate(override({**RUN, "usd_per_gpu_hour": 4}, ["gpu.usd_per_hour=2.2"]))
    assert result.summary["price"]["usd_per_gpu_hour"] == 4
    assert said(result, "gpu.") == [
        "gpu.usd_per_hour=2.2 has no effect: usd_per_gpu_hour=4 is specified. Remove this setting."
    ]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("gpu.foo=1", "gpu.foo: not a field of the data sheet of h100"),
        ("gpu.usd_per_our=1", 'did you mean "usd_per_hour"'),
        ("gpu.description=x", "gpu.description: not a field"),
        ("gpu.bandwidth=0", "gpu.bandwidth is '0' but must be a finite number above 0"),
        ("gpu.bandwidth=fast", "gpu.bandwidth is 'fast'"),
        ("gpu.memory_bytes=nan", "gpu.memory_bytes is 'nan'"),
        ("model.num_layers=4", 'did you mean "num_hidden_layers"'),
        ("model.rope_theta=1e6", "model.rope_theta: not used by llama-3.1-8b"),
        ("model.num_hidden_layers=0", "num_hidden_layers must be a positive integer"),
        ("model.num_key_value_heads=5", "not a multiple of 5 KV heads"),
    ],
)
def test_what_is_no_part_of_a_sheet_or_config_is_refused(change: str, error: str) -> None:
    with pytest.raises(UserError, match=error):
        servesim.simulate(override(RUN, [change]))


def test_parts_set_hold_over_wholes_on_the_command_line() -> None:
    given = {"gpu": "h100", "set": ["gpu.usd_per_hour=2.2", "scheduler.max_num_seqs=7"], "scheduler": "sarathi"}
    settings = settings_over({}, given)
    assert settings["gpu"] == "h100:usd_per_hour=2.2"
    assert settings["scheduler"] == {"name": "sarathi", "max_num_seqs": 7}


def test_an_axis_may_be_a_part_of_a_sheet() -> None:
    variants = product(RUN, {"gpu": "h100,h200", "gpu.usd_per_hour": "2,3"})
    assert [Scenario.of(v.settings).gpu for v in variants] == [
        *("h100:usd_per_hour=2", "h100:usd_per_hour=3", "h200:usd_per_hour=2", "h200:usd_per_hour=3"),
    ]


def test_the_sheet_of_a_changed_gpu_is_an_input(tmp_path: Path) -> None:
    sheet = tmp_path / "mine.yaml"
    sheet.write_text("name: x")
    found = input_digests(Scenario.of({**RUN, "gpu": f"{sheet}:usd_per_hour=1"}))
    assert list(found) == [str(sheet)]


def test_names_with_changes_keep_their_names() -> None:
    assert Gpu.load("H100:usd_per_hour=1").name == "h100"
    assert ModelSpec.load("llama-3.1-8b:num_hidden_layers=4").name == "llama-3.1-8b"
    assert split_changes(r"C:\sheets\mine.yaml:bandwidth=1e12") == (r"C:\sheets\mine.yaml", {"bandwidth": "1e12"})


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z_0-9]{0,6}", fullmatch=True), st.integers()))
def test_changes_come_back_as_they_were_written(changes: dict[str, int]) -> None:
    name, found = split_changes(with_changes("h100", changes))
    assert (name, found) == ("h100", {key: str(value) for key, value in changes.items()})
