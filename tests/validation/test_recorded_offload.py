"""Memory of a recorded server under sessions of coding agents; what of it is the server's and what the simulator's is
said in tests.support.offload_sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.offload_sessions import Clock, Sessions, recorded, served

RECORDED = "groundtruth/kv_offload_dsr1_b200"
CORPUS = "traces/agentic/kv-cache-tester_710_compact_rle.jsonl.gz"
CLOCK = Clock(base_ms=6.6, ms_per_1k_context=0.02, prefill_per_s=14_000)
"""Fitted to runs without host memory: the time of a token with 1, 2, 4, 8 and 16 users, and the requests/s with 48."""
CPU_TOKENS = 5_000_000
"""Not recorded: the server's hit rates say that it held the sessions of 48 users (some 4.5 million tokens) and not
those of 64 (6 million), so that 48 users are no proof of it."""
TURNS = 60
"""Of each user: more than any has time for."""


@pytest.mark.slow
@pytest.mark.parametrize("users", [16, 48])
def test_without_host_memory_as_much_is_found_and_in_use_as_on_the_server(
    users: int, shared_data: Callable[[str], Path]
) -> None:
    sessions = Sessions(shared_data(RECORDED), shared_data(CORPUS))
    measured = recorded(sessions.folder / f"tp4_users{users}_offloadoff")
    found = served(sessions.trace(users, TURNS), CLOCK, measured.requests / measured.per_s)
    assert found.gpu == pytest.approx(measured.gpu, abs=0.05)
    assert found.kv == pytest.approx(measured.kv, abs=0.05)


@pytest.mark.slow
def test_host_memory_has_as_much_of_prompts_as_the_servers_and_more_requests_are_served_with_it(
    shared_data: Callable[[str], Path],
) -> None:
    sessions = Sessions(shared_data(RECORDED), shared_data(CORPUS))
    with_it, without = (recorded(sessions.folder / f"tp4_users48_offload{which}") for which in ("on", "off"))
    trace = sessions.trace(48, TURNS)
    found = served(trace, CLOCK, with_it.requests / with_it.per_s, CPU_TOKENS)
    bare = served(trace, CLOCK, without.requests / without.per_s)
    assert found.gpu == pytest.approx(with_it.gpu, abs=0.05)
    assert found.cpu == pytest.approx(with_it.cpu, abs=0.05)
    assert found.kv == pytest.approx(with_it.kv, abs=0.05)
    assert (found.per_s > bare.per_s) == (with_it.per_s > without.per_s)
