"""Where drafting stops paying off, and that a drafter that weighs cost and gain notices."""

from __future__ import annotations

import pytest

from servesim.run.simulate import simulate
from servesim_lab.claims import find


@pytest.mark.slow
def test_drafts_help_a_light_load_and_hurt_a_heavy_one() -> None:
    (experiment,) = find("speculation-crossover")
    rows = {row.what: row for row in experiment.run(experiment.given()).rows}
    for row in rows.values():
        print(row.what, row.published, row.simulated, row.verdict)
    light, heavy = (float(rows[f"ShareGPT, 0.5B drafter, {load}"].simulated) for load in ("1 request/s", "high load"))
    busy = float(rows["CNN/DM, n-gram, high load"].simulated)
    assert light == pytest.approx(1.5, rel=0.02)  # what the acceptance is set by
    assert busy == pytest.approx(0.56, rel=0.02)  # what the time of a lookup is set by
    assert heavy < 1 / 1.4
    assert float(rows["k by goodput, worst load"].simulated) > 0.97
    assert rows["MagicDec, llama-3.1-8b, from batch 16 to 128"].verdict == "reproduced"


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1, 8, 18, 30])
def test_k_by_goodput_is_never_3_percent_behind_the_best_fixed_k(rate: int) -> None:
    def latency(speculation: str) -> float:
        run = simulate(
            trace=f"synth:prompt=220,output=190,rate={rate}",
            requests=300,
            model="llama-3.1-70b",
            gpu="h100",
            tp=4,
            kv="paged",
            engine={"max_model_len": 4096},
            speculation=speculation,
            acceptance=None if speculation == "none" else "independent:alpha=0.7",
        )
        return float(run.summary["latency_ms"]["e2el"]["mean"])

    drafter = "draft-model:model=qwen3-0.6b"
    best = min(latency("none"), *(latency(f"{drafter},k={k}") for k in (1, 2, 3, 4, 5)))
    adaptive = latency(f"{drafter},k=5,adapt=goodput")
    print(f"{rate} requests/s: best fixed k {best:.0f} ms, goodput {adaptive:.0f} ms ({adaptive / best - 1:+.1%})")
    assert adaptive <= 1.03 * best
