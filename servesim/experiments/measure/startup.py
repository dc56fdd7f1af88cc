"""Facts that a server reports about itself in its start-up log, its flags and its status pages.

Log formats are those of vLLM 0.6 to 0.29 and SGLang 0.4 to 0.5. Facts are named as in `server_config.json`.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from servesim import untrusted
from servesim.errors import UserError
from servesim.experiments.measure.wire import Address, asked, get_json
from servesim.experiments.recording_vllm_bench import cache_config
from servesim.run.serve_command import parsed

Facts = dict[str, Any]
"""Known facts from among engine, engine_version, model, tensor_parallel_size, num_gpu_blocks, kv_cache_tokens,
block_size, max_num_seqs, max_num_batched_tokens, max_model_len, enable_prefix_caching, moe_backend, attention_backend,
cudagraph_capture_sizes, dtype, quantization, kv_cache_dtype, api_server_count."""

DEFAULT_BLOCK = 16
"""Default number of tokens per block in vLLM, on CUDA with FlashAttention."""
ENDPOINT_S = 10.0
"""Seconds allowed for fetching a page that a server may not have."""


_TEXTS = ("model", "dtype", "quantization", "kv_cache_dtype", "moe_backend", "attention_backend", "engine_version")
"""Facts whose values are texts."""
_LINES = (
    ("engine_version", r"vLLM API server version (\S+)"),
    ("engine_version", r"LLM engine \(v([^)\s]+)\) with config"),
    ("kv_cache_tokens", r"GPU KV cache size: ([\d,]+) tokens"),
    ("num_gpu_blocks", r"# (?:GPU|cuda) blocks: ([\d,]+)"),
    ("max_num_batched_tokens", r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"),
    ("max_model_len", r"Using max model len (\d+)"),
    ("moe_backend", r"Using '?([\w ./-]+?)'? (?:\w+ )?MoE backend"),
    ("attention_backend", r"Using (?:AttentionBackendEnum\.)?'?(\w+)'? (?:attention )?backend(?:\.| out of|$)"),
    ("cudagraph_capture_sizes", r"\"?'?cudagraph_capture_sizes'?\"?[:=] ?\[([\d, ]+)\]"),
)
_CONFIG = tuple(
    (key.replace("max_seq_len", "max_model_len"), rf"LLM engine \(v[^)]*\) with config:(?:.*?[ (,{{])?{key}=([^,)}}]+)")
    for key in (
        *("model", "tensor_parallel_size", "max_seq_len", "dtype", "quantization", "kv_cache_dtype"),
        "enable_prefix_caching",
    )
)
"""Patterns of vLLM's configuration, which the engine itself has settled on."""
_SGLANG = (
    ("model", r"ServerArgs\(model_path='([^']+)'"),
    ("tensor_parallel_size", r"\btp_size=(\d+)"),
    ("kv_cache_tokens", r"max_total_num_tokens=(\d+)"),
    ("kv_cache_tokens", r"KV Cache is allocated\. .*?#tokens: (\d+)"),
    ("max_num_seqs", r"max_running_requests=(\d+)"),
    ("max_num_batched_tokens", r"chunked_prefill_size=(\d+)"),
    ("max_model_len", r"context_len=(\d+)"),
    ("block_size", r"\bpage_size=(\d+)"),
    ("cudagraph_capture_sizes", r"Capture cuda graph bs \[([\d, ]+)\]"),
    ("attention_backend", r"\battention_backend='(\w+)'"),
    ("moe_backend", r"\bmoe_runner_backend='(\w+)'"),
    ("quantization", r"\bquantization='(\w+)'"),
    ("kv_cache_dtype", r"\bkv_cache_dtype='(\w+)'"),
)
_FLAGS = {
    "model": "model",
    "enable-prefix-caching": "enable_prefix_caching",
    "max-num-seqs": "max_num_seqs",
    "max-running-requests": "max_num_seqs",
    "max-batch-size": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "chunked-prefill-size": "max_num_batched_tokens",
    "max-num-tokens": "max_num_batched_tokens",
    "max-model-len": "max_model_len",
    "context-length": "max_model_len",
    "max-seq-len": "max_model_len",
    "block-size": "block_size",
    "page-size": "block_size",
    "tensor-parallel-size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "tp-size": "tensor_parallel_size",
    "quantization": "quantization",
    "q": "quantization",
    "dtype": "dtype",
    "kv-cache-dtype": "kv_cache_dtype",
    "num-gpu-blocks-override": "num_gpu_blocks",
    "moe-backend": "moe_backend",
    "api-server-count": "api_server_count",
}
"""Facts, keyed by the flags that set them."""
MOST_LOG = 16 << 20
"""Number of characters searched at the start of a log, since a server describes itself at startup."""


