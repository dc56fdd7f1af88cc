"""Failures of a policy, one line each, however many worlds show it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servesim.checking.world import World

LONGEST = 400
"""Characters of what a failure says; objects that print at length are cut."""


@dataclass(frozen=True)
class Finding:
    """A failure in one world, or in none."""

    check: str
    told: str
    world: int | None = None
    cause: str = ""
    """Findings of one check and cause are one failure; empty: what `told` says but for numbers and names."""

    @property
    def key(self) -> tuple[str, str]:
        """Key by which failures are grouped."""
        return self.check, self.cause or re.sub(r"<[^<>]*>|'[^']*'|\([^()]*\)$|\d[\d_,.]*", "#", self.told)


def lines(findings: Sequence[Finding], worlds: Mapping[int, World], kind: str) -> list[str]:
    """Return one line for each failure, with the first world that shows it. `kind`: of policy, the one not named."""
    failures: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        failures.setdefault(finding.key, []).append(finding)
    return [_line(several, worlds, kind) for several in failures.values()]


def _line(several: list[Finding], worlds: Mapping[int, World], kind: str) -> str:
    first = several[0]
    told = re.sub(r" at 0x[0-9a-f]+", "", " ".join(first.told.split()))
    if len(told) > LONGEST:
        told = f"{told[: LONGEST // 2]} ... {told[-LONGEST // 2 :]}"
    where = f" (world {first.world}: {worlds[first.world].told(kind)})" if first.world is not None else ""
    more = f", and in {len(several) - 1} more worlds" if len(several) > 2 else ", and in one more world"
    return f"{first.check}: {told}{where}{more * (len(several) > 1)}"
