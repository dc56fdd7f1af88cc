"""Prompts that decode replicas compute themselves, by hand: every step takes 1,000 ns, a token of KV is a byte, and
takes a ns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.contracts import State
from servesim.errors import PolicyError, UserError
from servesim.features.failures.part import Crash, Failures
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.run.shown import all_rows
from tests.support.apart import Apart, handoff_of
from tests.support.worlds import ToyCost, toy_trace

STEPS = ToyCost(fixed=1000, token=0, context=0)
SMALL: dict[str, Any] = {
    "trace": "synth:prompt=300,output=8,rate=20",
    "requests": 8,
    "model": "llama-3.2-1b",
    "gpu": "h200",
}


def world(arrivals: list[int], prompts: list[int], decider: str, **fields: Any) -> Apart:
    """Requests of 3 output tokens, 4,000 ns of proxy, 700 ns of start-up."""
    made = Apart(
        toy_trace(arrivals, prompts, [3] * len(prompts), runs=fields.pop("runs", None)),
        cost=STEPS,
        num_blocks=100,
        decode_blocks=100,
        start_ns=700,
        replicas=2,
        protocol=VllmNixlParams(http_ms=0.004),
        decider=decider,
    )
    return replace(made, **fields)


def ways(found: Apart, mode: str = "fast") -> dict[int, tuple[int, int]]:
    """The prefill and decode replica of each request by row, -1 for one that went straight."""
    cluster = found.run(mode, check=True)
    handoff = handoff_of(cluster)
    assert handoff.straight is not None
    replica = dict(zip(*(cluster.recorder.requests.column(name).tolist() for name in ("row", "replica")), strict=True))
    return dict(
        sorted(
            [(p.request.row, (p.prefill, p.decode)) for p in handoff.done]
            + [(row, (-1, replica[row])) for row in handoff.straight.rows]
        )
    )


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_short_prompt_is_computed_by_the_decode_replica_in_its_first_step_and_a_long_one_goes_apart(
    mode: str,
) -> None:
    cluster = world([0, 0], [39, 40], "llm-d:non_cached_tokens=40").run(mode, check=True)
    table = cluster.recorder.requests
    found = {name: table.column(name).tolist() for name in ("row", "replica", "scheduled_ns", "first_token_ns")}
    # row 1: a step, 4,000 of proxy, 700 of start-up, 40 bytes; the step in which it is admitted begins at once
    assert found == {"row": [0, 1], "replica": [1, 1], "scheduled_ns": [0, 0], "first_token_ns": [1000, 6740]}
    handoff = handoff_of(cluster)
    assert handoff.straight is not None
    assert handoff.straight.rows == [0]
    assert [p.request.row for p in handoff.done] == [1]


def test_llm_d_with_0_tokens_has_no_prompt_computed_apart_as_in_its_documentation() -> None:
    assert ways(world([0, 0], [10, 90], "llm-d")) == {0: (-1, 1), 1: (-1, 1)}


def test_dynamo_0_leaves_prompts_to_decode_replicas_while_as_many_wait_as_it_allows() -> None:
    decider = "dynamo-0:max_local_prefill_length=50,max_prefill_queue_size=1"
    assert ways(world([0, 0, 9_000, 9_000], [60, 60, 50, 51], decider)) == {
        0: (0, 1),
        1: (-1, 1),  # row 0 waits
        2: (-1, 1),  # short enough
        3: (0, 1),
    }


RUNS = [[(1, 64)], [(1, 64), (2, 16)], [(3, 64), (2, 16)]]


@pytest.mark.parametrize(
    ("decider", "expected"),
    [
        ("dynamo", {0: (0, 1), 1: (-1, 1), 2: (0, 1)}),  # a share of 16/80 < 0.7; else 1
        ("dynamo:eff_isl_threshold=16", {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
        ("dynamo:eff_isl_ratio_threshold=0.2", {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
        ("trtllm:max_local_prefill_length=16", {0: (0, 1), 1: (-1, 1), 2: (0, 1)}),
        ("trtllm:max_local_prefill_length=90", {0: (0, 1), 1: (-1, 1), 2: (0, 1)}),  # without a match always apart
        ("llm-d:non_cached_tokens=17", {0: (0, 1), 1: (-1, 1), 2: (0, 1)}),
        ("llm-d:non_cached_tokens=16", {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
    ],
)
def test_what_the_decode_replica_has_cached_counts_as_its_router_knows_it(
    decider: str, expected: dict[int, tuple[int, int]]
) -> None:
    made = world([0, 50_000, 90_000], [64, 80, 80], decider, runs=RUNS, kv="prefix-hash", router="dynamo-kv")
    assert ways(made) == expected


def test_the_cached_prefix_of_a_request_that_goes_straight_is_not_computed() -> None:
    made = world([0, 50_000], [64, 80], "dynamo", runs=RUNS[:2], kv="prefix-hash", router="dynamo-kv")
    assert made.run().recorder.requests.column("hit_tokens").tolist() == [0, 64]


def test_the_dynamo_decode_router_prefers_the_replica_with_the_prefix_if_replicas_may_compute_prompts() -> None:
    """Three equal prompts one after the other; without credit for blocks the tie of two idle replicas is drawn."""
    made = world([0, 50_000, 90_000, 130_000], [64] * 4, "dynamo", runs=[[(1, 64)]] * 4, kv="prefix-hash")
    found = ways(replace(made, router="dynamo-kv", sizes=(1, 2), replicas=3))
    first = found[0][1]
    assert found == {0: (0, first), 1: (-1, first), 2: (-1, first), 3: (-1, first)}


def test_a_request_counts_at_its_decode_replica_from_the_choice_on() -> None:
    """Of two decode replicas the one with fewer requests: the second and third request see those before them."""
    made = world([0, 0, 0], [64, 64, 16], "llm-d:non_cached_tokens=40", router="least-requests")
    assert ways(replace(made, sizes=(1, 2), replicas=3)) == {0: (0, 1), 1: (0, 2), 2: (-1, 1)}


def test_a_request_whose_decode_replica_crashes_while_its_prompt_is_computed_is_sent_again() -> None:
    failures = Failures(crashes=(Crash(1, 500, 200),), backoff_ns=1_000, jitter=0)
    made = world([0], [64], "always", router="least-requests", failures=failures)
    cluster = made.run("fast", check=True)
    (passage,) = handoff_of(cluster).done
    # lost at 500; again at 1,500 with a step of its own: the first one was called off
    assert (passage.leg.scheduled_ns, passage.leg.finished_ns, passage.sent_ns) == (1_500, 2_500, 6_500)
    assert passage.request.state is State.FINISHED
    assert handoff_of(cluster).decode_router.load == [0, 0]  # type: ignore[union-attr]


def test_a_request_that_went_straight_and_lost_its_replica_is_decided_again() -> None:
    """After the crash no decode replica is ready, so it goes apart, and on when one is there again."""
    failures = Failures(crashes=(Crash(1, 500, 3_000),), backoff_ns=1_000, jitter=0)
    made = world([0], [32], "llm-d:non_cached_tokens=40", router="least-requests", failures=failures)
    assert ways(made) == {0: (0, 1)}


OWN = """
from servesim.contracts.decider import Decider


