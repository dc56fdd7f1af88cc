"""Failures of a policy, one line each, however many worlds show them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servesim.checking.world import World

LONGEST = 400
"""Maximum length of a failure's message in characters; longer ones are cut."""


@dataclass(frozen=True)
class Finding:
    """Failure in a particular world, or independent of any world."""

    check: str
    told: str
    world: int | None = None
    cause: str = ""
    """Cause of the failure. Findings of the same check and cause are one failure; if empty, `told` without its numbers
    and names is used."""

    @property
    def key(self) -> tuple[str, str]:
        """Key by which failures are grouped."""
        return self.check, self.cause or re.sub(r"<[^<>]*>|'[^']*'|\([^()]*\)$|\d[\d_,.]*", "#", self.told)


def lines(findings: Sequence[Finding], worlds: Mapping[int, World], kind: str) -> list[str]:
    """Return one line for each failure, with the first world that shows it. `kind` is the kind of policy to leave out
    of the world's description."""
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
