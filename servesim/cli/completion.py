"""Shell completion: the script for a shell, and the values that options accept.

The shell requests completion through the environment variable `_SERVESIM_COMPLETE`. Both forms are supported:
`complete_bash`, from typer's scripts, and `bash_source`, from Click's documentation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from servesim.errors import UserError, suggest

VARIABLE = "_SERVESIM_COMPLETE"
OPTION = "--show-completion"
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def prepare() -> bool:
    """Return whether a shell requests completion, and prepare to answer it."""
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return False
    from typer._completion_classes import completion_init

    completion_init()
    first, _, second = asked.partition("_")
    if first in SHELLS:  # Click's order
        os.environ[VARIABLE] = f"{second}_{first}"
    return True


def with_shell(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command, with the user's own shell after a bare `--show-completion`."""
    words = [*arguments]
    if words[1:] == [OPTION]:
        words.append(Path(os.environ.get("SHELL", "")).name or "bash")
    return words


def script(shell: str) -> str:
    """Return the script that completes servesim's commands in a shell. Raise UserError for an unknown shell."""
    if shell not in SHELLS:
        raise UserError(f"{OPTION}: unknown shell {shell!r}{suggest(shell, SHELLS)}")
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name="servesim", complete_var=VARIABLE, shell=shell)


def values_of(key: str, words: Sequence[str] = ()) -> Callable[[str], list[str]] | None:
    """Return the completion of a setting's value (of the last value in a comma-separated list), or None if no values
    are known. `words` are the values of its type."""
    if not words and key not in _KNOWN:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        known = words or _KNOWN[key]()
        return [f"{before}{comma}{value}" for value in known if value.startswith(last)]

    return complete


def _models() -> list[str]:
    from servesim.hardware import bundled_models

    return list(bundled_models())


def _gpus() -> list[str]:
    from servesim.hardware import gpu_names

    return gpu_names()


def _engines() -> list[str]:
    from servesim.run.presets import engine_presets

    return list(engine_presets())


def _policies(kind: str) -> Callable[[], list[str]]:
    def names() -> list[str]:
        from servesim.contracts import REGISTRIES

        return next(registry.names() for registry in REGISTRIES if registry.kind == kind)

    return names


_KNOWN: dict[str, Callable[[], list[str]]] = {
    "model": _models,
    "gpu": _gpus,
    "preset": _engines,
    "scheduler": _policies("scheduler"),
    "kv": _policies("kv"),
    "router": _policies("router"),
    "scaler": _policies("scaler"),
    "speculation": _policies("speculation"),
    "acceptance": _policies("acceptance"),
}
