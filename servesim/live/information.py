"""Pages by which clients and gateways learn what a server is.

OpenAI's list of models; tokens of texts; what SGLang's gateways ask for (srt/entrypoints/http_server.py, 0.5.23); and
vLLM's rendering of prompts (entrypoints/scale_out/render, 0.33.0), for which vllm-router asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.part import ClusterView
from servesim.live.protocol import Refused, chat_tokens, flag, prompt_tokens, whole
from servesim.live.tokens import pieces_of, token_of
from servesim.live.watcher import Pages, Visit, Watcher
from servesim.run.scenario import Scenario

PARAMS = ("max_tokens", "min_tokens", "n", "ignore_eos", "stop", "temperature", "top_p", "top_k", "seed")
"""Fields of a request that a rendered one carries on as its sampling parameters."""


KEPT_PIECES = 1 << 20
"""Maximum number of pieces that /detokenize remembers."""


class Information(Watcher):
    """Pages about a server of `model`, which runs a scenario."""

    def __init__(self, model: str, scenario: Scenario) -> None:
        self._model, self._scenario = model, scenario
        self._pieces: dict[int, str] = {}

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def pages(self) -> Pages:
        return {
            ("GET", "/ping"): lambda visit: {},
            ("GET", "/health_generate"): lambda visit: {},
            ("GET", "/version"): lambda visit: {"version": self.driver.setup.scenario.engine.version or "unknown"},
            ("GET", "/v1/models"): lambda visit: self._models(),
            ("POST", "/tokenize"): lambda visit: self._tokenize(visit.body),
            ("POST", "/detokenize"): lambda visit: self._detokenize(visit.body),
            ("GET", "/model_info"): lambda visit: self._model_info(),
            ("GET", "/get_model_info"): lambda visit: self._model_info(),
            ("GET", "/server_info"): lambda visit: self._server_info(),
            ("GET", "/get_server_info"): lambda visit: self._server_info(),
            ("POST", "/v1/completions/render"): lambda visit: [_rendered(visit, False)],
            ("POST", "/v1/chat/completions/render"): lambda visit: _rendered(visit, True),
        }

    def _models(self) -> dict[str, Any]:
        one = {"id": self._model, "object": "model", "created": 0, "owned_by": "servesim", "root": self._model}
        return {"object": "list", "data": [{**one, "max_model_len": self._max_model_len()}]}

    def _tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if "messages" in body:
            tokens = chat_tokens(body)
        else:
            prompt = body.get("prompt")
            tokens = prompt_tokens(prompt)
            if isinstance(prompt, str) and len(self._pieces) < KEPT_PIECES:
                self._pieces |= {token_of(piece): piece for piece in pieces_of(prompt)}
        return {"count": len(tokens), "max_model_len": self._max_model_len(), "tokens": tokens}

    def _detokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise Refused(400, "tokens must be a list of token ids")
        return {"prompt": "".join(self._pieces.get(token, f" t{token}") for token in tokens)}

    def _max_model_len(self) -> int:
        return int(self.driver.setup.scenario.engine.max_model_len)

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
        "stream": flag(body, "stream"),
        "priority": whole(body, "priority", 0, -(1 << 31)),
    }