class Odd(Decider):
    def apart(self, request, outlook):
        return {answer}
"""


def test_a_users_own_decider_sees_the_request_and_what_awaits_it(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN.format(answer="outlook.uncached == request.prompt_len == 301 and outlook.decode.role"))
    with pytest.raises(PolicyError, match="apart returns 'decode', not True or False"):
        servesim.simulate(**SMALL | {"trace": "synth:prompt=301,output=8"}, pd="1x1:1x1", disaggregate=f"{file}:Odd")
    file.write_text(OWN.format(answer="request.row % 2 == 1"))
    found = servesim.simulate(**SMALL, pd="1x1:1x1", disaggregate=f"{file}:Odd").summary["disaggregation"]
    assert (found["straight"], found["straight_share"], found["transfers"]) == (4, 0.5, 4)


def test_what_a_users_own_decider_raises_names_it(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN.format(answer="1 // 0"))
    with pytest.raises(PolicyError, match=r"Odd.*ZeroDivisionError.*own.py line 7"):
        servesim.simulate(**SMALL, pd="1x1:1x1", disaggregate=f"{file}:Odd")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"disaggregate": "llm-d", "replicas": 2}, "disaggregate is specified, but no pool has the role"),
        ({"disaggregate": "llm-x", "pd": "1x1:1x1"}, "unknown decider 'llm-x'"),
        ({"disaggregate": "llm-d:tokens=1", "pd": "1x1:1x1"}, "unknown parameter 'tokens'"),
        ({"disaggregate": "dynamo", "pd": "1x1:1x1"}, "decides by cached tokens, of which router round-robin knows"),
        ({"disaggregate": "trtllm", "pd": "1x1:1x1", "router": "least-requests"}, "use one that does"),
        ({"disaggregate": "llm-d", "pd": "1x1:1x1", "handoff": "sglang"}, "SGLang's decode servers compute no prompts"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        servesim.simulate(**SMALL | settings)
    assert "\n" not in str(refused.value)


def test_without_a_decider_the_summary_says_nothing_of_it() -> None:
    found = servesim.simulate(**SMALL, pd="1x1:1x1").summary
    assert "straight" not in found["disaggregation"]
    assert "disaggregate" not in found["scenario"]


def test_where_no_request_goes_straight_the_run_says_so_without_a_latency() -> None:
    found = servesim.simulate(**SMALL, pd="1x1:1x1", disaggregate="llm-d:non_cached_tokens=1")
    assert found.summary["disaggregation"]["straight"] == 0
    assert "straight_ttft_ms" not in found.summary["disaggregation"]
    assert dict(all_rows(found.summary))["straight to decode"] == "0 (0.0 %)"
