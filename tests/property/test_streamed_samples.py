"""A trace that comes in chunks, with requests of several samples, is served as the trace that is held whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.engine.cluster import Cluster
from servesim.features.failures.happenings import Failures
from servesim.records.recorder import Recorder
from servesim.workload.predictor import predict
from servesim.workload.streamed import StreamedWorkload
from servesim.workload.trace import Ints, Trace
from servesim.workload.trace_digest import TraceDigest, trace_digest
from tests.property.test_fast_equals_reference import by_row
from tests.property.test_router_life import breakages
from tests.support.examples import examples
from tests.support.strategies import worlds
from tests.support.worlds import World


def plain_worlds(scheduler: str) -> st.SearchStrategy[World]:
    """Worlds none of whose requests quotes an answer, as that may be in another chunk."""

    def plain(world: World) -> bool:
        content = world.trace.content
        return content is None or bool((content.ids >= 0).all())

    return worlds(scheduler, samples=True).filter(plain)


def chunks(trace: Trace, size: int) -> Iterator[Trace]:
    for first in range(0, len(trace), size):
        yield trace.take(np.arange(first, min(first + size, len(trace))))


def predicted(chunk: Trace, first: int) -> Ints:
    return predict("random:error=0.5", chunk, 7, first)


def streamed(world: World, size: int) -> Cluster:
    """Run the world with its trace in chunks of so many rows."""
    pools = world.pools("fast", check=True)
    several = world.trace.samples is not None
    form = pools[0].cores[0].scheduler.samples
    workload = StreamedWorkload(
        chunks(world.trace, size), len(world.trace), predicted, world.clients, form, several=several
    )
    recorder = Recorder(out_ns=world.out_ns)
    cluster = Cluster(workload, pools, world.make_router(), recorder=recorder, parts=world.parts(pools))
    cluster.run()
    assert not any(map(workload.in_flight, range(len(world.trace))))
    return cluster


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "continuous"])
def test_chunks_of_samples_are_served_as_the_whole_trace(scheduler: str) -> None:
    @examples(25)
    @given(plain_worlds(scheduler), st.sampled_from([1, 2, 5]), st.none() | breakages())
    def holds(world: World, size: int, failures: Failures | None) -> None:
        world.failures = failures
        world.replicas = max(world.replicas, 2 if failures is not None else 1)
        whole, parts = world.run("fast"), streamed(world, size)
        assert by_row(parts.recorder) == by_row(whole.recorder)
        assert parts.recorder.reasons == whole.recorder.reasons
        assert parts.recorder.steps.array().tolist() == whole.recorder.steps.array().tolist()
        event(f"samples: {world.trace.samples is not None}")

    holds()


@examples(50)
@given(plain_worlds("vllm"), st.integers(1, 7))
def test_predictions_and_the_digest_do_not_depend_on_chunks(world: World, size: int) -> None:
    digest, trace = TraceDigest(), world.trace
    rows, samples = [], []
    for number, chunk in enumerate(chunks(trace, size)):
        digest.add(chunk)
        found = predicted(chunk, number * size).tolist()
        rows += found[: len(chunk)]
        samples += found[len(chunk) :]
    assert digest.hexdigest() == trace_digest(trace)
    assert rows + samples == predicted(trace, 0).tolist()
