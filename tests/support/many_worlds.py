"""Random worlds by the thousand: fast-forwarding against plain stepping, in every record and in summary.json.

`python -m tests.support.many_worlds` (make worlds) draws batches of worlds by number, so that a range of batches can be
run in parts, by the pure build and by the compiled one (which draw others: Hypothesis looks for constants in sources).
What differs is printed with its batch, and the command ends with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from servesim.contracts import schedulers
from tests.property.test_apart import assert_both_agree
from tests.property.test_data_parallel import ranks
from tests.property.test_fast_equals_reference import compared
from tests.property.test_router_life import AGES, assert_hears_the_same, breakages
from tests.property.test_summary_agreement import assert_summaries_agree, clusters, scenarios
from tests.support.apart import apart_worlds
from tests.support.pooled import pooled_worlds
from tests.support.scaled import scaled_worlds
from tests.support.strategies import drafting_worlds, groups_of_samples, lockstep_worlds, social_worlds, worlds

PER_BATCH = 100
OTHERS = [name for name in schedulers.names() if name != "vllm"]
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "worlds": worlds(samples=True),
    "clients": social_worlds(samples=True),
    "drafts": drafting_worlds(),
    "schedulers": st.sampled_from(OTHERS).flatmap(lambda name: worlds(name, samples=True)),
    "lockstep": lockstep_worlds(),
    "clients of other schedulers": st.sampled_from(OTHERS).flatmap(lambda name: social_worlds(name, samples=True)),
    "drafts again": drafting_worlds(),
    "samples": groups_of_samples(),
    "clients again": social_worlds(samples=True),
    "summaries": scenarios(),
}
"""What a batch is drawn from, in turn: batch 12 is of the third kind."""
BREAKING = st.none() | breakages()
CLUSTERS: dict[str, st.SearchStrategy[Any]] = {
    "failures": st.tuples(worlds() | social_worlds(), AGES, breakages()),
    "pools": st.tuples(pooled_worlds(), AGES, BREAKING),
    "scaling": st.tuples(scaled_worlds(), AGES, BREAKING),
    "ranks": ranks(),
    "prompts and answers apart": apart_worlds(),
    "summaries of clusters": clusters(),
}
"""The same with --clusters: replicas that differ, come and go, break, or step together."""


def heard_the_same(drawn: tuple[Any, Any, Any]) -> None:
    """Run a world whose router hears everything in both modes; its replicas may break."""
    world, ages, world.failures = drawn
    assert_hears_the_same(world, "Lively", ages)


def check_of(kind: str) -> Callable[[Any], Any]:
    """Return what compares the modes on worlds of a kind."""
    if kind.startswith("summaries"):
        return assert_summaries_agree
    if kind == "prompts and answers apart":
        return assert_both_agree
    return heard_the_same if kind in ("failures", "pools", "scaling") else compared


def batch(number: int, kind: str, size: int) -> tuple[set[str], str]:
    """Run `size` worlds of a kind in both modes, drawn by the number. Return the digests of the worlds, and what
    differed (empty: nothing)."""
    seen: set[str] = set()
    run = check_of(kind)

    def both(world: Any) -> None:
        seen.add(hashlib.sha256(pickle.dumps(world)).hexdigest())
        run(world)

    drawn: Callable[[], None] = seed(number)(
        settings(
            max_examples=size,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )(given(world={**KINDS, **CLUSTERS}[kind])(both))
    )
    try:
        drawn()
    except Exception as error:
        return seen, f"{type(error).__name__}: {error}\n" + "\n".join(getattr(error, "__notes__", ()))
    return seen, ""


def main() -> None:
    """Run batches and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first batch")
    parser.add_argument("--batches", type=int, default=225)
    parser.add_argument("--size", type=int, default=PER_BATCH, help="worlds of a batch")
    parser.add_argument("--clusters", action="store_true", help="worlds of CLUSTERS instead")
    options = parser.parse_args()
    kinds = list(CLUSTERS if options.clusters else KINDS)
    every: set[str] = set()
    differ = 0
    begin = time.process_time()
    for number in range(options.first, options.first + options.batches):
        kind = kinds[number % len(kinds)]
        seen, wrong = batch(number, kind, options.size)
        every |= seen
        differ += bool(wrong)
        print(f"batch {number}, {kind}: {len(seen)} worlds{': ' + wrong if wrong else ''}", flush=True)
    print(
        f"batches {options.first} to {options.first + options.batches - 1}: {len(every)} distinct worlds, {differ} "
        f"batches with a difference, {time.process_time() - begin:.0f} CPU s"
    )
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
