"""Code shared by the built-in methods: how many tokens to draft after a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from servesim.contracts import Batch, Speculator, SpeculatorParams
from servesim.hardware import ModelSpec

from ._length import DraftLength, Fixed, Goodput, SglangAdaptive, Table, parse_table


@dataclass(frozen=True)
class DrafterParams(SpeculatorParams):
    """Number of drafts per step, and how it is chosen."""

    adapt: str = "fixed"
    """Choice of the draft length. fixed: always k. table: by the number of sequences (vLLM's dynamic k). sglang: by
    observed acceptance, within the range that the number of sequences allows (SGLang's adaptive slots). goodput: the
    length with the most expected tokens per second, by the cost model and the observed acceptance
    (SmartSpec/TurboSpec). oracle: goodput with the true acceptance rates."""
    scorer: str = "mqa"
    """Verification method. mqa: all drafts of a sequence are verified with one read of its context. batch-expansion:
    each draft is verified as a separate sequence (vLLM before 0.6.4)."""
    table: str = ""
    """Table for adapt=table, as from-to:k parts, such as 1-16:3/32-128:2/256-2048:0; gaps use the previous k."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapt not in _LENGTHS:
            raise ValueError(f"adapt is {self.adapt!r} but must be one of {', '.join(_LENGTHS)}")
        if self.scorer not in ("mqa", "batch-expansion"):
            raise ValueError(f"scorer is {self.scorer!r} but must be mqa or batch-expansion")
        if (self.adapt == "table") != bool(self.table):
            raise ValueError("adapt=table needs table=1-16:3/32-128:2/...")
        if self.table:
            parse_table(self.table)


class Drafter(Speculator):
    """A speculation method whose draft length is chosen by `adapt`."""

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
