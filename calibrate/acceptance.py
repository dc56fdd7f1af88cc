"""Recording of a real model's greedy outputs for a set of prompts, used later to count draft acceptance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from servesim.errors import UserError
from servesim.run.result_files import write_text

SETTINGS, ANSWERS = "acceptance.json", "answers.jsonl"


@dataclass(frozen=True)
class Prompt:
    """One user turn."""

    name: str
    domain: str
    text: str


@dataclass(frozen=True)
class Prompts:
    """A file of prompts: YAML with `licence` and `prompts`, a list of entries, each with a name, domain and text."""

    prompts: list[Prompt]
    file: str
    licence: str
    sha256: str

    @classmethod
    def load(cls, path: Path) -> Prompts:
        """Load a file of prompts; raise UserError if it is not one."""
        try:
            raw = path.read_bytes()
            content = yaml.safe_load(raw)
        except OSError as error:
            raise UserError(f"--prompts {path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f" line {mark.line + 1}" if mark is not None else ""
            raise UserError(f"--prompts {path}{where}: not valid YAML") from None
        if not isinstance(content, dict) or not isinstance(content.get("prompts"), list) or not content["prompts"]:
            raise UserError(f"--prompts {path}: must have a list `prompts` of entries with name, domain and text")
        found: dict[str, Prompt] = {}
        for number, entry in enumerate(content["prompts"], 1):
            keys = ("name", "domain", "text")
            if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) and entry[k] for k in keys):
                raise UserError(f"--prompts {path}: prompt {number} needs name, domain and text")
            if entry["name"] in found:
                raise UserError(f"--prompts {path}: two prompts are called {entry['name']!r}")
            found[entry["name"]] = Prompt(*(entry[k] for k in keys))
        licence = str(content.get("licence", "not stated"))
        return cls(list(found.values()), path.name, licence, hashlib.sha256(raw).hexdigest())


@dataclass(frozen=True)
class Answer:
    """Greedy output for a prompt, in tokens."""

    prompt: str
    domain: str
    prompt_tokens: list[int]
    output_tokens: list[int]
    exits: list[str]
    """One string for each number of layers (1, 2, ...): character i is 1 if exiting after that many layers gives output
    token i."""
    text: str = ""


class Target(Protocol):
    """Model that produces greedy outputs."""

    layers: int
    about: dict[str, Any]

    def answer(self, prompt: Prompt, max_tokens: int) -> Answer:
        """Return the greedy output for a prompt."""


def record(
    folder: Path,
    prompts: Prompts,
    max_tokens: int,
    model: str,
    open_target: Callable[[], Target],
    progress: Callable[[str, int, int], None],
) -> tuple[dict[str, Any], list[Answer]]:
    """Record outputs for all prompts, writing each to disk as soon as it is complete and reusing those already in the
    folder.

    Return the metadata of the measurement and the outputs. Raise UserError if the folder holds a different measurement.
    """
    asked = {
        "model": model,
        "max_tokens": max_tokens,
        "prompts": {"file": prompts.file, "licence": prompts.licence, "sha256": prompts.sha256},
    }
    settings, done = _open(folder, asked)
    missing = [prompt for prompt in prompts.prompts if prompt.name not in done]
    if missing:
        progress("loading the model", len(done), len(prompts.prompts))
        target = open_target()
        settings = {**asked, "target": {**target.about, "layers": target.layers}}
        _make(folder)
        write_text(folder / SETTINGS, json.dumps(settings, indent=1) + "\n", "--out")
        for prompt in missing:
            progress(prompt.name, len(done), len(prompts.prompts))
            done[prompt.name] = target.answer(prompt, max_tokens)
            with (folder / ANSWERS).open("a") as file:
                file.write(json.dumps(asdict(done[prompt.name])) + "\n")
    return settings, [done[prompt.name] for prompt in prompts.prompts]


def _open(folder: Path, asked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Answer]]:
    try:
        if not (folder / SETTINGS).is_file():
            if folder.exists() and any(folder.iterdir()):
                raise UserError(f"{folder} contains other files but no acceptance measurement: choose another --out")
            return asked, {}
        settings = json.loads((folder / SETTINGS).read_text())
        for name, value in asked.items():
            if settings.get(name) != value:
                raise UserError(
                    f"{folder} contains answers for another {name} ({settings.get(name)}): choose another --out"
                )
        lines = (folder / ANSWERS).read_text().splitlines(keepends=True) if (folder / ANSWERS).is_file() else []
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from error
    except (ValueError, AttributeError):
        raise UserError(
            f"{folder / SETTINGS} was not written by servesim calibrate acceptance: choose another --out"
        ) from None
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):  # cut off during the write
        write_text(folder / ANSWERS, "".join(whole), "--out")
    answers = [Answer(**json.loads(line)) for line in whole]
    return settings, {answer.prompt: answer for answer in answers}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from error