def read_log(path: Path) -> Facts:
    """Return the facts in a start-up log. Raise UserError if it is not a log of vLLM or SGLang."""
    text = untrusted.read_start(path, MOST_LOG)
    sglang = "server_args=ServerArgs(" in text or "KV Cache is allocated" in text
    found = _stated(text, _SGLANG if sglang else _LINES) | _arguments(text) | _stated(text, _CONFIG)
    if not found:
        raise UserError(f"--log {path}: not a startup log of vLLM or SGLang")
    found["engine"] = "sglang" if sglang else "vllm"
    return _known(found)


def _stated(text: str, patterns: Sequence[tuple[str, str]]) -> Facts:
    """Return the facts whose patterns are found, each by the first of its patterns."""
    found = {name: match for name, pattern in reversed(patterns) if (match := re.search(pattern, text, re.M))}
    return {name: _value(name, match[1].strip()) for name, match in found.items()}


def _value(name: str, text: str) -> Any:
    """Return the value of a fact as a log states it."""
    if name in _TEXTS:
        return text.strip("'\"").removeprefix("torch.")
    if name == "cudagraph_capture_sizes":
        return sorted({int(word) for word in re.findall(r"\d+", text)})
    return text == "True" if name == "enable_prefix_caching" else int(text.replace(",", ""))


def _arguments(text: str) -> Facts:
    """Return the flags in vLLM's "non-default args" that have plain values."""
    given = re.search(r"non-default args: (\{.*\})", text)
    plain = re.findall(r"'(\w+)': ('[^']*'|True|False|-?\d+(?:\.\d+)?)(?=[,}])", given[1] if given else "")
    flags = {name.replace("_", "-"): ast.literal_eval(value) for name, value in plain}
    return {_FLAGS[name]: value for name, value in flags.items() if name in _FLAGS}


def read_flags(command: str) -> Facts:
    """Return the facts set by a command such as `vllm serve MODEL --max-num-seqs 64`. Raise UserError if a number is
    invalid."""
    try:
        engine, model, flags = parsed(command)
    except ValueError as error:
        raise UserError(f"--flags: {error}") from None
    found: Facts = {"engine": engine if engine in ("vllm", "sglang", "trtllm") else None, "model": model}
    for name, value in flags:
        key = _FLAGS.get(name)
        if name in ("no-enable-prefix-caching", "disable-radix-cache"):
            found["enable_prefix_caching"] = False
        elif key == "enable_prefix_caching":
            found["enable_prefix_caching"] = True
        elif key in _TEXTS:
            found[key] = value
        elif key is not None:
            if not value.isdigit():
                raise UserError(f"--flags: --{name} {value}: must be a number")
            found[key] = int(value)
    return _known(found)


def _known(found: Facts) -> Facts:
    """Drop values that mean "not set"."""
    return {key: value for key, value in found.items() if value not in (None, "None", "auto", "", [])}


async def served_model(address: Address, wanted: str | None, timeout_s: float) -> tuple[str, Facts]:
    """Return the name under which a model is served and the server's facts about it. Raise UserError if there is no
    such model, if there are several and none was requested, or if no server answers."""
    listed = await get_json(address, "/v1/models", timeout_s)
    data = listed.get("data") if isinstance(listed, dict) else None
    models = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    names = [str(entry.get("id")) for entry in models]
    if not names:
        raise UserError(f"{address}/v1/models lists no model")
    if wanted is None and len(names) > 1:
        raise UserError(f"{address}: serves several models ({', '.join(names[:8])}): choose one with --served-name")
    if wanted is not None and wanted not in names:
        raise UserError(f"{address}: does not serve {wanted!r} (it serves {', '.join(names[:8])})")
    entry = models[names.index(wanted) if wanted is not None else 0]
    owner = str(entry.get("owned_by", "")).lower()
    engine = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}.get(owner)
    length, root = entry.get("max_model_len"), entry.get("root")
    found = {"engine": engine, "max_model_len": length if type(length) is int and length > 0 else None}
    return str(entry["id"]), _known(found | {"model": root if isinstance(root, str) else str(entry["id"])})


async def ask_server(address: Address) -> Facts:
    """Return the facts from the server's optional pages, /version and /metrics, or an empty dict if it has neither."""
    found: Facts = {}
    with suppress(UserError):
        told = await get_json(address, "/version", ENDPOINT_S)
        if isinstance(told, dict) and isinstance(told.get("version"), str):
            found["engine_version"] = told["version"]
    with suppress(UserError):
        async with asked(address, "/metrics", ENDPOINT_S) as reply:
            found |= cache_config(await reply.body()) if reply.status == 200 else {}
    return found


def together(*sources: Facts) -> Facts:
    """Return the merged facts of several sources. Earlier sources take precedence."""
    found: Facts = dict(ChainMap(*sources))
    if "num_gpu_blocks" not in found and "kv_cache_tokens" in found:
        found["num_gpu_blocks"] = found["kv_cache_tokens"] // found.get("block_size", DEFAULT_BLOCK)
    return found
