"""Deployments of a scenario: commands and manifests that start its engine, written and read."""

from servesim.launch.engine_command import Written, command
from servesim.launch.write import check_forms, forms_for, read, write

__all__ = ["Written", "check_forms", "command", "forms_for", "read", "write"]
