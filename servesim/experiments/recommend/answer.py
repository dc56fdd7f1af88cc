"""Parts that a recommendation adds to the document of a capacity question: `requests`, the number of requests of a log
(null for a workload that is drawn), and `recommendation`, null if no deployment carries any load, else

    aim         what is minimized or maximized, in words (aims.py)
    first       label of the recommended deployment
    settings    its settings, as a scenario
    latency     {metric, ms, low, high: its interval over seeds, or null for a log, model_error: {low, high, level,
                says}, unless it is left out}, only if the least latency is searched; each row has one as well
    front       {latency: metric, points: [{label, gpu, gpus, replicas, rate, usd_per_hour, usd_per_million_tokens, ms,
                headroom: share by which the load may grow at least (null with an autoscaler), on: whether it is on the
                front}]}, the cheapest first (front.py)
    runner_up   null or {label, price_ratio: of prices per request, of rates if the highest is searched, or of latencies
                if the least is; low, high: interval of a ratio of latencies, by seed; says}: the next deployment, and
                why it lost
    miss        null or {label, price_ratio, share, goal, says}: the better deployment that comes closest to the SLO
    published   null or {label, price_ratio, says}: the best deployment with the formats of the published model
    knobs       [{key, value, price_ratio: of the price without it to the price with it, at_least: whether that is only
                a lower bound, share: of the gain (in logarithms), without: the loss in words}], the largest first
    needs       [sentences] on quality to check and parts to obtain
    sure        [sentences] on the model's error of latencies
    changes     [sentences] on what would change the answer
    measure     [sentences] on what to measure to be surer
    not_searched  [{keys, says}]
    run         {command: null if no single command starts it, lost: {setting: value} of the deployment that the command
                cannot hold, forms: names of the forms that can hold it, files: {name: text}}
    search      {structures: number of combinations of hardware, engine and formats, refused: of which cannot run,
                screened: number run at least once, improved: number of flags and features tried, runs}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.experiments.axes import Variant
from servesim.experiments.capacity import Found
from servesim.experiments.capacity_answer import ordered
from servesim.experiments.recommend.aims import Aim, LeastLatency
from servesim.experiments.recommend.budget import ratio_interval, timed
from servesim.experiments.recommend.front import front
from servesim.experiments.recommend.latency_error import LatencyError, sure_words
from servesim.experiments.recommend.question import Question
from servesim.experiments.recommend.race import NEAR, Entrant, Race
from servesim.experiments.recommend.words import (
    NOT_SEARCHED,
    changes,
    first_words,
    measure_words,
    miss_words,
    published_words,
    ratio_words,
    runner_up_words,
    searched_words,
    sure_price,
    without_words,
)
from servesim.experiments.replicates import WORKLOAD
from servesim.experiments.worth_words import needs
from servesim.run.scenario import Scenario

Row = Mapping[str, Any]
QUESTION = (*WORKLOAD, "model", "gpu", "price", "slo", "slo_percentiles", "slo_classes", "model_classes")
"""Settings of the question, which no command needs to hold."""


@dataclass(frozen=True)
class Story:
    """Course of a search, from which the answer is explained."""

    question: Question
    screening: Race
    coarse: Race
    fine: Race
    entrants: Sequence[Entrant]
    """Structures that run."""
    kept: Sequence[Entrant]
    """Structures near the best, best first."""
    finalists: Mapping[str, Entrant]
    """Deployments compared at full length, by label."""
    refused: Mapping[str, str]
    without: Mapping[str, float]
    """Price of the first deployment without one of its flags, by flag, as a multiple of the price with it."""

    def most(self) -> dict[str, float]:
        """Return the highest rate per replica of the finalists, by label; empty unless the search has measured it."""
        rates = self._rates() if self.question.aim.key == "replicas" else {}
        return {label: rate / self.finalists[label].replicas for label, rate in rates.items()}

    def near(self) -> dict[str, float]:
        """Return the rates near which the finalists reach their limits, by label; empty if the question has a rate."""
        return {} if self.question.aim.key == "replicas" or self.question.aim.metric else self._rates()

    def _rates(self) -> dict[str, float]:
        known = {label: e for label, e in self.finalists.items() if self.fine.price(e) < math.inf}
        found = {label: self.fine.aim.load(e.variant, self.fine.price(e)) for label, e in known.items()}
        return {label: load for label, load in found.items() if load}

    def published(self, row: Row) -> bool:
        """Return whether a finalist has the formats of the published model."""
        return self.question.space.published(self.finalists[row["label"]].point)


def finished(found: Found, story: Story, forms: Sequence[str]) -> None:
    """Add the recommendation to the document of a capacity question, with files of these forms."""
    document, q = found.document, story.question
    if isinstance(q.aim, LeastLatency):
        timed(found, q.goals, q.aim, {label: e.replicas for label, e in story.finalists.items()})
    rows = _ranked([row for row in ordered(found.rows) if row["verdict"] == "carries"], story)
    if rows:
        if q.aim.metric and q.terms.intervals:
            document["model_error"] = LatencyError(found.study, rows, q.aim.metric).add()
        for row in found.rows:
            row["cheapest"] = row is rows[0]
        document["answer"] = first_words(q.aim, rows[0], rows[1:])
    document["workload"] = dict(q.space.base)
    document["requests"] = q.requests
    document["recommendation"] = _recommendation(found, story, rows, forms) if rows else None
    document["notes"].append(searched_words(_search(story)))


def _ranked(rows: Sequence[Row], story: Story) -> list[Row]:
    """Return rows by the price that they surely have: at the low end of the rate's interval, if the rate is searched.
    Of prices that are the same, that of the published formats comes first."""

    def key(row: Row) -> tuple[float, bool, float]:
        price = sure_price(story.question.aim, row)
        return round(math.log(price) / 0.005), not story.published(row), price

    return sorted((row for row in rows if sure_price(story.question.aim, row) < math.inf), key=key)


def _recommendation(found: Found, story: Story, rows: Sequence[Row], forms: Sequence[str]) -> dict[str, Any]:
    q, (first, *others) = story.question, rows
    best = story.finalists[first["label"]]
    settings = _scenario(next(v for v in found.study.variants if v.label == first["label"]), first)
    published = {**settings, **q.space.formats}
    plain = Scenario.of({key: value for key, value in published.items() if value is not None})
    return {
        "aim": q.aim.name,
        "first": first["label"],
        "settings": settings,
        **({"latency": first["latency"]} if "latency" in first else {}),
        "front": front(found, [goal.limits for goal in q.goals], q.aim.metric, story.most()),
        "runner_up": _runner_up(found, q.aim, first, others[0]) if others else None,
        "miss": _miss(story, best),
        "published": _in_published(story, rows),
        "knobs": _knobs(story, best, rows),
        "needs": [*needs(Scenario.of(settings), plain)],
        "sure": sure_words(rows) if q.aim.metric else [],
        "changes": changes(q.aim, found.document, first, others),
        "measure": measure_words(found.document, settings, first),
        "not_searched": [one for one in NOT_SEARCHED if not set(one["keys"]) <= {*q.space.own}],
        "run": _run(settings, forms),
        "search": _search(story),
    }


def _scenario(v: Variant, row: Row) -> dict[str, Any]:
    """Return the settings of a recommended deployment, at the load that it carries."""
    given = {key: value for key, value in v.settings.items() if key != "requests"}
    return {**given, "replicas": row["replicas"]} if row["by"] == "replicas" else given


def _against(aim: Aim, first: Row, other: Row, words: Any) -> dict[str, Any]:
    ratio = sure_price(aim, other) / sure_price(aim, first)
    return {"label": other["label"], "price_ratio": ratio, "says": words(aim, first, other, ratio)}


def _runner_up(found: Found, aim: Aim, first: Row, other: Row) -> dict[str, Any]:
    """Return the next deployment and why it lost; for latencies, with the interval of their ratio."""
    against = _against(aim, first, other, runner_up_words)
    if not aim.metric:
        return against
    low, high = ratio_interval(found.study, first, other, aim.metric) or (None, None)
    return against | {"low": low, "high": high, "says": against["says"] + ratio_words(low, high)}


def _in_published(story: Story, rows: Sequence[Row]) -> dict[str, Any] | None:
    best = next(filter(story.published, rows), rows[0])
    return _against(story.question.aim, rows[0], best, published_words) if best is not rows[0] else None


def _knobs(story: Story, best: Entrant, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what each setting of the first deployment is worth."""
    lost = {key: _without(story, best, rows, key) for key in story.question.space.axes}
    ratios = [(key, *one) for key, one in lost.items() if one is not None]
    ratios += [(key, ratio, False) for key, ratio in story.without.items()]
    gains = {key: math.log(ratio) for key, ratio, _ in ratios if 1 < ratio < math.inf}
    whole = sum(gains.values())
    found = [
        {
            "key": key,
            "value": best.point.get(key),
            "price_ratio": ratio if ratio < math.inf else None,
            "at_least": least,
            "without": without_words(story.question.aim, ratio, least),
            "share": gains[key] / whole if key in gains else None,
        }
        for key, ratio, least in ratios
        if ratio > 1
    ]
    return sorted(found, key=lambda one: -(one["price_ratio"] or math.inf))


