"""Parts of a run besides settings: steps of `--shape`, keys of `synth:`, traces, engines, policies and features."""

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
    yield from _traces()
    yield from _engines()
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
        example = _unset(required)
        parameters = f" Parameters: {'; '.join(told)}." if told else ""
        yield part(f"shape {name}", f"--shape {name}{':' if example else ''}{example}", f"{cls.__doc__}{parameters}")


def synth_keys() -> Iterator[dict[str, Any]]:
    """Yield the keys of `synth:`, as described in the docstring of servesim.traces.synth."""
    from servesim.traces import synth

    key, lines = "", list[str]()
    for line in [*(synth.__doc__ or "").splitlines(), "    end "]:
        if found := re.match(r"    (\w+)\s+(.*)", line):
            if key:
                doc, default = re.fullmatch(r"(.*?)(?: *\[(.*)\])?", " ".join(lines)).groups("")  # type: ignore[union-attr]
                yield part(f"synth {key}", f"--trace synth:{key}=...", doc, default)
            key, lines = found[1], [found[2].strip()]
        elif key and line.startswith("     "):
            lines.append(line.strip())


def _traces() -> Iterator[dict[str, Any]]:
    from servesim.traces.catalogue import catalogue
    from servesim.traces.presets import NUMBERS, Fit, load_fit, preset_names

    for name in preset_names():
        fit = load_fit(name)
        numbers = "" if isinstance(fit, Fit) else ":" + _unset(NUMBERS)
        doc = f"Synthetic twin of {fit.original['file']} ({fit.original.get('citation', '')})."
        yield part(f"preset {name}", f"--trace preset:{name}{numbers}", doc)
    for entry in catalogue().values():
        doc = f"{entry.about[0].upper()}{entry.about[1:]} ({entry.citation})."
        yield part(f"public trace {entry.name}", f"servesim trace fetch {entry.name}", doc)


def _engines() -> Iterator[dict[str, Any]]:
    from servesim.run.presets import engine_presets

    for name, about in engine_presets().items():
        yield part(f"engine {name}", f"--engine {name}", f"Defaults of {name} {about['version']}.")


def _policies() -> Iterator[dict[str, Any]]:
    from servesim.cli.parameters import idea, parameters
    from servesim.contracts import REGISTRIES
    from servesim.run.scenario import Scenario

    for registry in [each for each in REGISTRIES if each.kind in Scenario.model_fields]:
        for name in registry.names():
            cls = registry.resolve(name)[0]
            option, doc = f"--{registry.kind} {name}", idea(cls).partition("\n\n")[0]
            if keys := [one.name for one in parameters(cls)]:
                doc += f" Parameters ({option}:{keys[0]}=...): {', '.join(keys)}."
            yield part(f"{registry.kind} {name}", option, doc)


def _features() -> Iterator[dict[str, Any]]:
    from servesim.contracts.feature import installed

    for feature in installed():
        keys = [*feature.keys(), *feature.claims, *type(feature).Options.model_fields]
        option = " ".join(f"--{key.replace('_', '-')}" for key in keys)
        doc = " ".join((type(feature).__doc__ or "").split())
        yield part(f"feature {feature.name}", option, doc)


def _unset(keys: Sequence[str]) -> str:
    """Return keys as they are typed, with dots in place of their values."""
    return ",".join(f"{key}=..." for key in keys)


def part(key: str, option: str, doc: str, default: str = "") -> dict[str, Any]:
    """Return a part with the keys of a setting."""
    return {
        "key": key,
        "option": option,
        "section": key.partition(" ")[0],
        "type": "",
        "default": default or None,
        "doc": " ".join(doc.split()),
        "policies": [],
    }
