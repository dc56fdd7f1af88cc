"""Requests of several samples (n > 1): what is computed and shared, and that a request counts once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim import simulate
from servesim.engine.cluster import Cluster
from servesim.errors import UserError
from servesim.metrics.requests import RequestColumns
from servesim.records.columns import REQUEST_COLUMNS
from servesim.workload.samples import FURTHER
from servesim.workload.trace import Trace
from servesim.workload.workload import Clients
from tests.support.worlds import World, toy_trace


def sequences(cluster: Cluster) -> list[dict[str, Any]]:
    """The records of all sequences, in order of their numbers."""
    return [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in sorted(cluster.recorder.requests.array().tolist())]


def of(cluster: Cluster, name: str) -> list[Any]:
    return [record[name] for record in sequences(cluster)]


def steps(cluster: Cluster, name: str) -> list[int]:
    return cluster.recorder.steps.column(name).tolist()


def three(**more: Any) -> Trace:
    """One request with a prompt of 40 tokens and answers of 3, 2 and 1."""
    return toy_trace([0], [40], [3], samples={0: [2, 1]}, **more)


def test_children_share_the_full_blocks_of_their_prompt_by_the_prefix_cache() -> None:
    cluster = World(three(), kv="prefix-hash").run(check=True)
    assert of(cluster, "hit_tokens") == [0, 32, 32]
    assert steps(cluster, "prefill_tokens")[0] == 40 + 8 + 8
    assert of(cluster, "output_len") == [3, 2, 1]
    assert len(set(of(cluster, "first_token_ns"))) == 1
    found = [(r["row"], r["sample"], r["request"]) for r in sequences(cluster)]
    assert found == [(0, 1, 0), (FURTHER, 2, 0), (FURTHER + 1, 3, 0)]


def test_without_a_prefix_cache_each_computes_the_prompt() -> None:
    cluster = World(three(), kv="paged").run(check=True)
    assert steps(cluster, "prefill_tokens")[0] == 3 * 40


def test_their_answers_are_not_shared() -> None:
    """A later turn quotes the first answer, of which it finds two more blocks than of the prompt alone."""
    later = [(7, 48), (-1, 32), (8, 4)]
    trace = toy_trace([0, 10**9], [48, 84], [40, 1], runs=[[(7, 48)], later], samples={0: [40]})
    cluster = World(trace, kv="prefix-hash").run(check=True)
    assert of(cluster, "hit_tokens") == [0, 80, 32]


def test_sglang_computes_the_prompt_first_and_then_sends_the_samples() -> None:
    cluster = World(three(), kv="prefix-radix", scheduler="sglang").run(check=True)
    assert of(cluster, "sample") == [1, 2, 3, -1]
    assert of(cluster, "hit_tokens") == [39, 39, 39, 0]
    assert (steps(cluster, "prefill_tokens")[0], steps(cluster, "decode_count")[1]) == (40, 3)
    prompt = sequences(cluster)[-1]
    assert of(cluster, "arrival_ns") == [prompt["finished_ns"]] * 3 + [0]
    columns = RequestColumns.of(cluster.recorder.requests.array())
    assert columns.table["arrival_ns"].tolist() == [0]
    assert columns.table["output_len"].tolist() == [6], "the token of the prompt's own request is nobody's"
    assert columns.ttft.tolist() == [of(cluster, "first_token_ns")[0]]


def test_a_request_counts_once_with_the_tokens_of_all_its_samples() -> None:
    cluster = World(three(), kv="prefix-hash").run()
    columns = RequestColumns.of(cluster.recorder.requests.array())
    assert len(columns) == 1
    table = {name: column.tolist() for name, column in columns.table.items()}
    assert (table["output_len"], table["samples"], table["longest_output_len"]) == ([6], [3], [3])
    last = max(of(cluster, "last_token_ns"))
    assert columns.e2el.tolist() == [last]
    first = of(cluster, "first_token_ns")[0]
    assert columns.tpot.tolist() == [(last - first) / 2], "by the longest sample"


def test_a_request_fails_if_a_sample_does() -> None:
    def record(row: int, sample: int, state: int, finished: int) -> list[int]:
        values = {"row": row, "request": 0, "sample": sample, "state": state, "finished_ns": finished, "output_len": 2}
        return [values.get(name, 0) for name in REQUEST_COLUMNS]

    columns = RequestColumns.of(np.array([record(0, 1, 4, 9), record(5, 2, 6, 7)]))
    assert columns.done.tolist() == [False]
    assert columns.table["finished_ns"].tolist() == [9]


def test_a_client_has_one_permit_for_all_samples() -> None:
    trace = toy_trace([0, 0], [16, 16], [2, 2], samples={0: [9]})
    cluster = World(trace, clients=Clients(max_concurrency=1)).run()
    first, second, sample = sequences(cluster)
    assert sample["request"] == 0
    assert second["arrival_ns"] == max(first["finished_ns"], sample["finished_ns"])


def test_samples_are_queued_or_rejected_together() -> None:
    trace = toy_trace([0, 0, 0], [16] * 3, [4] * 3, samples={1: [4, 4]})
    cluster = World(trace, max_queued=3, max_num_seqs=1).run(check=True)
    states = {(r["request"], r["sample"]): r["state"] for r in sequences(cluster)}
    assert states == {(0, 0): 4, (1, 1): 5, (1, 2): 5, (1, 3): 5, (2, 0): 4}


def test_one_that_gives_up_takes_all_samples_along_and_tries_again() -> None:
    trace = toy_trace([0], [16], [100], samples={0: [1, 50]})
    clients = Clients(timeout_ns=40_000, retries=1, retry_ns=10)
    cluster = World(trace, clients=clients).run(check=True)
    got = sequences(cluster)
    assert [(r["row"], r["request"], r["sample"]) for r in got] == [
        *((0, 0, 1), (1, 1, 1)),
        *((FURTHER, 0, 2), (FURTHER + 1, 0, 3), (FURTHER + 2, 1, 2), (FURTHER + 3, 1, 3)),
    ]
    assert [r["state"] for r in got] == [6, 6, 4, 6, 4, 6]
    assert {r["finished_ns"] for r in got if r["state"] == 6} == {40_000, 80_010}


def test_a_first_token_in_time_is_that_of_any_sample() -> None:
    """Memory for one sequence: the second sample begins when the first has ended, long after the deadline."""
    trace = toy_trace([0], [16], [30], samples={0: [30]})
    cluster = World(trace, max_num_seqs=1, clients=Clients(ttft_timeout_ns=5_000)).run(check=True)
    assert of(cluster, "state") == [4, 4]
    assert of(cluster, "first_token_ns")[1] > 5_000


def test_samples_go_to_one_replica() -> None:
    trace = toy_trace([0, 0], [16, 16], [4, 4], samples={0: [4] * 5})
    cluster = World(trace, replicas=2).run()
    by_request = {request: {r["replica"] for r in sequences(cluster) if r["request"] == request} for request in (0, 1)}
    assert by_request == {0: {0}, 1: {1}}


def forked(**more: Any) -> World:
    return World(three(), scheduler="continuous", kv=more.pop("kv", "paged"), **more)


@pytest.mark.parametrize("kv", ["paged", "prefix-hash"])
def test_vllm_v0_computes_the_prompt_once_and_forks(kv: str) -> None:
    """Three blocks of the prompt; the third, of 8 tokens, is copied by one of the two that go on."""
    cluster = forked(kv=kv).run(check=True)
    assert steps(cluster, "prefill_tokens") == [40, 0, 0]
    assert steps(cluster, "sampled") == [1, 2, 1], "one row of logits gives three first tokens; one answer ends there"
    assert of(cluster, "output_len") == [3, 2, 1]
    assert len(set(of(cluster, "first_token_ns"))) == 1
    assert of(cluster, "hit_tokens") == [0, 40, 40]
    assert steps(cluster, "kv_used") == [40, 32 + 9 + 9, 32 + 8 + 2]
    assert steps(cluster, "kv_internal") == [8, 2 * 7, 6]
    second = steps(cluster, "end_ns")[1] - steps(cluster, "start_ns")[1]
    assert second == 1000 + 100 * (2 + 2) + 16 + 2 * 41, "16 tokens are copied"


def block_tables(tokens: int, samples: int) -> tuple[Any, list[Any]]:
    """An allocator of 16 blocks of 4, and requests forked after so many tokens."""
    from servesim.contracts import KVMemory, Request, State, kv_allocators

    cls, _ = kv_allocators.resolve("paged")
    kv = cls(cls.Params(), KVMemory(17, 4, 100, host_blocks=8))
    requests = [Request(i, str(i), tokens, 20, 0) for i in range(samples)]
    kv.admit(requests[0], kv.lookup(requests[0]), tokens, 0)
    for request in requests:
        request.state, request.num_computed_tokens, request.num_tokens = State.RUNNING, tokens, tokens + 1
        kv.held_tokens += tokens
        if request is not requests[0]:
            kv.fork(requests[0], request)
        kv.check_integrity() if request is requests[-1] else None
    return kv, requests


def write(kv: Any, request: Any) -> bool:
    if not kv.grow(request, 1):
        return False
    request.num_computed_tokens += 1
    kv.held_tokens += 1
    kv.check_integrity()
    return True


def test_a_fork_takes_no_memory_and_the_last_to_write_keeps_the_block() -> None:
    kv, (a, b, c) = block_tables(6, 3)
    assert kv.tables[a] == kv.tables[b] == kv.tables[c] == [1, 2]
    assert kv.usage() == (6, 2, 0, 56)
    assert write(kv, b)
    assert (kv.tables[b], kv.copied_tokens) == ([1, 3], 4)
    assert kv.usage() == (4 + 2 + 3, 2 + 1, 0, 52)
    assert write(kv, a)
    assert write(kv, c)
    assert (kv.tables[a], kv.tables[c], kv.copied_tokens) == ([1, 4], [1, 2], 8)
    assert kv.usage() == (4 + 3 * 3, 3, 0, 48)


def test_what_is_shared_is_freed_with_its_last_holder() -> None:
    kv, (a, b) = block_tables(6, 2)
    for request, free in ((a, 56), (b, 64)):
        kv.held_tokens -= 6
        kv.free(request)
        kv.check_integrity()
        assert kv.usage().free == free


def test_full_blocks_are_never_copied() -> None:
    kv, (a, b) = block_tables(8, 2)
    assert write(kv, a)
    assert write(kv, b)
    assert (kv.tables[a], kv.tables[b], kv.copied_tokens) == ([1, 2, 3], [1, 2, 4], 0)


def test_samples_go_to_host_memory_and_back_with_what_they_share_once() -> None:
    kv, requests = block_tables(6, 3)
    assert write(kv, requests[1])
    tokens = sum(r.num_computed_tokens for r in requests)
    kv.held_tokens -= tokens
    assert kv.swap_out(requests[0], requests[1:]) == 3 * 4, "blocks 1 and 2, and the copy"
    assert kv.usage().free == 64
    assert kv.can_swap_in(requests[0], 1, 64 - 6 * 4, requests[1:])
    assert not kv.can_swap_in(requests[0], 1, 64 - 5 * 4, requests[1:]), "each might need a block more"
    assert kv.swap_in(requests[0], 1, 0, requests[1:]) == 3 * 4
    kv.held_tokens += tokens
    for request in requests:
        request.num_computed_tokens += 1
        kv.held_tokens += 1
    kv.check_integrity()
    tables = [kv.tables[r] for r in requests]
    assert len({table[0] for table in tables}) == 1
    assert len({table[1] for table in tables}) == 3
    assert kv.usage() == (4 + 3 + 4 + 3, 1 + 0 + 1, 0, 48)


def test_a_group_gives_way_as_a_whole_and_comes_back_before_anyone_new() -> None:
    """Ten blocks of 16 hold both prompts and what follows only for a while."""
    trace = toy_trace([0, 1], [33, 33], [60, 40], samples={1: [40]})
    cluster = World(trace, scheduler="continuous", num_blocks=11, host_blocks=20).run(check=True)
    got = sequences(cluster)
    assert [r["state"] for r in got] == [4, 4, 4]
    assert [r["num_preemptions"] for r in got] == [0, 1, 1]
    assert [r["recomputed_tokens"] for r in got] == [0, 0, 0], "swapped, not computed again"
    assert max(steps(cluster, "bytes_moved")) > 0


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ({"kv": "contiguous"}, "but kv contiguous does not support"),
        ({"kv": "hybrid"}, "but kv hybrid does not support"),
    ],
)
def test_a_fork_needs_memory_that_can_be_shared(policies: dict[str, str], says: str) -> None:
    settings = {"model": "llama-3.1-8b", "gpu": "h200", "scheduler": "continuous"}
    with pytest.raises(UserError, match=says):
        simulate(trace="synth:n=2", requests=3, **settings, **policies)


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ({"scheduler": "static", "kv": "contiguous"}, "a row of its padded batch is one request"),
        ({"scheduler": "transformers", "kv": "paged"}, "forking of return sequences is not modeled"),
    ],
)
def test_who_cannot_serve_several_samples_says_so_at_start_up(policies: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulate(trace="synth:n=2", requests=3, model="llama-3.1-8b", gpu="h200", **policies)


def test_a_result_keeps_every_sample(tmp_path: Any) -> None:
    from servesim.reports.tokens import Tokens
    from servesim.run.result import Result

    run = simulate(
        trace="synth:n=uniform(1,4),rate=30,output=uniform(1,60)",
        requests=30,
        model="llama-3.1-8b",
        gpu="h200",
        out=tmp_path / "out",
    )
    back = Result.load(tmp_path / "out")
    assert back.samples.equals(run.samples)
    assert len(run.requests) == 30
    assert len(run.samples) == run.summary["requests"]["output_sequences"] == int(run.requests["samples"].sum()) > 30
    assert run.samples["output_len"].sum() == run.requests["output_len"].sum()
    tokens = Tokens(run)
    for i in range(30):
        times = tokens.of(i)
        assert len(times) == run.requests["output_len"][i]
        assert (times[0], times[-1]) == (run.requests["first_token_ns"][i], run.requests["last_token_ns"][i])