def _without(story: Story, best: Entrant, rows: Sequence[Row], key: str) -> tuple[float, bool] | None:
    """Return the ratio of the best price without the first deployment's value of a setting to its own, and whether it
    is only a lower bound: of the deployments compared at full length if there is one, else of short runs. Return None
    if no structure has another value."""
    value, price = best.point.get(key), story.screening.price
    if all(e.point.get(key) == value for e in story.entrants):
        return None
    whole = [sure_price(story.question.aim, r) for r in rows if story.finalists[r["label"]].point.get(key) != value]
    if whole:
        return min(whole) / sure_price(story.question.aim, rows[0]), False
    own = [price(e) for e in story.kept if e.point == {k: best.point.get(k) for k in e.point}]
    near = [price(e) for e in story.kept if e.point.get(key) != value]
    if not own:
        return None
    return (min(near) / min(own), False) if near else (NEAR, True)


def _miss(story: Story, best: Entrant) -> dict[str, Any] | None:
    """Return the deployment that comes closest to the SLO at a load at which it would cost less than the first."""
    if story.question.aim.metric:
        return None  # a deployment that misses the SLO has no latency to compare
    race = story.screening
    own = [race.price(e) for e in story.kept if e.point.items() <= best.point.items()]
    if not own:
        return None
    others = {e.variant.label: e for e in story.entrants if not e.point.items() <= best.point.items()}
    missed = [
        (judged.margin, e, load, judged)
        for (label, load), judged in race.seen().items()
        if (e := others.get(label)) and not judged.carried and race.aim.price(e.variant, load) < min(own)
    ]
    if not missed:
        return None
    _, e, load, judged = max(missed, key=lambda one: (one[0], one[1].variant.label))
    goal, share = story.question.goals[judged.binding], judged.shares[judged.binding]
    ratio = race.aim.price(e.variant, load) / min(own)
    said = miss_words(story.question.aim, e.variant.label, ratio, share, goal.text)
    return {"label": e.variant.label, "price_ratio": ratio, "share": share, "goal": goal.text, "says": said}


