"""The command inside another one: what `docker run` starts in its image, and what a shell is told to run (`-c`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from servesim.errors import UserError, shown

CONTAINERS = ("docker", "podman", "nerdctl")
SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh")
ENTRYPOINTS = {"vllm": ("vllm", "serve")}
"""Commands that images start by default, by a word in the image's name."""
_SWITCHES = {"detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "no-healthcheck",
             "oom-kill-disable", "quiet", "use-api-socket", "help", "replace", "rmi"}  # fmt: skip
"""Options of `docker run` without a value."""
_SHORT_SWITCHES = frozenset("ditqP")
_BEFORE = ("sudo", "nohup", "exec", "env", "time")


def unwrapped(words: Sequence[str]) -> list[str]:
    """Return the command that a container or a shell is told to run, or the given command if it starts neither; raise
    UserError if a container's command cannot be found."""
    rest = list(words)
    while rest and (rest[0] in _BEFORE or re.fullmatch(r"[A-Za-z_]\w*=.*", rest[0], re.DOTALL)):
        rest.pop(0)
    if rest and rest[0] in CONTAINERS:
        return unwrapped(_in_container(rest))
    if rest and rest[0] in SHELLS:
        for i, word in enumerate(rest[1:-1], start=1):
            if re.fullmatch(r"-[a-z]*c", word):
                return unwrapped(_last_command(rest[i + 1]))
    return list(words)


def _last_command(script: str) -> list[str]:
    """Return the last command of a shell script; the commands before it only prepare for it."""
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", ";"), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|"):
            commands.append([])
        else:
            commands[-1].append(word)
    return next((command for command in reversed(commands) if command), [])


def _in_container(words: Sequence[str]) -> list[str]:
    """Return the command after the image of `docker run`, with the image's own entry point if it is known, preceded by
    the environment variables set for it."""
    rest, entry, variables = list(words), [], []
    if "run" not in rest:
        raise UserError(f"--serve: {shown(' '.join(words[:3]))}: only `{words[0]} run` starts a server")
    rest = rest[rest.index("run") + 1 :]
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        long = name.startswith("--")
        takes_value = name.lstrip("-") not in _SWITCHES if long else not set(name[1:]) <= _SHORT_SWITCHES
        if takes_value and not equals and (long or len(name) == 2) and rest:  # -p8000:8000 contains its value
            value = rest.pop(0)
        if name == "--entrypoint":
            entry = shlex.split(value)
        if name in ("-e", "--env") and "=" in value:
            variables.append(value)
    if not rest:
        raise UserError(f"--serve: {words[0]} run: no image found; give the command that the container runs instead")
    image, *command = rest
    if entry or (command and not command[0].startswith("-") and "/" not in command[0]):
        return [*variables, *entry, *command]
    for word, start in ENTRYPOINTS.items():
        if word in image:
            return [*variables, *start, *command]
    if not command:
        raise UserError(
            f"--serve: image {shown(image)[:80]} has no command after it; give the command that its container runs"
        )
    return [*variables, *command]
