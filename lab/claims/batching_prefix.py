"""Prefix caching: common prompt prefixes are computed once."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.run.simulate import simulate

from . import Curve, Given, Lines, Outcome, Row, experiment


@dataclass(frozen=True)
class Saved:
    """Figures of a workload under one allocator."""

    share: float
    """Share of the prompt tokens found in the cache."""
    computed: int
    """Number of prompt tokens computed."""
    ttft_ms: float
    """Mean time to first token in ms."""


@experiment(
    "prefix-caching",
    group="batching",
    claim="Prefix caching removes up to 90 % of prefill where prompts begin alike",
    source="lecture on batching",
)
def prefix_caching(given: Given) -> Outcome:
    """Serve the same requests with hashed blocks (vLLM), a radix tree (SGLang) and no cache."""
    outcome = Outcome()
    found = {
        name: [saved(given, kv, length) for length in given["prefixes"]] for name, kv in given["allocators"].items()
    }
    longest = given["prefixes"][-1]
    for name in ("hash", "radix"):
        last = found[name][-1]
        less = 1 - last.ttft_ms / found["paged"][-1].ttft_ms
        note = (
            f"mean TTFT {last.ttft_ms:.0f} ms instead of {found['paged'][-1].ttft_ms:.0f} ms ({100 * less:.0f} % less)"
        )
        what = f"prefill removed, {given['allocators'][name]}, {longest} of 1,000 tokens common"
        outcome.near(what, 90, 100 * last.share, "%", within=0.03, note=note)
    nothing = f"{100 * found['hash'][0].share:.0f} % and {100 * found['radix'][0].share:.0f} %"
    outcome.add(Row("prefill removed where prompts share nothing", "-", nothing, "shown"))
    computed = found["paged"][-1].computed
    outcome.add(Row("prompt tokens computed without a cache", "-", f"{computed:,}", "shown"))
    outcome.notes.append(
        "hashed blocks share whole blocks of 16 tokens, the tree single tokens; the first of each group is computed"
    )
    shares = {name: [100 * one.share for one in by] for name, by in found.items()}
    said = "; ".join(f"{name}: {', '.join(f'{share:.0f}' for share in by)} %" for name, by in shares.items())
    outcome.figures.append(
        Lines(
            name="removed",
            title="Prefill removed by the length of the common prefix",
            alt=f"With {', '.join(map(str, given['prefixes']))} of 1,000 tokens common: {said}.",
            x_label="tokens of 1,000 that are common",
            y_label="% of the prompt tokens found in the cache",
            curves=[Curve(name, given["prefixes"], by) for name, by in shares.items()],
        )
    )
    outcome.figures.append(
        Lines(
            name="ttft",
            title="Time to first token",
            alt="Mean TTFT: "
            + "; ".join(f"{n}: {', '.join(f'{s.ttft_ms:.0f}' for s in by)} ms" for n, by in found.items())
            + ".",
            x_label="tokens of 1,000 that are common",
            y_label="mean, ms",
            curves=[Curve(name, given["prefixes"], [one.ttft_ms for one in by]) for name, by in found.items()],
        )
    )
    return outcome


def saved(given: Given, kv: str, length: int) -> Saved:
    """Serve prompts whose first `length` tokens are common to their group."""
    shared = f",prefix=shared(groups={given['groups']},length={length})" if length else ""
    result = simulate(given["base"], trace=given["trace"] + shared, kv=kv)
    prompts, hits = int(result.requests["prompt_len"].sum()), int(result.requests["hit_tokens"].sum())
    steps = result.steps
    computed = int((steps["prefill_tokens"] * steps["k"]).sum())
    return Saved(hits / prompts, computed, result.summary["latency_ms"]["ttft"]["mean"])
