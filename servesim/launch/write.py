"""Deployments written in a form, with the settings that the form does not hold in a comment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from servesim import untrusted
from servesim.contracts.form import Deployment, Form, forms
from servesim.contracts.section import Settings
from servesim.errors import PolicyError, UserError, shown
from servesim.launch.difference import lost_of, whole
from servesim.launch.flow import comment
from servesim.plugins.user_policies import blaming
from servesim.run.deployment_file import documents_in
from servesim.run.setting_names import load_settings


def write(settings: Mapping[str, Any], form: str) -> dict[str, str]:
    """Return the files of a deployment in a form, by name; reading the first one gives the scenario again. Raise
    UserError if the form cannot hold it, and PolicyError if the form breaks its contract."""
    writer, scenario = forms.resolve(form)[0](), whole(settings)
    with blaming([type(writer)]):
        if reason := writer.refusal(scenario):
            raise UserError(f"{form}: {reason}")
        files: Any = writer.files(scenario)
        if not isinstance(files, Mapping) or not files:
            raise PolicyError(f"{form}: files returns {shown(files)} but must return the texts of its files by name")
        held = _read(writer, next(iter(files.values())), form)
    line = comment(lost_of(settings, held))
    return {name: _with(line, text) for name, text in files.items()}


def check_forms(names: Iterable[str]) -> None:
    """Raise UserError if a form is unknown or lacks a method, and PolicyError if it breaks its contract on a small
    deployment. It may refuse that deployment."""
    for name in names:
        forms.resolve(name)
        with suppress(UserError):
            write({}, name)


def forms_for(settings: Mapping[str, Any], asked: Iterable[str] = ()) -> list[str]:
    """Return the names of the forms that can hold a deployment, of those asked for or of all installed ones."""
    scenario = whole(settings)
    return [name for name in asked or forms.names() if _holds(forms.resolve(name)[0](), scenario)]


def read(path: str | Path) -> Settings:
    """Return the settings of a deployment file, or of a scenario. Raise UserError if it starts no engine, or names code
    that may not run."""
    return load_settings(path)


def _holds(form: Form, scenario: Mapping[str, Any]) -> bool:
    try:
        with blaming([type(form)]):
            return not form.refusal(scenario) and bool(form.files(scenario))
    except UserError:
        return False


def _read(form: Form, text: str, name: str) -> Settings:
    documents = documents_in(text, name) or [untrusted.parse_yaml(text, name)]
    found: Any = form.deployment(documents)
    if not isinstance(found, Deployment):
        raise PolicyError(f"{name}: deployment returns {shown(found)} but must return a Deployment")
    return found.settings


def _with(line: str, text: str) -> str:
    """Return a text with the comment line at its beginning, after the first line of a script."""
    first, newline, rest = text.partition("\n")
    return f"{first}\n{line}{rest}" if text.startswith("#!") and newline else line + text
