"""Sentences on a sweep: the best combination at each rate, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.front_error import at_rates, best_text, front_sentences, without_rate
from servesim.experiments.metrics import metric_label
from servesim.experiments.named import grouped, several
from servesim.experiments.ranking import rate_of
from servesim.metrics.words import valued
from servesim.run.sections import rate_words


def bests_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the best variant at each rate, or of all variants if `rate` is not an axis."""
    found = document["best_by_rate"] if document["best_by_rate"] is not None else [document["best"]]
    return [best for best in found if best is not None]


def answer(document: Mapping[str, Any]) -> str:
    """Return a sentence that names the best combination and its value at each rate."""
    bests = bests_of(document)
    if not bests:
        return _without_choice(document["variants"])
    units = {m["name"]: m["unit"] for m in document["metrics"]}
    names = (" = ".join(without_rate(s, best["rate"]) for s in (best["label"], *best["equal"])) for best in bests)
    values = (valued(best["value"], units[best["metric"]]) + at_rates([best["rate"]]) for best in bests)
    parts = [f"{name}, {several(each, ', ')}" for name, each in grouped(zip(names, values, strict=True)).items()]
    return f"Best {metric_label(bests[0]['metric'])}: {several(parts, room=300)}."


def _without_choice(variants: Sequence[Mapping[str, Any]]) -> str:
    """Return the highest rates that are carried, if no rate has several combinations to choose from."""
    ran = [v for v in variants if v["status"] == "ok"]
    if not ran:
        return "All combinations failed."
    if not any(v["stability"] != "unstable" for v in ran):
        return "No combination is stable, so none is the best."
    if rate_of(ran[0]) is None:
        return "No combination has a value for this metric, so none is the best."
    kinds = {
        "the queue is stable": [v for v in ran if v["stability"] == "stable"],
        "the SLO is met": [v for v in ran if v["stability"] != "unstable" and v["meets_slo"]],
    }
    highest = {said: max(found, key=lambda v: rate_of(v) or 0.0) for said, found in kinds.items() if found}
    said = " and ".join(f"{said} up to {rate_words(v['axes']['rate'])}{_with(v)}" for said, v in highest.items())
    return f"{said[0].upper()}{said[1:]}." if said else "The runs are too short to tell which rates are sustainable."


def _with(variant: Mapping[str, Any]) -> str:
    """Return the settings of a combination other than its rate, or an empty string."""
    label = without_rate(variant["label"], variant["axes"]["rate"]) if len(variant["axes"]) > 1 else ""
    return f" with {label}" if label else ""


def sure(document: Mapping[str, Any]) -> list[str]:
    """Return sentences on how certain the best combinations and the fronts are, given the model's error; what several
    rates have in common, and what is not known of them, is said once."""
    fronts, bests = front_sentences(document.get("model_error")), bests_of(document)
    rates: dict[str, list[Any]] = {}
    for best in bests:
        text, unknown = best_text(best), "; no error bars: "
        if text and not (text.startswith(unknown) and any(text.removeprefix(unknown) in said for said in fronts)):
            rates.setdefault(without_rate(text, best["rate"]), []).append(best["rate"])
    where = {text: "" if len(these) == len(bests) else at_rates(these) for text, these in rates.items()}
    return [f"best{at}{text.replace(';', ':', 1)}" for text, at in where.items()] + fronts
