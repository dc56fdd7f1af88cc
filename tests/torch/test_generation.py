"""A real model generates beside its prices: the steps of an answer, and the notebook that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra calibrate is not installed")

from servesim.calibrate.chain_report import repeated  # noqa: E402
from servesim.calibrate.generation import Bench, Turn, with_cache, with_drafts, without_cache  # noqa: E402
from servesim.calibrate.kernels import open_kernels  # noqa: E402
from servesim.calibrate.points import Shard  # noqa: E402
from servesim.calibrate.profile import Options, profile  # noqa: E402
from servesim.calibrate.timing import open_device  # noqa: E402
from servesim.hardware import ModelSpec  # noqa: E402
from tests.support.notebooks import MEASURING, executed  # noqa: E402


def test_a_cache_spares_all_but_the_newest_token() -> None:
    assert without_cache(10, 3) == [Turn(10, 0), Turn(11, 0), Turn(12, 0)]
    assert with_cache(10, 3) == [Turn(10, 0), Turn(1, 10), Turn(1, 11)]
    assert [t.pieces for t in with_cache(10, 2, 2)] == [[(10, 0), (10, 0)], [(1, 10), (1, 10)]]


def test_a_round_of_drafts_gives_those_accepted_and_one_more() -> None:
    target, draft = with_drafts(10, 6, 3, [2, 0, 3])
    # the prompt gives 1 token, the rounds 3, 1 and 4
    assert target == [Turn(10, 0), *(Turn(4, past, drafts=3) for past in (10, 13, 14))]
    assert [t.past for t in draft[1:]] == [10, 11, 12, 13, 14, 15, 14, 15, 16]
    with pytest.raises(ValueError, match="1 rounds give 2 of 6 tokens"):
        with_drafts(10, 6, 3, [0])


def test_a_step_is_priced_as_what_runs() -> None:
    prompt, decode, check = Turn(10, 0, 2).batch(), Turn(1, 10, 2).batch(), Turn(4, 10, drafts=3).batch()
    assert (prompt.linear_tokens, prompt.prefill, prompt.sampled) == (20, [(10, 0)] * 2, 2)
    assert (decode.linear_tokens, decode.decode_count, decode.decode_context_sum, decode.drafts) == (2, 2, 22, 0)
    assert (check.linear_tokens, check.decode_count, check.queries_per_sequence, check.drafts) == (4, 1, 4, 3)
    assert check.decode_context_sum == 14


@pytest.mark.slow
def test_more_work_is_measured_and_priced_as_more(tmp_path: Path) -> None:
    device = open_device("cpu")
    shard = Shard(ModelSpec.load("tiny-llama"), 1, "fp32")
    options = Options(tmp_path / "t", 90.0, 1000.0, 128, 256, 8)
    profile(device, open_kernels(device, None, "fp32", []), [shard], options)
    assert all(p.within for p in repeated(tmp_path / "t") if "mixed" not in p.operator)
    bench = Bench("tiny-llama", tmp_path / "t")
    long, short = without_cache(100, 20), with_cache(16, 4)
    assert bench.measured_s(long) > bench.measured_s(short) > 0
    assert bench.priced_s(long) > bench.priced_s(short) > 0
    checked, _ = with_drafts(16, 8, 3, [3, 3])
    assert bench.measured_s(checked) > 0
    assert bench.priced_s(checked) > bench.priced_s(checked[:1])


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_table() -> None:
    last = executed(MEASURING).cells[-1].outputs[0]["text"].splitlines()
    assert [line[:12].strip() for line in last[1:]] == ["no cache", "KV cache", "batch of 8", "drafts"]
