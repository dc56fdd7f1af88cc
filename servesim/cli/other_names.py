"""Options of experiments and flags of serving engines, as `servesim settings` finds them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from servesim.cli.options import Setting
from servesim.cli.parts import part

NONE = "no setting"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "environment": "the environment"}
"""Names of the tables in serve_flags.yaml."""


def experiment_options() -> Iterator[dict[str, Any]]:
    """Yield the options that only `compare`, `sweep`, `capacity` or `worth` have."""
    from servesim.cli import experiments

    found: dict[str, dict[str, str]] = {}
    for command in (experiments.compare, experiments.sweep, experiments.capacity, experiments.worth):
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            for option in get_args(parameter.annotation)[1:]:
                if (
                    getattr(option, "param_decls", None) is not None
                    and parameter.default is not inspect.Parameter.empty
                ):
                    found.setdefault(name, {})[command.__name__] = option.help
    for name, helps in found.items():
        word = name.removeprefix("as_").replace("_", "-")
        said = min(helps.values(), key=len)
        if len({*helps.values()}) > 1:  # the commands differ in their defaults
            said = said.partition(" [default")[0]
        yield part(f"option {word}", f"--{word} of {', '.join(helps)}", said)


def all_flags() -> Iterator[dict[str, Any]]:
    """Yield the flags of engines, and their variables, whose names are not those of settings."""
    from servesim.run.flag_meanings import SIZES, serve_flags
    from servesim.run.serve_command import HINTS

    every = {engine: {**meanings} for engine, meanings in serve_flags().items()}
    every["vllm"] |= {"speculative-config": "speculation"}
    every["sglang"] |= {"enable-dp-attention": "dp"}
    every["trtllm"] |= {"enable-attention-dp": "dp"}
    for engine in ("sglang", "trtllm"):
        every[engine] |= {name: to for name, to in SIZES.items() if to == "ep"}
    for name in dict.fromkeys(name for flags in every.values() for name in flags):
        engines = {ENGINES[engine]: flags[name] for engine, flags in every.items() if name in flags}
        option, doc = _meaning(next((each for each in engines.values() if each is not None), None))
        if option.rpartition(".")[2].removeprefix("--") != name:
            yield part(f"flag {name}", option, f"In {' and '.join(engines)}: {HINTS.get(name, doc)}")


def _meaning(meaning: Any) -> tuple[str, str]:
    """Return the option that a flag corresponds to, and a description. `meaning`: see serve_flags.yaml."""
    if isinstance(meaning, str):
        return _option(meaning), "the same setting."
    key, to = next(iter(meaning.items())) if meaning else ("", {})
    if not isinstance(to, Mapping):
        return f"{_option(key)} {str(to).lower() if isinstance(to, bool) else to}", "what the flag sets."
    values = ", ".join(f"{value} is {other}" for value, other in to.items() if other is not None)
    if not values:
        return NONE, "no effect in the simulation."
    return _option(key), f"{values}; others are not modeled or have no effect."


def _option(key: str) -> str:
    return Setting(key, "", "").names[0]
