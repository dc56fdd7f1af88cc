"""Every pair of features runs, or one of the two refuses the other, and so do features that a large deployment has
together: in small worlds, where fast mode equals reference mode to the nanosecond, and as scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, count, islice, permutations
from typing import Any

import pytest

import servesim
from servesim.checking.draw import Draws, plain_world, refused_by, with_features
from servesim.checking.subject import Subject
from servesim.checking.world import World
from servesim.contracts.feature import Feature, installed
from servesim.engine.cluster import Cluster
from servesim.errors import UserError
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run.scenario import Scenario
from servesim.workload.workload import TraceWorkload
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row

FEATURES = {feature.name: feature for feature in installed()}
IN_WORLDS = [name for name, feature in FEATURES.items() if type(feature).in_world is not Feature.in_world]
SINGLE = [(name,) for name in FEATURES]
PAIRS = [*combinations(FEATURES, 2)]
ROOMS = ("handoff", "failures", "scaling", "offload")
MORE = [names for names in [ROOMS, (*ROOMS, "data_parallel")] if {*names} <= {*FEATURES}]
WORLDS = 20
BASE: dict[str, Any] = {
    "trace": "synth:arrivals=poisson,rate=20,prompt=300,output=30",
    "requests": 30,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "replicas": 2,
    "router": "least-outstanding",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "bars": {},
    "bursts": {"shape": ["burst:at=0.2,for=0.3,times=3"]},
    "classes": {"shape": ["label:share=0.5,slo_class=gold"], "slo": "ttft:50", "slo_classes": {"gold": "ttft:20"}},
    "data_parallel": {"dp": 2, "model": "qwen3-30b-a3b"},
    "failures": {"cluster": {"failures": ["crash:replica=0,at=0.3,restart=0.2"]}},
    "handoff": {"pd": "1x1:1x1"},
    "offload": {"offload": "vllm:cpu=1GiB", "engine": {"num_gpu_blocks": 300}},
    "scaling": {
        "scaler": "keda:target=2,min=1,max=4",
        "start": {"boot_s": 0, "compile_s": 0.01, "graphs_s": 0, "warm_up_s": 0},
    },
    "view_lag": {"cluster": {"report_every_s": 0.05}},
}
"""What a scenario says to have the feature."""
SAYS = {
    "bars": "intervals",
    "bursts": "bursts",
    "classes": "classes",
    "handoff": "disaggregation",
    "offload": "offload",
    "view_lag": "router_view",
}
"""The section of the summary that says of it."""


def refusal(names: tuple[str, ...]) -> str | None:
    """The reason for which one of them refuses another."""
    for one, other in permutations(names, 2):
        if other in (reasons := refused_by(FEATURES[one])):
            return reasons[other]
    return None


def worlds(names: tuple[str, ...]) -> Iterator[World]:
    """Small worlds with these features in them."""
    policy = Subject.of("vllm")
    for number in count():
        world = with_features(plain_world(number, policy), [FEATURES[name] for name in names], Draws(number))
        if world.featured == names:
            yield world


def assert_all_have_left(world: World, cluster: Cluster) -> None:
    forked = sum(replica.core.num_forked for replica in cluster.replicas)
    assert cluster.num_left == cluster.num_arrived + forked
    assert cluster.num_waiting == sum(replica.core.num_unfinished for replica in cluster.replicas) == 0
    columns = [REQUEST_COLUMNS.index(name) for name in ("row", "sample")]
    left = [tuple(row) for row in cluster.recorder.requests.array()[:, columns].tolist()]
    assert len({*left}) == len(left)
    first = {row for row, _ in left if row < len(world.trace)}  # the others are further tries
    workload = cluster.workload
    assert isinstance(workload, TraceWorkload)
    assert len(first) + workload.unsent == len(world.trace)


def together(names: tuple[str, ...]) -> dict[str, Any]:
    """A scenario with all of these features."""
    found = dict(BASE)
    for name in names:
        for key, value in SETTINGS[name].items():
            held = found.get(key)
            found[key] = (
                [*held, *value] if isinstance(held, list) else held | value if isinstance(held, dict) else value
            )
    return {key: value for key, value in found.items() if key != "replicas" or "handoff" not in names}


@pytest.mark.parametrize("names", [*SINGLE, *PAIRS, *MORE], ids="+".join)
def test_a_pair_of_features_runs_in_small_worlds_or_one_refuses_the_other(names: tuple[str, ...]) -> None:
    if refusal(names) is not None or not {*names} <= {*IN_WORLDS}:
        found = with_features(plain_world(9, Subject.of("vllm")), [FEATURES[name] for name in names], Draws(9))
        assert len(found.featured) < len(names)
        return
    for world in islice(worlds(names), WORLDS):
        fast, plain = world.run("fast"), world.run("reference", check=True)
        assert by_row(fast.recorder) == by_row(plain.recorder)
        assert fast.recorder.reasons == plain.recorder.reasons
        assert_steps_agree(fast.recorder, plain.recorder)
        assert sorted(fast.recorder.deliveries.array().tolist()) == sorted(plain.recorder.deliveries.array().tolist())
        assert_all_have_left(world, fast)


@pytest.mark.parametrize("names", [*SINGLE, *PAIRS, *MORE], ids="+".join)
def test_a_scenario_of_two_features_runs_alike_in_both_modes_or_ends_with_the_line_of_the_one_that_refuses(
    names: tuple[str, ...],
) -> None:
    settings = together(names)
    if (reason := refusal(names)) is not None:
        with pytest.raises(UserError) as error:
            servesim.simulate(settings)
        assert str(error.value) == reason
        return
    fast, plain = (servesim.simulate(settings, mode=mode) for mode in ("fast", "reference"))
    on = {feature.name for feature in FEATURES.values() if feature.is_on(Scenario.of(settings))}
    assert on >= {*names} - {"bars", "bursts", "classes"}
    assert fast.requests.equals(plain.requests)
    for name in names:
        if name in SAYS:
            assert fast.summary[SAYS[name]]
    assert _figures(fast) == _figures(plain)


def _figures(result: servesim.Result) -> dict[str, Any]:
    return {key: value for key, value in result.summary.items() if key not in ("scenario", "provenance")}


def test_every_feature_has_settings_here() -> None:
    assert {*FEATURES} <= {*SETTINGS}
