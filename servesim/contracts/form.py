"""Contract of forms: files in which a deployment is written for the system that starts it, and read again.

A built-in form is a module of servesim/launch/forms, found by its name. A package may add one through the entry-point
group `servesim.form`. A user's own form is named `path/to/file.py:Class`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from servesim.contracts.section import Settings
from servesim.plugins.registry import Registry


@dataclass
class Deployment:
    """Settings read from a file, and the parts of it that were not understood."""

    settings: Settings
    unread: list[str] = field(default_factory=list)


class Form(ABC):
    """A kind of file that starts engines. Settings that it does not hold are put into a comment by the caller, and put
    back into the settings that it reads."""

    name: ClassVar[str] = "?"

    def refusal(self, scenario: Mapping[str, Any]) -> str:
        """Return in one line why the form cannot hold a complete scenario, or an empty string if it can. Default: it
        can hold any."""
        return ""

    @abstractmethod
    def files(self, scenario: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of a complete scenario's files by name. The first one is the one that is read again."""

    def recognizes(self, documents: Sequence[Any]) -> bool:
        """Return whether a file with these YAML documents, or a script as one text, has this form. Default: no."""
        return False

    @abstractmethod
    def deployment(self, documents: Sequence[Any]) -> Deployment:
        """Return the settings in documents that it recognizes. Raise UserError if they start no engine."""


forms: Registry[Form] = Registry("form", Form, "servesim.launch.forms")
