"""Course claims about speculative decoding, compared with the formula and with simulated runs.

The course's own model, in which a target pass costs the same for any number of verified tokens, is a one-line cost
model. `drafts_served.py` prices passes from kernel tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.contracts import Batch, CostModel
from servesim.draws import uniform
from servesim.engine.cluster import Cluster
from servesim.engine.pool import Pool
from servesim.run.scenario import Scenario
from servesim.run.setup import set_up
from servesim.workload.workload import TraceWorkload

from . import Curve, Given, Lines, Outcome, Row, experiment, sampling
from .drafts_served import EXACT, formula, serve
from .outcome import COURSE


@dataclass
class ConstantPasses(CostModel):
    """Cost model with a target pass of one millisecond for any number of tokens, and a draft pass of a share of
    that."""

    share: float = 0.0
    more_passes: int = 0
    """Number of draft passes beyond those that the step proposes."""

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        """Return the times of the steps, as the contract describes."""
        passes = batch.draft_k + self.more_passes if batch.draft_k else 0
        return np.full(k, round(1e6 * (1 + self.share * passes)), dtype=np.int64)


@dataclass(frozen=True)
class Decoded:
    """Figures of one request under the course's model."""

    tokens: float
    """Output tokens per target pass."""
    ms: float
    """Time per output token; 1 without drafts."""


def decode(alpha: float, k: int, cost: CostModel, tokens: int) -> Decoded:
    """Serve a single request of `tokens` tokens with `k` drafts per step, each right with probability `alpha`."""
    scenario = Scenario.of(
        {
            "trace": f"synth:prompt=1,output={tokens}",
            "requests": 1,
            "model": "llama-3.1-8b",  # whose times are not used
            "gpu": "h200",
            "kv": "paged",
            "host": "none",
            "engine": {"async_scheduling": False},
            "speculation": f"eagle:k={k}",
            "acceptance": f"independent:alpha={alpha}",
        }
    )
    setup = set_up(scenario)
    cluster = Cluster(
        TraceWorkload(setup.trace, setup.predicted), [Pool(setup.cores, cost, setup.pools[0].pool.depth)], setup.router
    )
    cluster.run()
    steps = cluster.recorder.steps
    elapsed = cluster.now_ns - int(setup.trace.arrival_ns[0])
    return Decoded(tokens / int((steps.column("sampled") * steps.column("k")).sum()), elapsed / 1e6 / tokens)


def held(outcome: Outcome, what: str, claimed: float, got: float, right: float, unit: str = "", note: str = "") -> None:
    """Compare a claim with a simulated figure; the verdict is "corrected" if the figure matches the closed form and the
    claim does not."""
    verdict = "corrected" if abs(got / right - 1) <= EXACT else "differs"
    closed = f"closed form {right:.2f}"
    outcome.near(what, claimed, got, unit, within=EXACT, otherwise=verdict, note=closed, cause=note)


