"""Both modes say the same in every byte of summary.json but the mode they echo, on shipped tables."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

import servesim
from tests.support.examples import examples

MODELS = {
    "llama-3.1-8b": ("h100", "h200", "a100"),
    "qwen3-0.6b": ("l40s", "h100"),
    "qwen3-30b-a3b": ("h200",),
}
DRAFTS = (None, "ngram:k=3", "draft-model:model=llama-3.2-1b,k=2", "eagle:k=3")


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Small runs over priced tables: contexts within and beyond what was measured, pipelines, drafts."""
    model = draw(st.sampled_from(sorted(MODELS)))
    prompt, output = draw(st.sampled_from([100, 1_000, 9_000])), draw(st.sampled_from([2, 40, 300]))
    found: dict[str, Any] = {
        "trace": f"synth:arrivals=poisson,rate={draw(st.sampled_from([1, 20]))},prompt={prompt},output={output}",
        "requests": draw(st.integers(1, 12)),
        "model": model,
        "gpu": draw(st.sampled_from(MODELS[model])),
        "tp": draw(st.sampled_from([1, 2])),
        "seed": draw(st.integers(0, 5)),
    }
    if draw(st.integers(0, 3)) == 0:
        found["pp"] = 2
    elif model == "llama-3.1-8b" and (drafts := draw(st.sampled_from(DRAFTS))) is not None:
        found["speculation"] = drafts
    return found


@examples(25)
@given(scenarios())
def test_summary_json_is_the_same_bytes_in_both_modes(settings: dict[str, Any]) -> None:
    fast = assert_summaries_agree(settings)
    shares = fast["cost_shares"]
    event(f"several sources: {sum(bool(share) for share in shares.values()) > 1}")
    event(f"drafts: {'speculation' in settings}, stages: {settings.get('pp', 1)}")


def assert_summaries_agree(settings: dict[str, Any]) -> dict[str, Any]:
    """Run a scenario in both modes; return the summary of the fast one, but for the mode."""
    fast, plain = (servesim.simulate(**settings, mode=mode).summary for mode in ("fast", "reference"))
    assert (fast["scenario"].pop("mode"), plain["scenario"].pop("mode")) == ("fast", "reference")
    assert json.dumps(fast) == json.dumps(plain)
    return fast