def _run(settings: Mapping[str, Any], forms: Sequence[str]) -> dict[str, Any]:
    """Return the command that starts the deployment, if a single one does, what it cannot hold, and files by name: of
    the forms asked for that can hold it, or of the first one that can."""
    from servesim import launch

    able = launch.forms_for(settings)
    written = launch.command(settings) if "command" in able else None
    own = launch.forms_for(settings, forms)
    if own == ["command"] and int(settings.get("replicas") or 1) > 1:  # one command starts one replica
        own += [form for form in able if form != "command"][:1]
    files: dict[str, str] = {}
    for form in own or able[:1]:
        files |= launch.write(settings, form)
    lost = {k: v for k, v in (written.lost if written else {}).items() if k.partition(".")[0] not in QUESTION}
    return {"command": written.text if written is not None else None, "lost": lost, "forms": able, "files": files}


def _search(story: Story) -> dict[str, int]:
    races = {id(race): race for race in (story.screening, story.coarse, story.fine)}.values()
    labels = {label for race in races for label, _ in race.seen()}
    structures = {e.variant.label for e in story.entrants}
    return {
        "structures": len(story.entrants) + len(story.refused),
        "refused": len(story.refused),
        "screened": len(labels & structures),
        "improved": len(labels - structures),
        "runs": sum(race.runs for race in races),
    }
