"""What the lessons of docs/tutorial.py say is what their tables show."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.support.documents import ROOT


@pytest.fixture(scope="module")
def tutorial() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorial", ROOT / "docs" / "tutorial.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(module.LESSONS) == 8
    return module


def test_tokens_of_a_batch_are_nearly_free_until_they_are_not(tutorial: ModuleType) -> None:
    step = {batch: ms for batch, ms, _ in tutorial.decoding_reads_the_weights()}
    assert 4.8 < step[1] < 7
    assert step[8] < 1.1 * step[1]
    assert step[256] > 1.5 * step[1]


def test_the_first_token_waits_for_the_prompt(tutorial: ModuleType) -> None:
    ttft = {prompt: ms for prompt, ms, _ in tutorial.prompts_are_arithmetic()}
    assert ttft[512] < 2 * ttft[128]
    assert 3.5 < ttft[2048] / ttft[512] < 4.1 < ttft[8192] / ttft[2048]


def test_continuous_batching_does_the_same_work_in_less_time(tutorial: ModuleType) -> None:
    (_, static, _), (_, continuous, _) = tutorial.batches_that_wait_and_batches_that_do_not()
    assert continuous < 0.7 * static


def test_latency_rises_slowly_then_not_slowly(tutorial: ModuleType) -> None:
    rows = tutorial.load_and_latency()
    tpot = [row[3] for row in rows]
    assert tpot[1] < 1.3 * tpot[0]
    assert tpot[3] > 3 * tpot[1]
    assert [row[4] for row in rows] == ["stable", "stable", "stable", "unstable"]


def test_blocks_hold_more_requests_than_reservations(tutorial: ModuleType) -> None:
    (_, longest, *_, slow), (_, oracle, *_), (_, paged, *_, quick) = tutorial.memory_is_the_number_of_places()
    assert longest == 4  # 20,000 tokens over 4,096 each
    assert longest < oracle < paged
    assert quick < slow / 4


def test_a_common_beginning_is_computed_once(tutorial: ModuleType) -> None:
    (_, nothing, without, _), (_, found, remembered, _) = tutorial.prompts_with_a_common_beginning()
    assert nothing == 0
    assert 70 < found < 75  # 1,500 of 2,000 tokens, but for the first request and partial blocks
    assert remembered < without / 4


def test_drafts_help_while_there_is_room(tutorial: ModuleType) -> None:
    faster = [row[3] for row in tutorial.drafts_help_while_there_is_room()]
    assert faster == sorted(faster, reverse=True)
    assert faster[0] > 1.7
    assert faster[-1] < 1


def test_six_draws_decide_one_difference_and_not_another(tutorial: ModuleType) -> None:
    verdicts = {row[1]: row[5] for row in tutorial.is_the_difference_real()}
    assert verdicts == {"ttft_p99": "undecided", "tpot_p99": "better"}
