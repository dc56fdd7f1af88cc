"""Comma lists, grids and the variants they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.cli.experiments import kept
from servesim.errors import Interrupted, UserError
from servesim.experiments.axes import product, split_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("static,selective,vllm", ["static", "selective", "vllm"]),
        ("1,2,4", ["1", "2", "4"]),
        ("contiguous:max,paged,prefix-hash", ["contiguous:max", "paged", "prefix-hash"]),
        ("vllm:max_num_seqs=8,policy=priority,static", ["vllm:max_num_seqs=8,policy=priority", "static"]),
        ("static,vllm:a=1,sarathi:b=2,c=3", ["static", "vllm:a=1", "sarathi:b=2,c=3"]),
        ("my.py:Mine:a=1,b=2,vllm", ["my.py:Mine:a=1,b=2", "vllm"]),
        (
            "synth:rate=2,prompt=lognormal(512,2048),synth:rate=4",
            ["synth:rate=2,prompt=lognormal(512,2048)", "synth:rate=4"],
        ),
    ],
)
def test_comma_lists_know_where_a_value_ends(text: str, values: list[str]) -> None:
    assert split_values("rate", text) == values


def test_variants_are_every_combination_named_by_what_varies() -> None:
    found = product({"model": "m"}, {"scheduler": "static,vllm", "kv": "paged", "rate": "1,2"})
    assert [v.label for v in found] == ["static / rate=1", "static / rate=2", "vllm / rate=1", "vllm / rate=2"]
    assert found[1].settings == {"model": "m", "scheduler": "static", "kv": "paged", "rate": 2}
    assert found[1].axes == {"scheduler": "static", "rate": "2"}


def test_lists_of_python_and_yaml_are_axes_too() -> None:
    axes = {"kv": [{"name": "paged"}, "prefix-hash"], "engine.block_size": [8, 32]}
    found = product({"engine": {"block_size": 16}}, axes)
    assert [v.label for v in found][:2] == ["paged / engine.block_size=8", "paged / engine.block_size=32"]
    assert found[1].settings == {"engine": {"block_size": 32}, "kv": {"name": "paged"}}


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"schedular": "a,b"}, 'did you mean "scheduler"'),
        ({"engine.blocksize": "1,2"}, 'did you mean "block_size"'),
        ({"kv": "paged,paged"}, "kv: paged is specified twice"),
        ({"kv": []}, "no value"),
    ],
)
def test_axes_that_mean_nothing_are_refused(axes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        product({}, axes)


def test_an_interrupt_says_what_is_kept(tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    grid.mkdir()
    with (
        pytest.raises(Interrupted, match="grid keeps the finished runs; run the same command again to continue"),
        kept(grid),
    ):
        raise KeyboardInterrupt
    for nothing in (None, tmp_path / "not made yet"):
        with pytest.raises(KeyboardInterrupt), kept(nothing):
            raise KeyboardInterrupt
