"""Model names as users write them: Hugging Face ids, with the weight format as a suffix.

`meta-llama/Llama-3.3-70B-Instruct` has the shape of a bundled model, and
`RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic` that of another, with fp8 weights. names.yaml lists the names that
share a shape, and the sources of its numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from servesim.shipped import shipped_yaml

_FORMATS = (
    (r"(gptq|awq|autoround)-(int)?8(bit)?|w8a16", "int8_wo"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"w4a8", "w4a8"),
    (r"gguf", "gguf"),
    (r"bnb-4bit", "nf4"),
    (r"(awq|gptq|autoround)(-(int)?4(bit)?)?|w4a16|int4|4bit", "int4"),
    (r"fp8|w8a8-fp8", "fp8"),
    (r"w8a8|int8", "int8"),
)
"""Formats by spelling; the first match counts. The last two four-bit formats are refused as a dtype."""
_FORMAT = re.compile("|".join(f"(?P<f{i}>{text})" for i, (text, _) in enumerate(_FORMATS)))
_ENDS = ("dynamic", "static", "pertensor", "kv", "quantized", "g128", "marlin", "sym", "ct")
"""Words that qualify a format: `-FP8-dynamic`, `-quantized.w4a16`."""
_PER_CHANNEL = ("dynamic", "static", "pertensor")
"""Words that indicate that FP8 weights have one scale per channel or per tensor."""
BLOCKS: dict[str, Any] = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
"""Keys in the config.json of a checkpoint with block-scaled FP8 weights."""
_TUNED = ("instruct", "chat", "hf", "it", "base", "meta", "v0.1", "neuralmagic", "redhatai")
"""Words in a name that do not affect the model's shape."""


@dataclass(frozen=True)
class Named:
    """Meaning of a model name: a bundled model, its weight format, and changes to its config.json."""

    model: str
    """The bundled model that has the same shape."""
    dtype: str | None = None
    """Format of its weights, if given by the name or its publisher."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Keys of config.json that differ from the bundled model's."""


@cache
def _table() -> dict[str, Any]:
    loaded: dict[str, Any] = shipped_yaml("servesim.hardware", "names.yaml")
    return loaded


def named(name: str, bundled: tuple[str, ...]) -> Named | None:
    """Return what a name refers to, or None if no bundled model has its shape. Names that end in `.json` or `/`, or
    contain several slashes, are file paths."""
    if name.count("/") > 1 or name.endswith((".json", "/")):
        return None
    text = name.rpartition("/")[2].lower().replace("_", "-").replace(".w", "-w")
    found = re.search(rf"(?<![a-z0-9])({_FORMAT.pattern})(?![a-z0-9])", text)
    dtype = None
    if found is not None:
        dtype = next(_FORMATS[i][1] for i in range(len(_FORMATS)) if found[f"f{i}"])
        text = text[: found.start()] + text[found.end() :]
    spelled = text.split("-")
    words = [word for word in spelled if word and word not in _TUNED and word not in (_ENDS if found else ())]
    entry = _entry("-".join(words), dtype, bundled)
    if entry is None or dtype != "fp8":
        return entry
    publisher, slash, _ = name.lower().partition("/")
    if publisher in _table()["fp8_blocks_of"]:
        return replace(entry, changes=entry.changes | BLOCKS)
    if blocks_of(entry.model) and (slash or any(word in _PER_CHANNEL for word in spelled)):
        return replace(entry, changes=entry.changes | dict.fromkeys(BLOCKS))
    return entry


def blocks_of(model: str) -> dict[str, Any]:
    """Return the config.json keys of a bundled model's block-scaled FP8 checkpoint, or an empty dict if its FP8
    checkpoint is not block-scaled."""
    return BLOCKS if model in _table()["fp8_blocks"] else {}


def _entry(key: str, dtype: str | None, bundled: tuple[str, ...]) -> Named | None:
    entry: dict[str, Any] = dict(_table()["same"].get(key) or {})
    model = entry.pop("model", key)
    if model not in bundled:
        return None
    if dtype is not None and f"{model}-{dtype}" in bundled:  # a checkpoint with only its experts quantized
        return Named(f"{model}-{dtype}", None, entry)
    return Named(model, dtype or _table()["published"].get(model), entry)
