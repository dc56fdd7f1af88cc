"""Make runs of servesim one after the other in one process, which imports once.

`runs.py BUILD`, with lines of NAME and the options of `servesim run` on standard input. Each run goes to the folder
NAME.BUILD; the file NAME.BUILD.failed says why one fails, and what it told its user.
"""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import redirect_stderr
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any


def failure(command: Any, arguments: list[str]) -> str:
    """Return how a command ended: "" if well."""
    sys.argv, told = ["servesim", *arguments], io.StringIO()
    try:
        with redirect_stderr(told):
            command()
    except SystemExit as end:
        return "" if end.code in (0, None) else f"exit code {end.code}\n{told.getvalue()}".rstrip()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(build: str) -> None:
    """Make the runs of standard input."""
    (script,) = entry_points(group="console_scripts", name="servesim")
    command = script.load()
    for line in sys.stdin.read().splitlines():
        name, *options = shlex.split(line)
        folder = f"{name}.{build}"
        if why := failure(command, ["run", "--gpu", "h200", "--out", folder, *options]):
            Path(f"{folder}.failed").write_text(f"{why}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
