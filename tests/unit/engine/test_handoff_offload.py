"""Prompts and answers apart with host memory behind either side, by hand: a step takes 100 ns, one a token and one a
request that samples; the proxy 4,000 ns; a token of KV is a byte, and takes a ns on the wire after 700 ns; a block of
16 tokens takes 10 ns from and to host memory."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts.request import State
from servesim.engine.cluster import Cluster
from servesim.features.failures.part import Crash, Failures
from servesim.features.handoff.first import SglangParams, TrtllmParams
from servesim.features.handoff.passage import Passage
from servesim.features.handoff.vllm import VllmNixlParams
from tests.support.apart import Apart, handoff_of
from tests.support.offloaded import Chunks, Host, behind, memories
from tests.support.worlds import ToyCost, toy_trace
from tests.unit.engine.test_remote_kv import rows

HOST = Host(blocks=100, ns_per_block=10)
MODES = ("reference", "fast")


def apart(second_ns: int = 10_000, third_ns: int = 20_000, **fields: Any) -> Apart:
    """Rows 0 and 2 have the same 32 tokens in front; the 60 tokens of row 1 take all memory of either side."""
    runs = [[(1, 32), (10, 8)], [(2, 60)], [(1, 32), (11, 8)]]
    world: dict[str, Any] = {
        "trace": toy_trace([0, second_ns, third_ns], [40, 60, 40], [1, 1, 1], runs=runs),
        "cost": ToyCost(fixed=100, token=1, context=0),
        "kv": "prefix-hash",
        "num_blocks": 5,
        "decode_blocks": 5,
        "start_ns": 700,
        "replicas": 2,
        "protocol": VllmNixlParams(http_ms=0.004),
    }
    return Apart(**{**world, **fields})


def run(
    world: Apart, mode: str, roles: str, host: Host | Chunks = HOST, first: bool = False
) -> tuple[list[Passage], Cluster]:
    cluster = world.cluster(mode, check=True)
    for role in roles.split():
        behind(cluster, role, host, first and role == "decode")
    cluster.run()
    assert all(replica.core.kv.usage().used == 0 and not replica.core.keeping for replica in cluster.replicas)
    return sorted(handoff_of(cluster).done, key=lambda p: p.request.row), cluster


@pytest.mark.parametrize("mode", MODES)
def test_the_prefill_side_loads_what_it_computed_before_and_hands_over_all_of_it(mode: str) -> None:
    """Row 0's two full blocks are in host memory at 161 ns. Row 2 has them 20 ns after it asks and computes 8 tokens;
    its 40 tokens are sent 4,000 ns later, and the last is computed again (100 + 1 + 1 ns)."""
    (_, _, p), cluster = run(apart(), mode, "prefill")
    assert (p.leg.scheduled_ns, p.leg.finished_ns, p.leg.loaded_tokens) == (20_020, 20_129, 32)
    assert (p.sent_ns, p.num_bytes, p.received_ns) == (24_129, 40, 24_129 + 740)
    assert p.request.first_token_ns == 24_869 + 102
    (memory,) = memories(cluster)
    assert memory.counts.tier_tokens == {"cpu": 32}
    assert memory.counts.stored_tokens == 32 + 48
    assert (memory.loading.busy_ns, memory.storing.busy_ns) == (2 * 10, 5 * 10)


@pytest.mark.parametrize("mode", MODES)
def test_without_it_the_prompt_is_computed_whole_and_what_the_decode_side_keeps_is_not_sent(mode: str) -> None:
    (_, _, p), _ = run(apart(decode_blocks=100), mode, "")
    assert (p.leg.scheduled_ns, p.leg.finished_ns) == (20_000, 20_141)
    assert p.num_bytes == 8


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ns_per_block", "freed_ns"), [(10, 4_881), (10_000, 20_141)])
def test_memory_at_the_source_is_kept_until_it_is_both_pulled_and_copied(
    mode: str, ns_per_block: int, freed_ns: int
) -> None:
    """Row 0 ends at 141 ns, is pulled at 4,881 ns, and copied two blocks later; row 1 needs all memory."""
    (p, q, _), _ = run(apart(second_ns=500, third_ns=90_000), mode, "prefill", Host(100, ns_per_block=ns_per_block))
    assert p.released_ns == 4_881
    assert q.leg.scheduled_ns == freed_ns


@pytest.mark.parametrize("mode", MODES)
def test_behind_the_decode_side_a_prompt_still_comes_over_the_wire_and_is_stored(mode: str) -> None:
    """The prefill side comes first in MultiConnector: host memory has row 2's head and is not asked for it."""
    (_, _, p), cluster = run(apart(), mode, "decode")
    assert (p.sent_ns, p.num_bytes, p.received_ns) == (24_141, 40, 24_881)
    (memory,) = memories(cluster)
    assert memory.counts.load_ns == []
    assert memory.counts.stored_tokens == 32 + 48


