"""Shell completion: the script for a shell, and values that options take.

The shell asks by the environment variable `_SERVESIM_COMPLETE`: `complete_bash` as typer's scripts say it,
`bash_source` as Click's documentation does; both are answered.
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
    """Return whether a shell asks for completion; make ready to answer it then."""
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
    """Return the words of a command; after a bare `--show-completion` the user's own shell."""
    words = [*arguments]
    if words[1:] == [OPTION]:
        words.append(Path(os.environ.get("SHELL", "")).name or "bash")
    return words


def script(shell: str) -> str:
    """Return what makes a shell complete servesim's commands; UserError for a shell that is not known."""
    if shell not in SHELLS:
        raise UserError(f"{OPTION}: unknown shell {shell!r}{suggest(shell, SHELLS)}")
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name="servesim", complete_var=VARIABLE, shell=shell)


def values_of(key: str, words: Sequence[str] = ()) -> Callable[[str], list[str]] | None:
    """Return what completes the value of a setting, the last of a list with commas; None where nothing is known.
    `words`: values its type has."""
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
