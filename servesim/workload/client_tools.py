"""Benchmark clients by name: their settings for sending requests, which the user's settings override.

  vllm-bench    `vllm bench serve` (docs.vllm.ai/en/latest/cli/bench/serve): --request-rate inf, else gaps of a gamma
                distribution of shape --burstiness, 1 by default, scaled to the total rate; --max-concurrency none.
  sglang-bench  `python -m sglang.bench_serving` (docs.sglang.io, Bench Serving Guide): --request-rate inf, else
                Poisson; --max-concurrency none.
  aiperf        `aiperf profile` (docs.nvidia.com/aiperf, Arrival Patterns): --request-rate with Poisson gaps, or
                without one --concurrency, 1 by default.
  inferencex    InferenceX's benchmark_serving.py, a fork of vLLM's (github.com/SemiAnalysisAI/InferenceX, benchmarks):
                --request-rate inf, --max-concurrency C, --num-prompts 10 C; its metrics cover all these prompts.

All of them complete their warm-up requests (vllm-bench 1 or --num-warmups, sglang-bench 1, inferencex 2 C, aiperf as
configured) before they send the first measured request, so the measurement starts with an idle server. A simulated
server needs no warm-up, so none of these requests are replayed; their side effect, that their prompts stay in the
prefix cache, is not modeled.

TURN_MS is the time that recorded clients take from an answer to the next request. Requests that end in the same step
also get out of lockstep because tokenizers handle prompts one after the other (servesim.workload.front_end).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.errors import UserError

TURN_MS = 0.08
"""Median time from an answer's last chunk to the next request, measured as 0.065 and 0.087 ms in two closed loops of
256 requests on the server's own host; a network adds one round trip."""
INFERENCEX_PROMPTS = 10
"""Number of prompts in a run per unit of concurrency."""


def under_tool(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in unset settings (those that are None) with the defaults of `clients.tool`, if any."""
    clients = settings.get("clients")
    tool = clients.get("tool") if isinstance(clients, Mapping) else None
    if tool is None:
        return dict(settings)
    assert isinstance(clients, Mapping)
    whole, own = _of(tool, settings.get("rate"), clients.get("max_concurrency"))
    completed = {**settings, **{key: value for key, value in whole.items() if settings.get(key) is None}}
    completed["clients"] = {**clients, **{key: value for key, value in own.items() if clients.get(key) is None}}
    return completed


def _of(tool: Any, rate: Any, concurrency: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a tool's settings for the scenario and for its clients; both are empty for an unknown tool, which
    validation rejects."""
    own: dict[str, Any] = {"turn_ms": TURN_MS}
    if tool == "inferencex":
        if concurrency is None:
            raise UserError("clients.tool inferencex sends at a fixed concurrency: specify clients.max_concurrency")
        return {"rate": "inf", "requests": INFERENCEX_PROMPTS * int(concurrency)}, own
    if tool == "aiperf" and rate is None:
        return {"rate": "inf"}, {**own, "max_concurrency": 1}
    if tool in ("vllm-bench", "sglang-bench", "aiperf"):
        own |= {"burstiness": 1.0} if rate is not None and str(rate) != "inf" else {}
        return {"rate": "inf"}, own
    return {}, {}
