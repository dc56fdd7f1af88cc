"""Drafts on real kernels: speedups by model pair, the limit of free verification, drafts compared with batching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.cost import build_cost_model
from servesim.hardware import Gpu, ModelSpec
from servesim.run.simulate import simulate

from . import Bars, Curve, Given, Lines, Outcome, Row, experiment
from .batches import decode
from .outcome import COURSE

EXACT = 0.02
"""Relative distance within which a simulation of many tokens matches a closed form."""


def formula(alpha: float, k: int) -> float:
    """Return the tokens per step: 1 + alpha + ... + alpha^k (Leviathan et al., ICML 2023, equation 1)."""
    return float(sum(alpha**i for i in range(k + 1)))


@dataclass(frozen=True)
class Served:
    """Figures of clients in a closed loop."""

    ms: float
    """Mean time per output token after the first, in ms."""
    throughput: float
    """Output tokens/s."""
    rows: float
    """Tokens through the target's decode steps per output token."""


def serve(base: Given, clients: int, drafter: str = "", alpha: float = 0.0, k: int = 0) -> Served:
    """Serve `clients` clients that send the next prompt when the previous output has arrived; k = 0 means no drafts."""
    settings: dict[str, Any] = {
        "requests": max(8, 2 * clients),
        **base,
        "clients": {"max_concurrency": clients},
    }
    if k:
        method = f"{drafter}{',' if ':' in drafter else ':'}k={k}"
        settings |= {"speculation": method, "acceptance": f"independent:alpha={alpha}"}
    result = simulate(settings)
    steps, drafted = result.steps, result.summary["speculation"]
    decodes = int((steps["decode_count"] * steps["k"]).sum()) + (drafted["draft_tokens"] if drafted else 0)
    return Served(
        ms=float(result.summary["latency_ms"]["tpot"]["mean"]),
        throughput=float(result.summary["throughput"]["output_throughput"]),
        rows=decodes / int((result.requests["output_len"] - 1).sum()),
    )


@experiment(
    "draft-pairs",
    group="speculation",
    claim="70 % acceptance doubles speed; 7B for 70B 2-2.5x, 68M for 7B 1.5-2x, n-gram 1.3-1.8x, self-drafts 1.5-2x",
    source=COURSE,
)
def draft_pairs(given: Given) -> Outcome:
    """Return the speedup of each pair at the k that is best for one client, and its speedup with many clients."""
    outcome = Outcome()
    found: dict[str, Sequence[float]] = {}
    one, many = given["clients"]
    for pair, about in given["pairs"].items():
        base = {**given["base"], **{key: about[key] for key in ("model", "tp") if key in about}}
        plain = {clients: serve(base, clients).ms for clients in (one, many)}
        for alpha in about["alphas"]:
            speed, busy = (
                {k: plain[clients] / serve(base, clients, about["drafter"], alpha, k).ms for k in given["ks"]}
                for clients in (one, many)
            )
            k, later = (max(given["ks"], key=ratios.__getitem__) for ratios in (speed, busy))
            most = max(formula(alpha, n) / (1 + n * about["draft_pass"]) for n in given["ks"])
            name = f"{pair}, {100 * alpha:.0f} % right"
            found[name] = speed[k], busy[k]
            note = f"k = {k}; at most {most:.2f}x where passes cost the weights they read"
            verdict = "corrected" if speed[k] <= most * (1 + EXACT) else "differs"
            what = f"{name}, {one} client"
            outcome.near(what, about["claimed"], speed[k], "x", within=0.05, otherwise=verdict, note=note)
            note = f"best k there: {later}, {busy[later]:.2f}x"
            outcome.add(Row(f"{name}, {many} clients", "-", f"{busy[k]:.2f} x", "shown", note))
    outcome.notes.append("speed-up of mean TPOT; a lookup is taken to find something for every token: an upper bound")
    outcome.figures.append(
        Bars(
            "pairs",
            "Speed-up of a token by drafts",
            f"Every pair speeds up a single client; with {many} clients most of the gain is gone or turned around.",
            "time of a token without drafts / with",
            found,
            (f"{one} client", f"{many} clients"),
            level=(1.0, "without drafts"),
        )
    )
    return outcome


