"""Speculators as flags of engines: the inverse of servesim.run.draft_flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from servesim.contracts.section import Settings
from servesim.contracts.speculator import speculators
from servesim.errors import UserError
from servesim.launch.flags import Flag
from servesim.run.draft_flags import ALGORITHM, CONFIG, METHODS, MODEL, NGRAM, STEPS, TOKENS, TOP_K
from servesim.shipped import shipped_yaml

OWN_HEADS = ("mtp", "ngram")
"""Speculators that need no checkpoint beside the model's."""
OPTIONS = "/tmp/extra-llm-api-config.yml"
"""File of TensorRT-LLM's options: trtllm-serve has no flag for drafts."""


@cache
def heads() -> dict[str, dict[str, str]]:
    """Return published draft heads by checkpoint and speculator, as heads.yaml lists them."""
    loaded: dict[str, dict[str, str]] = shipped_yaml("servesim.launch", "heads.yaml")
    return loaded


def draft_flags(engine: str, speculator: Mapping[str, Any], draft: str) -> list[Flag]:
    """Return the flags of vLLM or SGLang that start a speculator, or none for one that the engine does not have.
    `draft`: the checkpoint of the drafts, as `draft_of` returns it."""
    method, tokens = _method(engine, speculator), _tokens(speculator)
    if method is None or tokens is None or engine == "trtllm":
        return []
    if engine == "sglang":
        chain = {STEPS: tokens, TOP_K: 1, TOKENS: tokens + 1}
        model = [Flag(MODEL, draft)] if draft else []
        return [Flag(ALGORITHM, method), *model, *(Flag(name, str(value)) for name, value in chain.items())]
    config: Settings = {"method": method} | ({"model": draft} if draft else {}) | {"num_speculative_tokens": tokens}
    if speculator["name"] == "ngram" and any(name in speculator for name in NGRAM):
        params = speculators.configured(speculator)[1]
        config |= {name: getattr(params, name) for name in NGRAM}
    return [Flag(CONFIG, json.dumps(config))]


def draft_options(engine: str, speculator: Mapping[str, Any], draft: str) -> Settings:
    """Return the options of TensorRT-LLM that start a speculator; none for another engine, or a speculator that it does
    not have. `draft`: as in `draft_flags`."""
    method, tokens = _method(engine, speculator), _tokens(speculator)
    if engine != "trtllm" or method is None or tokens is None:
        return {}
    config = {"decoding_type": method, "max_draft_len": tokens} | ({"speculative_model": draft} if draft else {})
    return {"speculative_config": config}


def draft_of(checkpoint: str, speculator: Mapping[str, Any], checkpoints: Mapping[str, str]) -> str:
    """Return the checkpoint that a speculator drafts with: of its model, of a published head, or a path to fill in;
    empty if it needs none. `checkpoints`: those of bundled models."""
    name = speculator["name"]
    if name in OWN_HEADS:
        return ""
    if name == "draft-model":
        model = str(speculator.get("model", ""))
        return checkpoints.get(model.lower(), model)
    return heads().get(checkpoint, {}).get(name, f"path/to/{name}-head")


def _method(engine: str, speculator: Mapping[str, Any]) -> str | None:
    return next((method for method, name in METHODS[engine].items() if name == speculator["name"]), None)


def _tokens(speculator: Mapping[str, Any]) -> int | None:
    """Return the number of drafts, or None for parameters that are refused when the scenario is run."""
    if speculator["name"] == "draft-model" and not speculator.get("model"):
        return None
    try:
        tokens: int = speculators.configured(speculator)[1].k
    except UserError:
        return None
    return tokens
