"""Experts in the `aiconfigurator-core` package: which versions, kernels and routing are kept.

The newest version of TensorRT-LLM's rows covers few models, so older ones fill in; other frameworks' newest versions
cover all, and their older ones ran other kernels. Rows of a kernel that a framework calls but did not time come from
another framework that calls the same library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.calibrate.importers.aiconfigurator_files import BLOCK, DTYPES, SPARSE, Files, Found, versions_of

EXPERTS = "moe_perf"
OLDER = 2
"""Number of older versions from which missing shapes are taken; `+` marks each in the key of a table."""
_GENERATED = "flashinfer_trtllm"
"""Name of TensorRT-LLM's generated kernel of experts for Blackwell in other frameworks. TensorRT-LLM's own rows in FP8
blocks are DeepGEMM's; its backend TRTLLM runs this one."""
_HOT_ON_ONE = "1.3.0rc10"
"""Version of TensorRT-LLM whose rows over several GPUs put the most loaded experts on one: one or two tokens over 8
GPUs take 2.0 to 2.5 times (median) as long as under equal loads, where all other versions take 0.9 to 1.02 times."""
_MXFP8 = "w4a8_mxfp4_mxfp8"
_GPT_OSS = 2880
"""Hidden size of gpt-oss, whose mxfp4 experts with mxfp8 activations were measured with two frameworks."""
ROUTING = "power_law_1.2"
"""Routing distribution that is kept: expert loads follow a power law. It is the package's own assumption for engines on
real text and is available for every GPU."""
DEALT = (2, 4, 8)
"""Numbers of GPUs over which experts are distributed within one server. Rows with more GPUs put the most loaded experts
on one GPU (with 64, it has 18 times the mean load), which no known server does."""


def older_tables(files: Files, system: str, framework: str) -> Found:
    """Return the older versions of TensorRT-LLM's measurements of experts and sparse attention, since the newest cover
    few models. Other frameworks' newest versions cover all, and their older ones ran other kernels."""
    found: Found = {}
    for stem in (EXPERTS, *SPARSE) if framework == "trtllm" else ():
        for i, path in enumerate(versions_of(files, system, framework, stem)[1 : 1 + OLDER]):
            found[stem + "+" * (i + 1)] = (path, files[path])
    return found


def experts_of_others(framework: str, others: Found, tables: Found) -> Found:
    """Return another framework's experts under the keys of the kernels that are taken from it."""
    if EXPERTS not in others or EXPERTS not in tables:
        return {}
    return {_MXFP8: others[EXPERTS]} | ({_GENERATED: others[EXPERTS]} if framework == "trtllm" else {})


def _moe(raw: Any) -> Any:
    return _experts(raw[raw["moe_ep_size"] == 1])


def _moe_dealt(raw: Any) -> Any:
    raw = raw[raw["moe_ep_size"].isin(DEALT) & (raw["moe_tp_size"] == 1) & (raw["version"] != _HOT_ON_ONE)]
    return _experts(raw).assign(op="moe_ep", gpus=raw["moe_ep_size"])


def _moe_generated(raw: Any) -> Any:
    return _moe(raw[(raw["moe_dtype"] == BLOCK) & raw["kernel_source"].str.contains(_GENERATED)])


def _moe_generated_dealt(raw: Any) -> Any:
    return _moe_dealt(raw[(raw["moe_dtype"] == BLOCK) & raw["kernel_source"].str.contains(_GENERATED)])


def _moe_mxfp8(raw: Any) -> Any:
    return _moe(raw[(raw["moe_dtype"] == _MXFP8) & (raw["hidden_size"] == _GPT_OSS)])


def _moe_mxfp8_dealt(raw: Any) -> Any:
    return _moe_dealt(raw[(raw["moe_dtype"] == _MXFP8) & (raw["hidden_size"] == _GPT_OSS)])


def _experts(raw: Any) -> Any:
    raw = raw[(raw["distribution"] == ROUTING) & raw["moe_dtype"].isin(DTYPES)]
    dtype = raw["moe_dtype"].map(DTYPES)
    return raw.assign(
        op="moe",
        dtype=dtype.mask((dtype == "mxfp4") & raw["kernel_source"].str.contains("marlin"), "mxfp4_marlin"),
        m=raw["num_tokens"],
        n=raw["inter_size"] // raw["moe_tp_size"],
        k=raw["hidden_size"],
        experts=raw["num_experts"],
    )


EXPERT_PARTS: list[tuple[str, Callable[[Any], Any]]] = [
    *((EXPERTS + "+" * i, convert) for i in range(OLDER + 1) for convert in (_moe, _moe_dealt)),
    *((_MXFP8, convert) for convert in (_moe_mxfp8, _moe_mxfp8_dealt)),
    *((_GENERATED, convert) for convert in (_moe_generated, _moe_generated_dealt)),
]
"""Tables of experts and their conversions: the framework's own, newest first, then those of others."""


def new_shapes(convert: Callable[[Any], Any], raw: Any, newer: list[Any]) -> Any:
    """Return the rows of experts or sparse attention whose shape and format no newer table has. Generated
    kernels are alternatives to the framework's own and keep all rows."""
    frame = convert(raw)
    if convert in (_moe_generated, _moe_generated_dealt):
        return frame
    shape = [c for c in ("op", "dtype", "n", "k", "experts", "topk", "gpus", "heads") if c in frame]
    known = {key for other in newer if set(shape) <= set(other) for key in zip(*(other[c] for c in shape), strict=True)}
    return frame[[key not in known for key in zip(*(frame[c] for c in shape), strict=True)]]
