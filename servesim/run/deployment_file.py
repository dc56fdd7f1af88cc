"""Deployment files read as scenarios: manifests and scripts that start engines, and the comment that carries settings
which they do not hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servesim import untrusted
from servesim.contracts.form import Deployment, forms
from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.run.part_names import with_parts
from servesim.run.pools import FIELDS
from servesim.run.scenario import Scenario
from servesim.run.sections import yaml_value

MARK = "# servesim:"
VERSION = "engine.version"
_COMMENT = re.compile(rf"^[ \t]*{MARK}(.*)$", re.MULTILINE)
_KEYS = ("kind", "apiVersion", "services")
"""Keys of manifests, which no scenario has."""


def documents_in(text: str, where: str) -> list[Any] | None:
    """Return the documents of a deployment file, a script as its text alone, or None if the text is a scenario."""
    if text.startswith("#!"):
        return [text]
    if not re.search(rf"^(?:{'|'.join(_KEYS)})[ \t]*:|^\{{|^---", text, re.MULTILINE):
        return None
    found = [document for document in untrusted.parse_documents(text, where) if document is not None]
    many = len(found) > 1
    return (
        found if many or any(isinstance(one, Mapping) and any(key in one for key in _KEYS) for one in found) else None
    )


def deployment(text: str, where: str) -> Deployment | None:
    """Return the settings of a deployment file's text, or None if it is a scenario. Raise UserError if it starts no
    engine."""
    documents = documents_in(text, where)
    if documents is None:
        return None
    for name in forms.names():
        form = forms.resolve(name)[0]()
        if form.recognizes(documents):
            try:
                found = form.deployment(documents)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            except (AttributeError, TypeError, LookupError, ValueError) as error:
                raise UserError(
                    f"{where}: not in the form {name}: a part of it has the wrong type ({error})"
                ) from error
            return Deployment(restored(found.settings, commented(text)), found.unread)
    kinds = ", ".join(str(one.get("kind", "?")) for one in documents if isinstance(one, Mapping))
    raise UserError(
        f"{where}: no engine command found (kinds: {kinds}); forms that are read: {', '.join(forms.names())}"
    )


def unread_note(path: str | Path) -> str:
    """Return a line that names the parts of a deployment file that were not understood, or an empty string."""
    if not Path(path).is_file():
        return ""
    found = deployment(untrusted.read_text(Path(path), "yaml"), f"scenario {path}")
    return f"{path}: NOT UNDERSTOOD and without effect: {'; '.join(found.unread)}" if found and found.unread else ""


def commented(text: str) -> Settings:
    """Return the settings in the comment lines of a file; raise UserError if one is malformed."""
    found: Settings = {}
    for line in _COMMENT.findall(text):
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UserError(f"{MARK} {line.strip()[:80]}: {error}") from error
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise UserError(f"{MARK} {word[:80]}: must have the form key=value")
            version = key.endswith(VERSION) and value != "null"
            found[key] = value if version else yaml_value(f"{MARK} {key}", value)
    return found


def restored(read: Mapping[str, Any], lost: Mapping[str, Any]) -> Settings:
    """Return the settings read from a form, with the lost ones put back. A setting of pools applies to each of them;
    `pools.NAME.KEY` is the setting of one."""
    pools = read.get("pools") or ()
    one = {pool["name"]: f"pools.{pool['name']}." for pool in pools}
    top = {key: value for key, value in lost.items() if not key.startswith(tuple(one.values()) or ("pools.",))}
    found = with_parts({key: value for key, value in read.items() if key != "pools"}, top, Scenario)
    if not pools or "pools" in lost:
        return found
    every = {key: value for key, value in top.items() if key.partition(".")[0] in FIELDS}
    return found | {"pools": [with_parts(pool, every | _inside(lost, one[pool["name"]]), Scenario) for pool in pools]}


def _inside(lost: Mapping[str, Any], head: str) -> Settings:
    return {key.removeprefix(head): value for key, value in lost.items() if key.startswith(head)}