@pytest.mark.parametrize("mode", MODES)
def test_where_host_memory_is_first_the_rest_is_computed_at_the_decode_side_and_nothing_is_sent(mode: str) -> None:
    """Two blocks have come 20 ns after the proxy; 8 tokens are computed (109 ns); the source is freed at once."""
    (_, _, p), cluster = run(apart(), mode, "decode", first=True)
    assert (p.sent_ns, p.released_ns, p.received_ns, p.num_bytes) == (24_141, 24_141, -1, 0)
    assert rows(cluster, "first_token_ns")[2] == [24_161 + 109]
    assert memories(cluster)[0].counts.tier_tokens == {"cpu": 32}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [False, True])
def test_lmcache_behind_the_decode_side_loads_within_the_step(mode: str, first: bool) -> None:
    """Chunks of 16 tokens. First, row 2's step begins with the load (20 + 109 ns); else its KV comes over the wire."""
    (_, _, p), cluster = run(apart(), mode, "decode", Chunks(blocks=100, ns_per_block=10), first)
    (memory,) = memories(cluster)
    if first:
        assert (p.num_bytes, p.released_ns) == (0, p.sent_ns)
        assert p.request.first_token_ns == p.sent_ns + 20 + 109
        assert memory.counts.load_ns == [20]
    else:
        assert (p.num_bytes, memory.counts.load_ns) == (40, [])
        assert p.request.first_token_ns == p.received_ns + 102
    assert memory.counts.stored_tokens == 32 + 48


@pytest.mark.parametrize("mode", MODES)
def test_a_preempted_answer_is_loaded_from_host_memory_as_the_wire_sends_only_once(mode: str) -> None:
    """Two prompts of 16 tokens in four usable blocks: at 17 + 16 tokens each needs a third block, and one goes."""
    world = apart(trace=toy_trace([0, 0], [16, 16], [40, 40]), num_blocks=9)
    passages, cluster = run(world, mode, "decode")
    preempted = [p.request for p in passages if p.request.num_preemptions]
    assert preempted
    assert memories(cluster)[0].counts.again_tokens == 32 * len(preempted)
    assert [p.num_bytes for p in passages] == [16, 16]
    assert all(p.request.state is State.FINISHED for p in passages)


@pytest.mark.parametrize("mode", MODES)
def test_a_load_of_a_prompt_whose_decode_replica_crashes_ends_before_its_memory_is_freed(mode: str) -> None:
    """Row 2 has memory on the decode side at 20,000 and loads from 21,000 to 23,000. Lost at 22,000, it is sent again
    at 22,500 and loads from 23,500 to 25,500; 8 tokens are computed (109 ns) and 40 sent (740 ns)."""
    failures = Failures((Crash(1, 22_000, 0),), backoff_ns=500, jitter=0.0)
    cluster = apart(protocol=SglangParams(handshake_ms=0.001), failures=failures).cluster(mode, check=True)
    behind(cluster, "prefill", Host(blocks=100, ns_per_block=1_000))
    cluster.start()
    kv, used = cluster.replicas[0].core.kv, {}
    while cluster.step():
        used[cluster.now_ns] = kv.capacity_tokens - kv.usage().free
    assert [used[ns] for ns in (21_000, 22_000, 22_500, 23_000)] == [32, 32, 32, 0]
    p = max(handoff_of(cluster).done, key=lambda p: p.request.row)
    assert (p.leg.scheduled_ns, p.leg.loaded_tokens, p.leg.finished_ns) == (25_500, 32, 25_609)
    assert (p.received_ns, p.request.first_token_ns, p.request.state) == (26_349, 26_349, State.FINISHED)
    assert memories(cluster)[0].counts.load_ns == [2_000, 2_000]
    assert not cluster.replicas[0].core.fetched


def test_kv_that_comes_with_the_first_token_cannot_come_second() -> None:
    cluster = apart(protocol=TrtllmParams()).cluster("fast", check=True)
    with pytest.raises(ValueError, match="the first token must come from the prefill replica"):
        behind(cluster, "decode", HOST, first=True)
