"""Tensor parallelism of deployments for which none is given and whose model does not fit on one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from servesim.contracts.warn import Warn
from servesim.errors import PolicyError, UserError
from servesim.experiments.axes import Variant
from servesim.experiments.named import several
from servesim.experiments.replicates import WORKLOAD
from servesim.hardware.memory import TP_DEGREES, NoRoom
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.workload.trace import Trace

GIVEN = ("tp", "pd", "pools")
"""Settings that determine the number of GPUs of a replica."""


def with_smallest_tp(variants: Sequence[Variant]) -> tuple[list[Variant], list[Warn]]:
    """Return the variants, with the smallest tp that has room for the model where none is given and one GPU has no
    room, and a warning that names the tp of each."""
    found, chosen = [], dict[str, int]()
    for v in variants:
        tp = None if any(v.settings.get(key) for key in GIVEN) else _smallest(v)
        if tp is not None:
            v = replace(v, axes={**v.axes, "tp": tp}, settings={**v.settings, "tp": tp})
            chosen[f"--tp {tp} for {v.label or '{model} on {gpu}'.format_map(v.settings)}"] = tp
        found.append(v)
    if not chosen:
        return found, []
    said = f"one GPU has no room for the model, so the smallest tp that fits is used: {several([*chosen], ', ')}"
    larger = [str(tp) for tp in TP_DEGREES if tp >= min(chosen.values())]
    return found, [Warn(said + (f"; give --tp {','.join(larger)} to compare with more" if larger[1:] else ""))]


def set_up_alone(given: Mapping[str, Any]) -> Setup:
    """Return a deployment that is ready to serve one small request. Raise UserError or PolicyError if it cannot
    run."""
    settings = {key: value for key, value in given.items() if key not in WORKLOAD or key == "acceptance"}
    one = Trace.from_lengths("one", [0], [1], [1])
    return set_up(Scenario.of({**settings, "trace": "object:one", "stream": False}), one)


def _smallest(v: Variant) -> int | None:
    """Return the smallest tp that has room, or None if one GPU has room, no tp has, or the deployment has another
    error, which its runs report."""
    try:
        set_up_alone(v.settings)
    except NoRoom as error:
        return error.tp
    except (UserError, PolicyError):
        pass
    return None
