"""Flags of engines that draft tokens, read as a speculator: vLLM's `--speculative-config`, SGLang's `--speculative-*`
and TensorRT-LLM's `speculative_config`. Drafts are read where they form chains, which is what the speculators here
have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servesim.contracts.scheduler import schedulers
from servesim.errors import UserError, shown
from servesim.hardware import ModelSpec
from servesim.run.presets import preset_settings
from servesim.untrusted import json_value

CONFIG = "speculative-config"
METHODS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "eagle": "eagle",
        "eagle3": "eagle3",
        "mtp": "mtp",
        "ngram": "ngram",
        "medusa": "medusa",
        "draft_model": "draft-model",
        "deepseek_mtp": "mtp",
        "ernie_mtp": "mtp",
        "glm4_moe_mtp": "mtp",
        "longcat_flash_mtp": "mtp",
        "mimo_mtp": "mtp",
        "pangu_ultra_moe_mtp": "mtp",
        "qwen3_next_mtp": "mtp",
    },
    "sglang": {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft-model"},
    "trtllm": {
        "Eagle3": "eagle3",
        "Eagle": "eagle3",
        "MTP": "mtp",
        "Draft_Target": "draft-model",
        "DraftTarget": "draft-model",
    },
}
"""Speculators by the engines' names of methods; the first name is written. vLLM (vllm/config/speculative.py) takes its
older names of MTP as `mtp`; TensorRT-LLM's PyTorch backend (llmapi/llm_args.py) takes `Eagle` as EAGLE-3."""
ALGORITHM, MODEL, STEPS, TOP_K, TOKENS = SGLANG = (
    "speculative-algorithm",
    "speculative-draft-model-path",
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
)
"""SGLang's flags (sglang/srt/server_args.py): with one token per step, a chain and the token before it are verified."""
NGRAM = ("prompt_lookup_min", "prompt_lookup_max")
_MODEL_NAME = re.compile(r"[\w./-]+")


def speculator_of(engine: str, flags: Mapping[str, Any]) -> tuple[str, tuple[str, ...]] | None:
    """Return the speculator of a command's flags as a setting, and the names of the flags that it stands for; None if
    there is none, or one that is not modeled. Raise UserError for a configuration that is not JSON."""
    found = _of_flags(flags) if engine == "sglang" else _of_config(engine, flags)
    names = SGLANG if engine == "sglang" else (CONFIG,)
    return (found, tuple(name for name in names if name in flags)) if found is not None else None


def verifies(settings: Mapping[str, Any]) -> bool:
    """Return whether the scheduler of a command's engine verifies drafts here."""
    name = preset_settings(settings["preset"])["scheduler"]["name"]
    return "speculation" in schedulers.resolve(name)[0].supports


def _of_flags(flags: Mapping[str, Any]) -> str | None:
    """Return the speculator of SGLang's flags: a chain is one token per step. A head that is no checkpoint of its own
    is the model's."""
    method = METHODS["sglang"].get(str(flags.get(ALGORITHM)))
    steps, tokens = (_count(flags.get(name)) for name in (STEPS, TOKENS))
    if method is None or steps is None or str(flags.get(TOP_K)) != "1" or (TOKENS in flags and tokens is None):
        return None
    return _written("mtp" if method == "eagle" and MODEL not in flags else method, steps, flags.get(MODEL))


def _of_config(engine: str, flags: Mapping[str, Any]) -> str | None:
    if CONFIG not in flags:
        return None
    text = str(flags[CONFIG])
    try:
        config = json_value(text)
    except ValueError:
        raise UserError(f"--serve: --{CONFIG} {shown(text)[:120]} is not JSON") from None
    if not isinstance(config, Mapping):
        return None
    if engine == "trtllm":
        method = METHODS[engine].get(str(config.get("decoding_type")))
        layers = config.get("num_nextn_predict_layers") if method == "mtp" else None
        tokens = _count(layers if layers is not None else config.get("max_draft_len"))
        model = config.get("speculative_model") or config.get("speculative_model_dir")  # its older name
    else:
        method, tokens = METHODS[engine].get(str(config.get("method"))), _count(config.get("num_speculative_tokens"))
        model = config.get("model")
    if method is None or tokens is None:
        return None
    looked = {key: size for key in NGRAM if (size := _count(config.get(key))) is not None} if method == "ngram" else {}
    both = {key: looked.get(key, next(iter(looked.values()))) for key in NGRAM} if looked else {}  # as vLLM does
    return _written(method, tokens, model, both)


def _written(method: str, tokens: int, model: Any, more: Mapping[str, int] | None = None) -> str | None:
    """Return a speculator as a setting, or None for a draft model that is not known."""
    parameters: dict[str, Any] = {"k": tokens, **(more or {})}
    if method == "draft-model":
        if not _is_model(model):
            return None
        parameters["model"] = model
    return f"{method}:{','.join(f'{key}={value}' for key, value in parameters.items())}"


def _is_model(name: Any) -> bool:
    if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name):
        return False
    try:
        ModelSpec.load(name)
    except UserError:
        return False
    return True


def _count(value: Any) -> int | None:
    """Return a positive number given as one or as text, or None."""
    return int(value) if not isinstance(value, bool) and re.fullmatch(r"[1-9]\d{0,5}", str(value)) else None
