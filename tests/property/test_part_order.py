"""Parts of a run do not depend on their order, are told in it, and are asked until one answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, permutations
from typing import Any

import pytest

import servesim
from servesim.checking.draw import Draws, plain_world, with_features
from servesim.checking.subject import Subject
from servesim.checking.world import World, toy_trace
from servesim.contracts.feature import installed
from servesim.contracts.part import Part
from servesim.contracts.request import Deadline, Request
from servesim.workload.workload import Clients
from tests.property.test_fast_equals_reference import by_row

TOLD = ("join", "core_made", "start", "sent", "state_changed", "left")
ASKED = ("takes", "reaches", "gives_up")
TOGETHER = [
    ("view_lag", "failures", "scaling"),
    ("view_lag", "scaling", "offload"),
    ("handoff", "view_lag", "data_parallel"),
    ("handoff", "view_lag", "scaling"),
    ("handoff", "view_lag", "failures"),
    ("handoff", "failures", "scaling"),
    ("failures", "offload"),
]
FEATURES = {feature.name: feature for feature in installed()}


class Spy(Part):
    """Writes down what it is told and asked, and answers by default, but for the verbs in `answers`."""

    def __init__(self, name: str, log: list[tuple[str, str]], answers: dict[str, bool] | None = None) -> None:
        self.name, self.log, self.answers = name, log, answers or {}

    def _say(self, verb: str) -> None:
        self.log.append((verb, self.name))

    def join(self, cluster: Any) -> None:
        self.cluster = cluster
        self._say("join")

    def core_made(self, replica: Any) -> None:
        self._say("core_made")

    def start(self) -> None:
        self._say("start")

    def sent(self, request: Request, output_len: int, index: int) -> None:
        self._say("sent")

    def state_changed(self, index: int, state: Any) -> None:
        self._say("state_changed")

    def left(self, request: Request) -> None:
        self._say("left")

    def takes(self, request: Request, output_len: int, decision: Any) -> bool:
        self._say("takes")
        if self.answers.get("takes"):
            request.replica = 0
            self.cluster.replicas[0].arrive(request, output_len)
        return self.answers.get("takes", False)

    def reaches(self, request: Request, index: int) -> bool:
        self._say("reaches")
        if not self.answers.get("reaches", True):
            self.cluster.replicas[index].arrive(request, 1)
        return self.answers.get("reaches", True)

    def gives_up(self, request: Request, deadline: Deadline) -> bool:
        self._say("gives_up")
        return self.answers.get("gives_up", False)

    def held(self) -> int:
        self._say("held")
        return 0


def told(**answers: dict[str, bool]) -> list[tuple[str, str]]:
    """What three parts are told and asked in a run of two replicas; `answers`: of a part."""
    log: list[tuple[str, str]] = []
    world = World(toy_trace([0, 10, 20], [20, 20, 20], [3, 300, 3]), replicas=2, clients=Clients(timeout_ns=50_000))
    cluster = replace(
        world, features=tuple(lambda world, pools, name=name: Spy(name, log, answers.get(name)) for name in "abc")
    ).cluster()
    cluster.set_state(1, "draining")
    cluster.run()
    return log


def test_all_parts_are_told_in_their_order() -> None:
    log = told()
    for verb in TOLD:
        order = [name for each, name in log if each == verb]
        assert order
        if verb == "core_made":  # of each replica, when all have joined
            assert sorted(order) == sorted("abc" * 2)
        assert order == list("abc") * (len(order) // 3), verb


def test_all_parts_are_asked_in_their_order_while_they_answer_by_default() -> None:
    log = told()
    for verb in (*ASKED, "held"):
        order = [name for each, name in log if each == verb]
        assert order, verb
        assert order == list("abc") * (len(order) // 3), verb


@pytest.mark.parametrize(("verb", "answer"), [("takes", True), ("reaches", False), ("gives_up", True)])
def test_no_part_is_asked_after_the_one_that_answers(verb: str, answer: bool) -> None:
    log = told(b={verb: answer})
    order = [name for each, name in log if each == verb]
    assert order
    assert order == list("ab") * (len(order) // 2)


@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_parts_in_any_order_leave_the_same_records(names: tuple[str, ...]) -> None:
    if not {*names} <= {*FEATURES}:
        pytest.skip("a feature is not installed")
    policy, found = Subject.of("vllm"), 0
    for number in range(200):
        world = with_features(plain_world(number, policy), [FEATURES[name] for name in names], Draws(number))
        if world.featured != names:
            continue
        found += 1
        spied = (*world.features, lambda world, pools: Spy("spy", []))
        first = world.run()
        for order in islice(permutations(spied), 1, None):
            other = replace(world, features=order).run()
            assert by_row(other.recorder) == by_row(first.recorder)
            assert other.recorder.reasons == first.recorder.reasons
            assert other.recorder.steps.array().tolist() == first.recorder.steps.array().tolist()
            assert other.recorder.deliveries.array().tolist() == first.recorder.deliveries.array().tolist()
        if found == 3:
            return
    raise AssertionError(f"{found} worlds have them all")


def test_a_run_has_its_parts_in_the_order_of_their_ranks() -> None:
    seen: list[str] = []
    servesim.simulate(
        trace="synth:rate=10,prompt=20,output=4",
        requests=5,
        model="llama-3.2-1b",
        gpu="h200",
        replicas=2,
        shape=["label:share=0.5,slo_class=gold", "burst:at=0,for=0.2,times=2"],
        **({"scaler": "keda:target=4,min=1,max=3"} if "scaling" in FEATURES else {}),
        **({"cluster.report_every_s": 0.1} if "view_lag" in FEATURES else {}),
        on_ready=lambda setup: seen.extend(type(part).__module__.split(".")[2] for part in setup.parts) and None,
    )
    assert len(seen) > 2
    assert seen == [name for name in FEATURES if name in seen]