@experiment(
    "draft-tokens",
    group="speculation",
    claim="k drafts, each right with chance alpha, bring k alpha + 1 tokens a pass, and as much speed",
    source=f"{COURSE}; Leviathan et al., ICML 2023",
)
def draft_tokens(given: Given) -> Outcome:
    """Return the tokens and speedup by acceptance, for one request of many tokens."""
    outcome = Outcome()
    k, cost, tokens = given["k"], ConstantPasses(given["draft_pass"]), given["tokens"]
    found = {alpha: decode(alpha, k, cost, tokens) for alpha in (0.7, 0.8, 0.9)}
    note = "k alpha + 1 counts drafts that would be right after a wrong one; those are thrown away"
    held(outcome, f"tokens a pass, alpha 0.8, k {k}", 0.8 * k + 1, found[0.8].tokens, formula(0.8, k), "", note)
    right = formula(0.8, k) / (1 + k * given["draft_pass"])
    what = f"speed-up, alpha 0.8, k {k}, draft pass {given['draft_pass']}"
    held(outcome, what, 2.9, 1 / found[0.8].ms, right, "x")
    held(outcome, f"tokens a pass, alpha 0.9, k {k}", 4.6, found[0.9].tokens, formula(0.9, k))
    held(outcome, "tokens a pass at 70 %, the lower end", 3, found[0.7].tokens, formula(0.7, k))
    held(outcome, "tokens a pass at 90 %, the upper end", 5, found[0.9].tokens, formula(0.9, k))
    why = "T5 is an encoder and a decoder, which no config.json read here describes; the formula is the row above"
    outcome.add(Row("speed-up of T5-XXL, one request", "2 to 3 x", "-", "out of reach", why, "published"))
    outcome.near(f"speed-up at 70 %, k {k}", 2, 1 / found[0.7].ms, "x", within=0.05, otherwise="corrected")
    alphas = np.linspace(0.5, 0.98, 13).round(3).tolist()
    outcome.figures.append(
        Lines(
            "tokens",
            f"Tokens a pass with {k} drafts",
            f"The claimed line lies above the simulated points, which lie on the closed form: {found[0.8].tokens:.2f} "
            f"instead of {0.8 * k + 1:.2f} tokens where 80 % are right.",
            "chance that a draft is right",
            "tokens a pass",
            [
                Curve("claimed: k alpha + 1", alphas, [k * a + 1 for a in alphas]),
                Curve("closed form", alphas, [formula(a, k) for a in alphas]),
                Curve("simulated", alphas, [decode(a, k, cost, tokens // 5).tokens for a in alphas], joined=False),
            ],
        )
    )
    return outcome


@experiment(
    "draft-bonus",
    group="speculation",
    claim="A loop that ends a pass at the last accepted draft brings what the formula says",
    source=f"{COURSE}, both code sketches",
)
def draft_bonus(given: Given) -> Outcome:
    """Show that a pass without the target's bonus token after k right drafts gains as much as k - 1 drafts, and costs
    as much as k."""
    outcome = Outcome()
    alpha, k, share = given["alpha"], given["k"], given["draft_pass"]
    sketch = decode(alpha, k - 1, ConstantPasses(share, more_passes=1), given["tokens"])
    right, with_bonus = formula(alpha, k - 1), formula(alpha, k)
    note = f"the bonus token is worth {with_bonus - right:.2f} tokens a pass"
    held(outcome, f"tokens a pass, alpha {alpha}, k {k}", with_bonus, sketch.tokens, right, "", note)
    p, q = (np.array(given["sampled"][name]) for name in ("p", "q"))
    by_draws = sketch_tokens(p, q, k, given["sampled"]["steps"])
    shared = sampling.acceptance_probability(p, q)
    held(outcome, "the same by rejection sampling", formula(shared, k), by_draws, formula(shared, k - 1))
    paid = 1 + k * share
    held(outcome, f"speed-up, draft pass {share}", with_bonus / paid, 1 / sketch.ms, right / paid, "x")
    return outcome


def sketch_tokens(p: NDArray[np.float64], q: NDArray[np.float64], k: int, steps: int) -> float:
    """Return the mean number of tokens of passes that draw k drafts from q, verify them against p, and end at the
    k-th."""
    draws = uniform(0, "sketch drafts", np.arange(steps * k)).reshape(steps, k)
    luck = uniform(0, "sketch verification", np.arange(steps * (k + 1))).reshape(steps, k + 1).tolist()
    drafts = np.searchsorted(np.cumsum(q), draws, side="right").tolist()
    ps, qs = np.tile(p, (k + 1, 1)), np.tile(q, (k, 1))
    return float(np.mean([len(sampling.verify_chain(ps, qs, drafts[i], luck[i])[:k]) for i in range(steps)]))


@experiment(
    "draft-rejected", group="speculation", claim="A wrong draft costs the same as normal decoding", source=COURSE
)
def draft_rejected(given: Given) -> Outcome:
    """Return the ratio of the time per token when no draft is ever right to the time without drafts."""
    outcome = Outcome()
    k, share = given["k"], given["draft_pass"]
    got = decode(0.0, k, ConstantPasses(share), given["tokens"]).ms
    note = "1 + k c: the draft passes are paid for and bring nothing"
    held(outcome, f"a token after {k} wrong drafts, draft pass {share}", 1.0, got, 1 + k * share, "x", note)
    real = serve(given["real"], 1, given["drafter"], 0.0, k).ms / serve(given["real"], 1).ms
    what = f"the same with {given['drafter']} for {given['real']['model']}"
    outcome.near(what, 1.0, real, "x", within=EXACT, otherwise="corrected", note="prices from kernel tables")
    return outcome


@experiment(
    "rejection-sampling",
    group="speculation",
    claim="Target (0.3, 0.7), draft (0.5, 0.5): A is accepted with 0.6, B with 1, and the output is the target",
    source=f"{COURSE}; Leviathan et al., ICML 2023",
)
def rejection_sampling(given: Given) -> Outcome:
    """Check the example by draws and in closed form, and the claim over random distributions."""
    outcome = Outcome()
    p, q = np.array(given["p"]), np.array(given["q"])
    for token, name, claimed in ((0, "A", 0.6), (1, "B", 1.0)):
        got = accepted_share(p, q, token, given["draws"])
        note = f"of {given['draws']:,} drafts; exact {min(1.0, p[token] / q[token]):g}"
        outcome.near(f"{name} accepted", claimed, got, within=EXACT, note=note)
    exact = float(np.abs(sampling.output_distribution(p, q) - p).max())
    outcome.holds("output less target, largest difference", "0", f"{exact:.1g}", exact < 1e-12)
    worst = max(off_target(seed, given["siblings"]) for seed in range(given["random"]))
    what = f"the same over {given['random']} random pairs, chains and trees of up to {given['siblings']} siblings"
    outcome.holds(what, "0", f"{worst:.1g}", worst < 1e-9)
    return outcome


def accepted_share(p: NDArray[np.float64], q: NDArray[np.float64], token: int, draws: int) -> float:
    """Return the acceptance rate of drafts of `token`."""
    luck = uniform(0, "rejection sampling", np.arange(2 * draws)).reshape(draws, 2).tolist()
    ps = np.stack([p, p])
    return float(np.mean([len(sampling.verify_chain(ps, q[None], [token], u)) == 2 for u in luck]))


def off_target(seed: int, siblings: int) -> float:
    """Return the largest deviation of the output from a random target over 2 to 9 tokens."""
    rows = np.arange(2 + seed % 8)
    weights = [-(np.log(uniform(seed, f"random {name}", rows)) ** 3) for name in ("target", "draft")]
    p, q = (weight / weight.sum() for weight in weights)
    trees = [sampling.sibling_output(p, q, width) for width in range(1, siblings + 1)]
    return max(float(np.abs(out - p).max()) for out in (sampling.output_distribution(p, q), *trees))