@experiment("draft-verification", group="speculation", claim="Verifying k tokens costs the same as one", source=COURSE)
def draft_verification(given: Given) -> Outcome:
    """Return the price of a step by the number of tokens verified per sequence."""
    outcome = Outcome()
    cost = build_cost_model(ModelSpec.load(given["model"]), Gpu.load(given["gpu"]), given["tp"])
    lengths = [2**i for i in range(10)]
    curves = []
    k, same = given["k"], given["same"]
    for batch in given["batches"]:
        one = cost.price(decode(batch, given["context"], 1)).ns
        ratios = [cost.price(decode(batch, given["context"], n)).ns / one for n in range(1, lengths[-1] + 1)]
        curves.append(Curve(f"batch {batch}", lengths, [ratios[n - 1] for n in lengths]))
        free = next((n for n, ratio in enumerate(ratios) if ratio > same), len(ratios))
        note = f"within {100 * (same - 1):.0f} % up to {free} of each sequence, {free * batch} tokens in the step"
        what = f"{k} drafts and the target's token against one token, batch {batch}"
        outcome.near(what, 1.0, ratios[k], "x", within=same - 1, otherwise="corrected", note=note)
    name, gpus = given["model"], f"{given['tp']} x {given['gpu']}"
    outcome.notes.append(
        f"{name} on {gpus}, contexts of {given['context']:,} tokens: free while weights are waited for"
    )
    outcome.figures.append(
        Lines(
            "verification",
            "Step time by tokens verified",
            "Flat for one sequence up to some sixty tokens; the larger the batch, the sooner it rises.",
            "tokens verified for each sequence",
            "step time / that of one token each",
            curves,
            log="xy",
            level=(1.0, "as one token"),
        )
    )
    return outcome


@experiment(
    "drafts-or-batching",
    group="speculation",
    claim="Speculation lowers latency but uses more compute; batching the reverse",
    source=COURSE,
)
def drafts_or_batching(given: Given) -> Outcome:
    """Return latency, throughput and work by the number of clients, with and without drafts."""
    outcome = Outcome()
    clients = given["clients"]
    plain = [serve(given["base"], n) for n in clients]
    drafted = [serve(given["base"], n, given["drafter"], given["alpha"], given["k"]) for n in clients]
    one, last = plain[0], plain[-1]
    speed, work = drafted[0].ms / one.ms, drafted[0].rows / one.rows
    outcome.holds("drafts for one client: time of a token", "less", f"{speed:.2f} x", speed < 1)
    outcome.holds("drafts for one client: tokens computed for one", "more", f"{work:.2f} x", work > 1)
    slower, faster = last.ms / one.ms, last.throughput / one.throughput
    outcome.holds(f"{clients[-1]} clients to one: time of a token", "more", f"{slower:.2f} x", slower > 1)
    outcome.holds(f"{clients[-1]} clients to one: tokens/s of the same GPUs", "more", f"{faster:.1f} x", faster > 1)
    ratios = [d.throughput / p.throughput for d, p in zip(drafted, plain, strict=True)]
    outcome.add(Row("drafts lower throughput from", "-", crossing(clients, ratios), "shown"))
    outcome.notes.append("the experiment speculation-crossover has it by requests per second")
    outcome.figures.append(
        Lines(
            "clients",
            "With drafts / without, by clients",
            f"Drafts raise throughput of few clients and lower it from {crossing(clients, ratios)}; {work:.2f} tokens "
            "are computed for one, whatever the load.",
            "clients",
            "with drafts / without",
            [
                Curve("output tokens/s", clients, ratios),
                Curve("speed of a token", clients, [p.ms / d.ms for d, p in zip(drafted, plain, strict=True)]),
                Curve(
                    "tokens computed for one", clients, [d.rows / p.rows for d, p in zip(drafted, plain, strict=True)]
                ),
            ],
            log="x",
            level=(1.0, "without drafts"),
        )
    )
    return outcome


def crossing(clients: Sequence[int], ratios: Sequence[float]) -> str:
    """Return the number of clients at which the ratio first falls below 1, interpolated in the logarithm of the
    clients."""
    after = next((i for i, ratio in enumerate(ratios) if ratio < 1), None)
    if not after:
        return f"{clients[0]} clients on" if after == 0 else f"nowhere up to {clients[-1]} clients"
    part = (ratios[after - 1] - 1) / (ratios[after - 1] - ratios[after])
    low, high = clients[after - 1], clients[after]
    return f"{low * (high / low) ** part:.0f} clients on"
