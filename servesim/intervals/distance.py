"""Distance of a case from all measured cases: which of its labels are known determines which cells' errors apply to
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servesim.intervals.case import Case

LABELS = ("engine", "precision", "version", "model", "gpu", "deployment")
"""Properties of a case that may be known (measured) or unknown."""


@dataclass(frozen=True)
class Kind:
    """A kind of distance: its name, and the labels of the case that no measured cell shares."""

    name: str
    unknown: tuple[str, ...]
    """Labels that the cross-validation folds hold out; if empty, single cells are held out."""
    says: str


KINDS = (
    Kind("server", (), "this server was measured at other loads or lengths"),
    Kind("deployment", ("deployment",), "engine, version, model and GPU were measured, but not this server"),
    Kind("model", ("model",), "this model was never measured"),
    Kind("version", ("version",), "this engine version was never measured"),
    Kind("gpu", ("gpu",), "this GPU was never measured"),
    Kind("model and version", ("model", "version"), "neither this model nor this engine version was ever measured"),
)
"""Kinds of distance, from near to far. A case belongs to the kind that holds out exactly the case's unknown labels."""

DEPLOYMENT = KINDS[1]
"""Kind of a server that was not measured, of an engine, version, model and GPU that were."""


def label(case: Case, name: str) -> str:
    """Return a label of a case; the version label includes the engine."""
    return f"{case.engine} {case.version}" if name == "version" else str(getattr(case, name))


def kind_of(case: Case, known: Mapping[str, Sequence[str]]) -> tuple[Kind | None, str]:
    """Return the kind of distance of a case, or None and the reason why no fold applies to the case. `known`: measured
    values by label."""
    if case.engine not in known["engine"]:
        return None, f"no server of {case.engine} was measured"
    if case.precision not in known["precision"]:
        return None, f"no server with {case.precision} weights was measured"
    unknown = tuple(name for name in ("model", "version", "gpu") if label(case, name) not in known[name])
    if not unknown:
        return (KINDS[0] if case.deployment in known["deployment"] else KINDS[1]), ""
    found = next((kind for kind in KINDS if kind.unknown == unknown), None)
    names = {"model": f"model {case.model}", "version": f"{case.engine} {case.version or '(no version)'}"}
    words = " and ".join(names.get(name, f"GPU {case.gpu}") for name in unknown)
    return found, "" if found else f"no server with {words} was measured"
