"""Parts of a run besides settings: steps of `--shape`, keys of `synth:`, policies and features."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any


def help_of(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return what `--shape help` or `--trace synth:help` on a command line asks for; empty if neither is present."""
    if "--shape=help" in words or ("--shape", "help") in itertools.pairwise(words):
        return list(shapes())
    return list(synth_keys()) if any(word.rpartition("=")[2] == "synth:help" for word in words) else []


def all_parts() -> Iterator[dict[str, Any]]:
    """Yield each part, with the same keys as a setting in `servesim settings`."""
    yield from shapes()
    yield from synth_keys()
    yield from _policies()
    yield from _features()


def shapes() -> Iterator[dict[str, Any]]:
    """Yield the steps of `--shape`; the description of each includes its parameters."""
    from servesim.cli.parameters import field_docs
    from servesim.traces.shape import STEPS, WRITTEN

    written = {field: key for key, field in WRITTEN.items()}
    for name, cls in STEPS.items():
        docs, told, required = field_docs(cls), [], []
        for field in dataclasses.fields(cls):
            key, doc = written.get(field.name, field.name), docs.get(field.name, "").rstrip(".")
            needed = field.default is dataclasses.MISSING
            required += [key] if needed else []
            default = "required" if needed else f"default: {'none' if field.default in (None, '') else field.default}"
            told.append(f"{key} [{default}]" + (f": {doc}" if doc else ""))
        example = ",".join(f"{key}=..." for key in required)
        parameters = f" Parameters: {'; '.join(told)}." if told else ""
        yield _part(f"shape {name}", f"--shape {name}{':' if example else ''}{example}", f"{cls.__doc__}{parameters}")


def synth_keys() -> Iterator[dict[str, Any]]:
    """Yield the keys of `synth:`, as described in the docstring of servesim.traces.synth."""
    from servesim.traces import synth

    key, lines = "", list[str]()
    for line in [*(synth.__doc__ or "").splitlines(), "    end "]:
        if found := re.match(r"    (\w+)\s+(.*)", line):
            if key:
                doc, default = re.fullmatch(r"(.*?)(?: *\[(.*)\])?", " ".join(lines)).groups("")  # type: ignore[union-attr]
                yield _part(f"synth {key}", f"--trace synth:{key}=...", doc, default)
            key, lines = found[1], [found[2].strip()]
        elif key and line.startswith("     "):
            lines.append(line.strip())


def _policies() -> Iterator[dict[str, Any]]:
    from servesim.cli.parameters import idea
    from servesim.contracts import REGISTRIES
    from servesim.run.scenario import Scenario

    for registry in [each for each in REGISTRIES if each.kind in Scenario.model_fields]:
        for name in registry.names():
            doc = idea(registry.resolve(name)[0]).partition("\n\n")[0]
            yield _part(f"{registry.kind} {name}", f"--{registry.kind} {name}", doc)


def _features() -> Iterator[dict[str, Any]]:
    from servesim.contracts.feature import installed

    for feature in installed():
        keys = [*feature.keys(), *feature.claims, *type(feature).Options.model_fields]
        option = " ".join(f"--{key.replace('_', '-')}" for key in keys)
        doc = " ".join((type(feature).__doc__ or "").split())
        yield _part(f"feature {feature.name}", option, doc)


def _part(key: str, option: str, doc: str, default: str = "") -> dict[str, Any]:
    return {
        "key": key,
        "option": option,
        "section": key.partition(" ")[0],
        "type": "",
        "default": default or None,
        "doc": " ".join(doc.replace("`", "").split()),
        "policies": [],
    }
