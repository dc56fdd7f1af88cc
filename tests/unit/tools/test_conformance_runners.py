"""Runners of recorded cases look at what a case expects, and refuse what they do not know in one line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.test_conformance import KVRun, SchedulerRun

CONFIG = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "max_model_len": 256,
    "block_size": 16,
    "num_blocks": 12,
    "enable_prefix_caching": True,
}
REQUESTS = [{"id": "a", "tokens": {"range": [0, 40]}, "max_tokens": 4}]


def scheduled(**expect: Any) -> None:
    script = [{"op": "add", "requests": ["a"]}, {"op": "schedule", "expect": expect}]
    case = {"config": CONFIG, "requests": REQUESTS, "script": script}
    SchedulerRun(case).run(case)


def test_the_first_blocks_and_the_tokens_of_a_request_can_be_expected() -> None:
    scheduled(block_ids_prefix={"a": [1, 2]}, num_tokens={"a": 40})
    with pytest.raises(AssertionError, match=r"block_ids_prefix is .*, expected .*"):
        scheduled(block_ids_prefix={"a": [2, 1]})
    with pytest.raises(AssertionError, match=r"num_tokens is {'a': 40}, expected {'a': 41}"):
        scheduled(num_tokens={"a": 41})


def test_an_unknown_key_or_kind_is_refused_in_one_line() -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"^op 1 \(schedule\): unknown key 'blocks' in expect, must be one of "
    ):
        scheduled(blocks=3)
    for run, known in ((SchedulerRun, "add, check, drafts"), (KVRun, "advance, alloc, check")):
        case = {"config": CONFIG, "requests": REQUESTS, "script": [{"op": "fly"}]}
        with pytest.raises(pytest.fail.Exception, match=f"^op 0: unknown kind 'fly', must be one of {known}"):
            run(case).run(case)
