"""The command inside another one: what `docker run` starts in its image, and what a shell is told to run (`-c`); the
files that a script writes for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from servesim.errors import UserError, shown

CONTAINERS = ("docker", "podman", "nerdctl")
SHELLS = ("bash", "sh", "zsh")
ENTRYPOINTS = {"vllm": ("vllm", "serve")}
"""Commands that images start by default, by a word in the image's name."""
_SWITCHES = {"detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "no-healthcheck",
             "oom-kill-disable", "quiet", "use-api-socket", "help", "replace", "rmi"}  # fmt: skip
"""Options of `docker run` without a value."""
_SHORT_SWITCHES = frozenset("ditqP")
_WAITING = ("wait", "sleep", "true")
_REDIRECTION = r"(?<=\s)(?:\d?>&\d|&?\d?>{1,2}\s*[^\s;|&]+)"
_BEFORE = ("sudo", "nohup", "exec", "env", "time")
_HERE = re.compile(
    r"""^[ \t]*cat[ ](?:>[ ]*(?P<to>\S+)[ ]*)?<<[ ]*(['"]?)(?P<end>\w+)\2(?:[ ]*>[ ]*(?P<then>\S+))?[ ]*\n
    (?P<text>.*?)^(?P=end)[ ]*$\n?""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
"""A file that a script writes: `cat > FILE <<'END'` or `cat <<END > FILE`, up to the line END."""


def written_files(script: str) -> tuple[str, dict[str, str]]:
    """Return a script without the parts that write files, and the files' texts by name."""
    found = {match["to"] or match["then"]: match["text"] for match in _HERE.finditer(script)}
    return (_HERE.sub("", script) if found else script), {name: text for name, text in found.items() if name}


def unwrapped(words: Sequence[str]) -> list[str]:
    """Return the command that a container or a shell is told to run, or the given command if it starts neither; raise
    UserError if a container's command cannot be found."""
    rest = list(words)
    while rest and (rest[0] in _BEFORE or re.fullmatch(r"[A-Za-z_]\w*=.*", rest[0], re.DOTALL)):
        rest.pop(0)
    if rest and Path(rest[0]).name in CONTAINERS:
        return unwrapped(_in_container(rest))
    if rest and Path(rest[0]).name in SHELLS:
        for i, word in enumerate(rest[1:-1], start=1):
            if re.fullmatch(r"-[a-z]*c", word):
                return unwrapped(_last_command(rest[i + 1]))
    return list(words)


def _last_command(script: str) -> list[str]:
    """Return the command of a shell's script that serves: the last one, but not what its output is piped into, what is
    run to wait for it, or a redirection. Earlier commands prepare it."""
    text = re.sub(_REDIRECTION, " ", script.replace("\\\n", " ").replace("\n", ";"))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    piped = False
    for word in lexer:
        if set(word) <= set(";&|"):
            piped = word == "|"
            commands.append([])
        elif not piped:
            commands[-1].append(word)
    serving = [command for command in commands if command and command[0] not in _WAITING]
    return serving[-1] if serving else []


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
        if takes_value and not long and len(name) > 2:  # -p8000:8000 contains its value
            name, value = name[:2], name[2:] + equals + value
        elif takes_value and not equals and rest:
            value = rest.pop(0)
        if name == "--entrypoint":
            entry = shlex.split(value)
        if name in ("-e", "--env") and "=" in value:
            variables.append(value)
    if not rest:
        raise UserError(f"--serve: {words[0]} run: no image found; specify the command that the container runs")
    image, *command = rest
    if entry or (command and not command[0].startswith("-") and "/" not in command[0]):
        return [*variables, *entry, *command]
    for word, start in ENTRYPOINTS.items():
        if word in image:
            return [*variables, *start, *command]
    if not command:
        raise UserError(
            f"--serve: image {shown(image)[:80]} has no command after it; specify the command that its container runs"
        )
    return [*variables, *command]
