"""Run the benchmark client of an engine without the engine: `python bench_client.py FOLDER vllm|sglang ARGUMENT...`.

FOLDER holds the client's own package, taken from the engine's wheel. What it imports from elsewhere in the engine is
replaced: by the few functions that a client really calls, and by objects that accept anything for the rest, which
belongs to datasets and modes that are not used here. Runs in the environment of the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

PACKAGES = {"vllm": "vllm.benchmarks", "sglang": "sglang.benchmark"}


def tokenizer(name: str, *_: Any, **__: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


CALLED: dict[str, dict[str, Any]] = {
    "vllm.tokenizers": {"get_tokenizer": tokenizer, "TokenizerLike": object},
    "vllm.utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
    "vllm.utils.mistral": {"is_mistral_tokenizer": lambda tokenizer: False},
    "vllm.utils.network_utils": {"join_host_port": lambda host, port: f"{host}:{port}"},
    "sglang.srt.disaggregation.utils": {"FAKE_BOOTSTRAP_HOST": "2.2.2.2"},
    "sglang.srt.utils.hf_transformers_utils": {"get_tokenizer": tokenizer},
    "sglang.srt.utils.network": {
        "resolve_base_url": lambda url, host, port, *_, **__: url or f"http://{host}:{port}",
        "resolve_host_port": lambda host, port, *_, **__: (host, int(port)),
    },
}
"""Functions and constants of the engines that the clients use, by module."""


class Replaced(MetaPathFinder, Loader):
    """Finder of an engine's modules: those of the client are real."""

    def __init__(self, folder: Path, engine: str) -> None:
        self._folder, self._engine, self._own = folder, engine, PACKAGES[engine]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.split(".")[0] != self._engine:
            return None
        if name == self._own or name.startswith(f"{self._own}."):
            return PathFinder.find_spec(name, [str(self._folder.joinpath(*name.split(".")[:-1]))])
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__name__, module.__spec__, module.__path__, module.__all__ = spec.name, spec, [], []
        for name, value in CALLED.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""


def vllm(arguments: Sequence[str]) -> None:
    from vllm.benchmarks.serve import add_cli_args, main_async

    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    asyncio.run(main_async(parser.parse_args(arguments)))


def sglang(arguments: Sequence[str]) -> None:
    sys.argv[1:] = arguments
    from sglang.benchmark.serving import cli_main

    cli_main()


if __name__ == "__main__":
    clients: dict[str, Callable[[Sequence[str]], None]] = {"vllm": vllm, "sglang": sglang}
    sys.meta_path.insert(0, Replaced(Path(sys.argv[1]), sys.argv[2]))
    clients[sys.argv[2]](sys.argv[3:])
