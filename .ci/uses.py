"""Runs and results of a build that belong to a feature: `uses.py NAME BUILD`, with the lines for runs.py as input.

Prints the sections of summary.json that are its own, in a line, and then the name of each run that asks for it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from servesim.contracts.feature import installed
from servesim.plugins.trust import trusting
from servesim.run.pools import pool_scenarios
from servesim.run.scenario import Scenario
from servesim.run.setting_names import load_settings


def main(name: str, build: str) -> None:
    """Print them."""
    (feature,) = (each for each in installed() if each.name == name)
    print(*dict.fromkeys(group.section for group in feature.groups()))
    options = {f"--{option.replace('_', '-')}" for option in feature.Options.model_fields}
    for line in sys.stdin.read().splitlines():
        run, *words = shlex.split(line)
        scenario = Scenario.of(load_settings(Path(f"{run}.{build}", "scenario.yaml")))
        scenarios = [scenario, *(pool.scenario for pool in pool_scenarios(scenario))]
        if options & {*words} or any(map(feature.is_on, scenarios)):
            print(run)


if __name__ == "__main__":
    with trusting(True):  # the runs' own schedulers and allocators
        main(*sys.argv[1:])
