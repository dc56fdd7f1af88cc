"""Conversion of a scenario's speculative settings into the speculator and the acceptance model of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from servesim.contracts import (
    AcceptanceModel,
    Scheduler,
    Speculator,
    acceptance_models,
    make,
    speculators,
)
from servesim.contracts.cost import CostModel
from servesim.contracts.section import Settings, policy_settings
from servesim.contracts.warn import Warn
from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.run.scenario import Scenario
from servesim.workload.trace_stream import TraceFacts


@dataclass(frozen=True)
class Speculation:
    """A resolved method and its acceptance."""

    method: str
    speculator: type[Speculator]
    params: Any
    target: ModelSpec
    acceptance: AcceptanceModel
    acceptance_name: str
    assumed: bool
    """Whether the acceptance is the method's own assumption, because the scenario does not specify it."""

    @classmethod
    def of(cls, scenario: Scenario, target: ModelSpec) -> Speculation | None:
        """Resolve a scenario's speculation; return None if there is none. Raise UserError for an invalid name or
        parameter."""
        if scenario.speculation["name"] != "none":
            return cls.resolve(scenario.speculation, scenario.acceptance, scenario.seed, target)
        if scenario.acceptance is not None:
            raise UserError("acceptance has no effect without speculation (add --speculation, such as eagle3)")
        return None

    @classmethod
    def resolve(cls, method: Settings, acceptance: Settings | None, seed: int, target: ModelSpec) -> Speculation:
        """Resolve a method and its acceptance from settings; without `acceptance`, use the method's own assumption."""
        speculator, params = speculators.configured(method)
        settings = acceptance or policy_settings(speculator.acceptance)
        model, values = acceptance_models.configured(settings)
        truth, assumed = make(model, values, seed), acceptance is None
        return cls(method["name"], speculator, params, target, truth, settings["name"], assumed)

    def make(self) -> Speculator:
        """Return a new speculator, one for each replica."""
        made: Speculator = make(self.speculator, self.params, self.target)
        if "acceptance" in made.needs:
            made.rates = self.acceptance.rates
        return made

    def priced(self, cost: CostModel, ranks: int = 1) -> Speculator:
        """Return a speculator with access to the cost of steps, each taken by all data-parallel ranks alike."""
        made = self.make()
        made.price = lambda batch: (cost.price(batch) if ranks == 1 else cost.prices([batch] * ranks)[0]).ns
        return made

    def check(self, scheduler: type[Scheduler]) -> None:
        """Raise UserError if a scheduler cannot run drafts."""
        if "speculation" not in scheduler.supports:
            raise UserError(
                f"scheduler {scheduler.name} cannot verify drafts (choose a scheduler that can, such as vllm)"
            )

    def tune(self, params: Any) -> Any:
        """Return the parameters of a scheduler or an allocator, with room for drafts if the user did not set it."""
        speculator = self.make()
        fixed = speculator.steady() and getattr(self.params, "adapt", "fixed") == "fixed"
        wanted = {
            "num_speculative_tokens": speculator.verified(speculator.max_drafts) if fixed else 0,
            "num_lookahead_tokens": speculator.verified(speculator.lookahead),
            "draft_slots_per_request": speculator.slots_per_request,
            "hash_lookahead_tokens": speculator.hash_lookahead,
        }
        known = {field.name for field in dataclasses.fields(params)}
        open_ = {name: value for name, value in wanted.items() if name in known and not getattr(params, name)}
        return dataclasses.replace(params, **open_)

    @property
    def most_verified(self) -> int:
        """Maximum number of draft tokens in one verification of a request."""
        speculator = self.make()
        return speculator.verified(speculator.max_drafts)

    def resolved(self) -> dict[str, Settings]:
        """Return the settings of speculation and acceptance, with every parameter written out."""
        return {
            "speculation": {"name": self.method, **dataclasses.asdict(self.params)},
            "acceptance": {"name": self.acceptance_name, **dataclasses.asdict(self.acceptance.params)},
        }

    def notes(self, trace: TraceFacts) -> Iterator[str]:
        """Yield notes on assumptions and on settings without effect."""
        if self.assumed:
            rates = "/".join(f"{rate:.2f}" for rate in self.acceptance.rates(self.make().max_drafts))
            yield Warn(
                f"speculation {self.method}: acceptance rates are assumed ({rates} by position, measured on other "
                "workloads). Set your own rates with --acceptance."
            )
        if trace.longest_output == 1:
            yield Warn(
                f"speculation {self.method} only adds cost: every request has one output token. Remove this setting."
            )
        if self.acceptance.rates(1)[0] == 0.0:
            yield Warn(f"speculation {self.method}: no draft is ever accepted. Remove this setting.")
