"""Search with Optuna (extra `search`) that chooses which combinations of a sweep to run if there are too many to run
them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.metrics import Metric

BATCH = 4
"""Number of combinations chosen at a time, so that results do not depend on the number of processes."""


def search(table: Any, variants: Sequence[Variant], goals: Sequence[Metric], trials: int) -> None:
    """Run at most `trials` variants of a sweep's table, choosing later variants near earlier ones that had good
    results.

    A tree-structured Parzen estimator is used for one goal, and NSGA-II for several. Both are seeded. Unstable and
    failed variants are failed trials. Every combination is run at most once; the search ends when all have been run.
    """
    try:
        import optuna
    except ImportError:
        raise UserError("trials: the package optuna is missing (pip install 'servesim[search]')") from None
    if trials < 1:
        raise UserError(f"trials is {trials} but must be at least 1")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    keys = list(variants[0].axes)
    by_values = {tuple(map(str, v.axes.values())): v for v in variants}
    choices = [sorted({values[i] for values in by_values}) for i in range(len(keys))]
    samplers = optuna.samplers
    sampler = samplers.TPESampler(seed=0) if len(goals) == 1 else samplers.NSGAIISampler(seed=0)
    way = optuna.study.StudyDirection
    directions = [way.MINIMIZE if goal.better == "lower" else way.MAXIMIZE for goal in goals]
    study = optuna.create_study(sampler=sampler, directions=directions)
    done: set[tuple[str, ...]] = set()
    repeats = 0
    while len(done) < min(trials, len(by_values)):
        asked = []
        for _ in range(min(BATCH, trials - len(done))):
            trial = study.ask()
            values = tuple(trial.suggest_categorical(key, options) for key, options in zip(keys, choices, strict=True))
            asked.append((trial, values))
        fresh = {values for _, values in asked} - done
        repeats = 0 if fresh else repeats + 1
        if repeats > BATCH:  # it repeats known points: take the next untried one
            fresh = {next(values for values in by_values if values not in done)}
        table.run([by_values[values] for values in by_values if values in fresh])
        done |= fresh
        for trial, values in asked:
            found = [table.value(by_values[values], goal) for goal in goals]
            if None in found:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, found)
