"""Recommendation: of everything that runs a model on known GPUs, what to run for a workload and its SLO.

The space (space.py) is searched from coarse to fine on common random numbers:

1. The cost model bounds the price of every structure: GPU, engine, formats, parallelism (bounds.py).
2. Short runs screen structures in the order of their bounds. A structure is measured only if it carries the load at
   which it would be near the best so far; one whose bound is higher does not run (race.py).
3. The few that are left are improved flag by flag, then by several random changes at once.
4. The best of each structure are compared by `capacity` at full length, with its verdicts and intervals.

The document is that of servesim.experiments.capacity with one more key, `recommendation` (answer.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim import launch
from servesim.experiments.axes import load_grid
from servesim.experiments.capacity import Terms, answer_with, opened
from servesim.experiments.objects import Objects
from servesim.experiments.recommend.answer import finished
from servesim.experiments.recommend.question import Question
from servesim.experiments.recommend.search import Search
from servesim.experiments.store import DEPLOY
from servesim.parsing import listed
from servesim.plugins.trust import takes_trust
from servesim.run.result_files import write_text

if TYPE_CHECKING:
    import pandas as pd


@takes_trust
def recommend(
    scenario: str | Path | Mapping[str, Any] | None = None,
    *,
    gpus: int | None = None,
    budget: float | None = None,
    latency: str | None = None,
    tune: bool = False,
    search_seed: int = 0,
    forms: str | Sequence[str] | None = None,
    **asked: Any,
) -> pd.DataFrame:
    """Find the best deployment for a workload and an SLO.

    A setting with one value is fixed, one with several values is searched over these, and the others are searched over
    everything that runs. With a `rate`, which a recorded log has (`1x`), the cheapest deployment is searched; without
    one, the least price per request at the highest rate; with `gpus`, the highest rate of that number of GPUs; with
    `budget`, the highest rate for these dollars per hour; with a `rate` and one of these two, the least latency of what
    they buy: p99 of `latency` (ttft, tpot or e2el; by default the first that has a limit). `tune` keeps hardware and
    engine, and searches flags alone.
    `forms` are names of files to write below `out` (servesim.launch). Other keywords are those of `servesim.capacity`.
    The document is in `.attrs["document"]`. Raises UserError if the question is invalid, or if nothing in it runs.
    """
    terms, axes = Terms.of(asked)
    objects = Objects()
    settings, lists = load_grid(objects.named(scenario), objects.named(axes))
    question = Question.of(settings, lists, terms, objects, gpus, budget, tune, latency)
    if question.aim.metric:  # the error is that of latencies (latency_error.py), not of rates and numbers of replicas
        terms = terms._replace(intervals=False)
    wanted = ["command", *(listed("form", forms) if isinstance(forms, str) else forms or ())]
    launch.check_forms(wanted)
    with opened(terms, objects, question.space.base) as runner:
        finalists, story = Search(question, runner, random.Random(search_seed)).run()
        near = story.near()
        frame = answer_with(runner, finalists, terms, lambda found: finished(found, story, wanted), near)
    found = frame.attrs["document"]["recommendation"]
    if found is not None and terms.out is not None:
        folder = Path(terms.out) / DEPLOY
        folder.mkdir(exist_ok=True)
        for name, text in found["run"]["files"].items():
            write_text(folder / name, text, "--out")
    return frame
