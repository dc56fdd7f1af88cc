"""SmartSpec: only drafts that pay off, and none under load."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, experiment


@dataclass(frozen=True)
class Point:
    """Figures for one acceptance rate at one request rate."""

    gain: float
    """Ratio of mean end-to-end latency without drafts to that with drafts."""
    fixed: float
    """Same ratio with a fixed number of drafts in every step."""
    drafts: float
    """Average number of drafts per decoded token position, if their number is chosen."""


@experiment(
    "goodput-drafts",
    group="published",
    claim="Choosing the number of drafts by goodput lowers mean latency up to 3.2 times and never raises it",
    source="Liu et al., SmartSpec / TurboSpec, arXiv 2406.14066",
)
def goodput_drafts(given: Given) -> Outcome:
    """Return gains and drafts by load, for several acceptance rates."""
    outcome = Outcome()
    rates, alphas = given["rates"], given["alphas"]
    found = {alpha: [point(given, alpha, rate) for rate in rates] for alpha in alphas}
    best = {alpha: max(one.gain for one in points) for alpha, points in found.items()}
    outcome.near(
        "mean latency without drafts over that with them, at most",
        3.2,
        best[alphas[-1]],
        "x",
        within=0.1,
        note="; ".join(f"acceptance {alpha:g}: {gain:.2f} x" for alpha, gain in best.items()),
    )
    worst = min(one.gain for points in found.values() for one in points)
    fixed = min(one.fixed for points in found.values() for one in points)
    outcome.holds(
        "the same, at least",
        "never slower",
        f"{worst:.2f} x",
        worst > 0.97,
        note=f"with a fixed number {fixed:.2f} x",
        cause="a draft model reads every prompt whether it is asked for drafts later or not, which a busy server feels",
    )
    first, last = ([points[i].drafts for points in found.values()] for i in (0, -1))
    texts = [", ".join(f"{drafts:.2f}" for drafts in ends) for ends in (first, last)]
    outcome.holds(
        "drafts a step under the heaviest load",
        "towards 0",
        f"{texts[1]} at {rates[-1]:g} requests/s",
        all(drafts < 0.1 for drafts in last),
        note=f"at {rates[0]:g} requests/s {texts[0]}; acceptances {', '.join(f'{alpha:g}' for alpha in alphas)}",
        cause="with 70 % accepted a draft still pays off in a full batch of a 70B model on four GPUs",
    )
    _draw(outcome, given, found)
    return outcome


def point(given: Given, alpha: float, rate: float) -> Point:
    """Serve the trace without drafts, with a chosen number of drafts, and with a fixed number."""
    settings = {**given["base"], "trace": f"{given['trace']},rate={rate}"}
    acceptance = f"independent:alpha={alpha}"
    plain = simulate(settings)
    chosen = simulate(settings, speculation=f"{given['drafter']},adapt=goodput", acceptance=acceptance)
    fixed = simulate(settings, speculation=given["drafter"], acceptance=acceptance)
    ms = [run.summary["latency_ms"]["e2el"]["mean"] for run in (plain, chosen, fixed)]
    steps = chosen.steps
    drafts, decodes = ((steps[column] * steps["k"]).sum() for column in ("drafts", "decode_count"))
    return Point(ms[0] / ms[1], ms[0] / ms[2], float(drafts / decodes))


def _draw(outcome: Outcome, given: Given, found: dict[float, list[Point]]) -> None:
    rates = given["rates"]
    for name, title, label, values in (
        ("gain", "Mean latency without drafts over that with them", "speed-up", "gain"),
        ("drafts", "Drafts of each step", "drafts a sequence", "drafts"),
    ):
        curves = [
            Curve(f"acceptance {alpha:g}", rates, [getattr(one, values) for one in points])
            for alpha, points in found.items()
        ]
        said = "; ".join(f"{c.label}: {', '.join(f'{y:.2f}' for y in c.y if y is not None)}" for c in curves)
        outcome.figures.append(
            Lines(
                name=name,
                title=title,
                alt=f"At {', '.join(f'{rate:g}' for rate in rates)} requests/s: {said}.",
                x_label="requests/s",
                y_label=label,
                curves=curves,
                level=(1.0, "neither better nor worse") if name == "gain" else None,
            )
        )
