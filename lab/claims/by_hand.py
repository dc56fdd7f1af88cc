"""Small figures of the texts that a few lines settle: softmax at a temperature, cached prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servesim.contracts import Batch

from . import Given, Outcome, Row, amount, experiment
from .batches import cost_of
from .outcome import COURSE


@experiment(
    "by-hand",
    group="choices",
    claim="Distillation at a temperature of 4 shows that a dog is about twice as likely as a car; cached input tokens "
    "are 90 % off",
    source=COURSE,
)
def by_hand(given: Given) -> Outcome:
    """Compute the softmax of logits again, and what a cached prompt token costs."""
    outcome = Outcome()
    _distilled(outcome, given["distillation"])
    _cached(outcome, given["cached"])
    return outcome


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """Return the probabilities of logits at a temperature (Hinton et al., arXiv 1503.02531)."""
    scaled = np.exp((np.asarray(logits) - max(logits)) / temperature)
    return [float(x) for x in scaled / scaled.sum()]


def _distilled(outcome: Outcome, given: Given) -> None:
    temperature = given["temperature"]
    for who, one in given["models"].items():
        found = softmax([-step for step in one["below"]], temperature)
        note = f"logits {' and '.join(f'{step:g}' for step in one['below'][1:])} below the first, set by these figures"
        what = f"{who}, softmax at {temperature:g}"
        outcome.add(Row(what, _told(one["published"]), _told(found), "calibrated", note))
    (_, dog, car), what = softmax([-step for step in given["models"]["teacher"]["below"]], temperature), "dog to car"
    told = f"{amount(dog)} over {amount(car)}: one logit more is e^(1/4), not 2"
    outcome.near(f"teacher, {what}, softmax at {temperature:g}", 2, dog / car, "x", otherwise="corrected", cause=told)


def _told(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.3f}" for share in shares)


def _cached(outcome: Outcome, given: Given) -> None:
    """Compare a prompt whose beginning is in the cache with one that is computed."""
    cost = cost_of(given["base"])
    for cached in given["tokens"]:
        new = given["new"]
        prompts = ((cached + new, 0), (new, 0), (new, cached))  # new tokens and those before them
        computed, alone, hit = (cost.price(Batch(n, [(n, before)], sampled=1)).ns for n, before in prompts)
        off = 100 * (1 - (hit - alone) / (computed - alone))
        what = f"cached input tokens, {cached:,} before {new} new ones"
        note = "GPU time alone: memory that holds them, and the provider's margin, have no price here"
        outcome.near(what, 90, off, "% off", within=0.05, note=note, cause="new tokens still attend to them")
