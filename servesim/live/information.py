"""Pages by which gateways learn what a server is: SGLang's (srt/entrypoints/http_server.py, 0.5.23), and vLLM's
rendering of prompts (entrypoints/scale_out/render, 0.33.0), which vllm-router asks for."""

from __future__ import annotations

from typing import Any

from servesim.contracts.part import ClusterView
from servesim.live.protocol import chat_tokens, prompt_tokens
from servesim.live.watcher import Pages, Visit, Watcher
from servesim.run.scenario import Scenario

PARAMS = ("max_tokens", "min_tokens", "n", "ignore_eos", "stop", "temperature", "top_p", "top_k", "seed")
"""Fields of a request that a rendered one carries on as its sampling parameters."""


class Information(Watcher):
    """Pages about a server of `model`, which runs a scenario."""

    def __init__(self, model: str, scenario: Scenario) -> None:
        self._model, self._scenario = model, scenario

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def pages(self) -> Pages:
        return {
            ("GET", "/model_info"): lambda visit: self._model_info(),
            ("GET", "/get_model_info"): lambda visit: self._model_info(),
            ("GET", "/server_info"): lambda visit: self._server_info(),
            ("GET", "/get_server_info"): lambda visit: self._server_info(),
            ("POST", "/v1/completions/render"): lambda visit: [_rendered(visit, False)],
            ("POST", "/v1/chat/completions/render"): lambda visit: _rendered(visit, True),
        }

    def _model_info(self) -> dict[str, Any]:
        return {
            "model_path": self._model,
            "served_model_name": self._model,
            "tokenizer_path": self._model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": None,
            "architectures": None,
        }

    def _server_info(self) -> dict[str, Any]:
        """Return the limits of the first replica; routers see all replicas as one worker."""
        core = self._cluster.replicas[0].core
        limits = core.scheduler.limits
        return {
            "model_path": self._model,
            "served_model_name": self._model,
            "tp_size": self._scenario.tp,
            "dp_size": 1,
            "context_length": limits.max_model_len,
            "max_running_requests": limits.max_num_seqs,
            "max_total_num_tokens": core.kv.capacity_tokens,
            "chunked_prefill_size": limits.max_num_batched_tokens,
            "disaggregation_mode": "null",
            "internal_states": [],
        }


def _rendered(visit: Visit, chat: bool) -> dict[str, Any]:
    """Return a request with its prompt as token ids."""
    body = visit.body
    return {
        "request_id": str(body.get("request_id") or "rendered"),
        "token_ids": chat_tokens(body) if chat else prompt_tokens(body.get("prompt")),
        "sampling_params": {name: body[name] for name in PARAMS if body.get(name) is not None},
        "model": body.get("model"),
        "stream": body.get("stream") is True,
        "priority": body.get("priority") or 0,
    }
