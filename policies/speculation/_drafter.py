"""The part that built-in methods share: how many tokens they draft after a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from servesim.contracts import Batch, Speculator, SpeculatorParams
from servesim.hardware import ModelSpec

from ._length import DraftLength, Fixed, Goodput, SglangAdaptive, Table, parse_table


@dataclass(frozen=True)
class DrafterParams(SpeculatorParams):
    """Drafts per step, and what decides on them."""

    adapt: str = "fixed"
    """fixed: always k. table: by the number of sequences (vLLM's dynamic k). sglang: by acceptance seen, within what
    the number of sequences allows (SGLang's adaptive slots). goodput: the most expected tokens per second at the price
    of the cost model and the acceptance seen (SmartSpec/TurboSpec). oracle: the same with the true acceptance rates."""
    scorer: str = "mqa"
    """mqa: all drafts of a sequence are verified over one reading of its context. batch-expansion: as a sequence each
    (vLLM before 0.6.4)."""
    table: str = ""
    """For adapt=table: from-to:k parts, such as 1-16:3/32-128:2/256-2048:0; gaps carry the k before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapt not in _LENGTHS:
            raise ValueError(f"adapt is {self.adapt!r}, must be one of {', '.join(_LENGTHS)}")
        if self.scorer not in ("mqa", "batch-expansion"):
            raise ValueError(f"scorer is {self.scorer!r}, must be mqa or batch-expansion")
        if (self.adapt == "table") != bool(self.table):
            raise ValueError("adapt=table needs table=1-16:3/32-128:2/...")
        if self.table:
            parse_table(self.table)


class Drafter(Speculator):
    """A method whose draft length is chosen by `adapt`."""

    Params = DrafterParams
    params: DrafterParams

    def __init__(self, params: DrafterParams, target: ModelSpec) -> None:
        super().__init__(params, target)
        self.expands = params.scorer == "batch-expansion"
        if params.adapt == "oracle":
            self.needs = frozenset({"acceptance"})

    @cached_property
    def _length(self) -> DraftLength:
        return _LENGTHS[self.params.adapt](self)

    def limit(self, batch: Batch) -> int:
        return self._length.limit(batch)

    def observe(self, verified: Sequence[tuple[int, int]]) -> None:
        self._length.observe(verified)

    def steady(self) -> bool:
        return self.params.adapt in ("fixed", "table")


_LENGTHS: dict[str, type[DraftLength]] = {
    "fixed": Fixed,
    "table": Table,
    "sglang": SglangAdaptive,
    "goodput": Goodput,
    "oracle": Goodput,
}
