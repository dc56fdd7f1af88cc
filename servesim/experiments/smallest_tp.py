"""Tensor parallelism of deployments for which none is given and whose model does not fit on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from servesim.contracts.warn import Warn
from servesim.errors import PolicyError, UserError
from servesim.experiments.axes import Variant
from servesim.experiments.replicates import WORKLOAD
from servesim.hardware.memory import TP_DEGREES, NoRoom
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up
from servesim.workload.trace import Trace

GIVEN = ("tp", "pd", "pools")
"""Settings that determine the number of GPUs of a replica."""


def with_smallest_tp(variants: Sequence[Variant]) -> tuple[list[Variant], list[Warn]]:
    """Return the variants, with the smallest tp that has room for the model where none is given and one GPU has no
    room, and a warning for each such choice."""
    found, said = [], dict[Warn, None]()
    for v in variants:
        tp = None if any(v.settings.get(key) for key in GIVEN) else _smallest(v)
        if tp is not None:
            v = replace(v, axes={**v.axes, "tp": tp}, settings={**v.settings, "tp": tp})
            more = f" (more may be cheaper: --tp {tp},{2 * tp})" if 2 * tp in TP_DEGREES else ""
            on = f"{v.settings['model']} does not fit on one {v.settings['gpu']}"
            said[Warn(f"{on}, so --tp {tp} is used, the smallest that fits{more}")] = None
        found.append(v)
    return found, [*said]


def _smallest(v: Variant) -> int | None:
    """Return the smallest tp that has room, or None if one GPU has room, no tp has, or the deployment has another
    error, which its runs report."""
    settings = {key: value for key, value in v.settings.items() if key not in WORKLOAD or key == "acceptance"}
    try:
        set_up(Scenario.of({**settings, "trace": "object:one"}), Trace.from_lengths("one", [0], [1], [1]))
    except NoRoom as error:
        return error.tp
    except (UserError, PolicyError):
        pass
    return None
