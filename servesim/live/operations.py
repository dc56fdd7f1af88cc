"""Operations on a live cluster, as texts of `cluster.failures` that do the same in a run of what was recorded."""

from __future__ import annotations

from collections.abc import Callable

from servesim.engine.clock import Clock
from servesim.engine.fleet import Fleet
from servesim.features.failures import FailuresFeature
from servesim.features.failures.added import kinds_of, nodes_of
from servesim.features.failures.happenings import Slowdown
from servesim.features.failures.nodes import number_of
from servesim.features.failures.part import Failing
from servesim.features.failures.setup import happening, response_of
from servesim.run.setup import Setup, check_together


class Operations:
    """Part of a run that crashes, slows, drains and adds replicas whenever it is told to."""

    feature = FailuresFeature.name
    """Name of the feature that does it."""

    def __init__(self, setup: Setup) -> None:
        """Add the part to a run. Raise UserError if something in the run excludes it."""
        scenario = setup.scenario
        check_together(scenario, setup.pools, samples=setup.facts.samples, also=FailuresFeature.name)
        self.done: list[str] = []
        """Texts of what was done, with its times, in the form of `cluster.failures`."""
        self._setup, self._kind_of = setup, kinds_of(setup)
        found = next((part for part in setup.parts if isinstance(part, Failing)), None)
        if found is None:
            settings = FailuresFeature.settings(scenario)
            found = Failing(response_of(settings, scenario.seed), nodes_of(setup, settings.gpus_per_node))
            setup.parts.insert(0, found)
        self._part = found

    def happens(self, say: Callable[[int], str], ns: int, fleet: Fleet, clock: Clock) -> int:
        """Schedule something of the run in progress from `ns` on, at a time at which nothing else is due, and return
        that. `say` returns its text for that time. Raise UserError if it cannot happen."""
        taken = {due for due, *_ in clock._queue}
        while ns in taken:
            ns += 1
        text = say(ns)
        what = happening(text, kind_of=self._kind_of)
        fleet.pools += [made.pool for made in self._setup.pools[len(fleet.pools) :]]
        self._part.happens(what)
        self.done.append(text)
        return ns

    def start_ns(self, kind: str, pool: str = "", gpu: str = "", model: str = "") -> int:
        """Return the time in ns that a replica takes to start. Raise UserError if `kind`, add or upgrade, cannot start
        it."""
        return self._kind_of(kind, pool, gpu, model).start_ns

    def num_nodes(self, fleet: Fleet) -> int:
        """Return the number of nodes that have been in use."""
        return number_of(self._part.nodes.of(fleet))

    def on_node(self, node: int, fleet: Fleet) -> list[int]:
        """Return the replicas on a node."""
        return self._part.nodes.on(node, fleet)

    def slow(self, index: int) -> Slowdown | None:
        """Return why a replica is slow now, or None if it is not."""
        return self._part.slow(index)
