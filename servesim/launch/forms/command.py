"""Form `command`: a shell script with the command that starts the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.form import Deployment, Form, forms
from servesim.launch.engine_command import engine_command
from servesim.run.container_command import written_files
from servesim.run.serve_command import served


@forms.register("command")
class CommandForm(Form):
    """A script of one server: no replicas, no router, no pools."""

    def refusal(self, scenario: Mapping[str, Any]) -> str:
        return "a command starts one server: use a form that holds pools" if scenario.get("pools") else ""

    def files(self, scenario: Mapping[str, Any]) -> dict[str, str]:
        return {"serve.sh": f"#!/bin/sh\n{engine_command(scenario).text()}\n"}

    def recognizes(self, documents: Sequence[Any]) -> bool:
        return len(documents) == 1 and isinstance(documents[0], str)

    def deployment(self, documents: Sequence[Any]) -> Deployment:
        script, files = written_files(documents[0])
        lines = script.replace("\\\n", " ").splitlines()
        wanted = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        found = served(wanted[-1] if wanted else "", files)
        return Deployment(found.settings, [*found.unknown, *(f"line {line}" for line in wanted[:-1])])
