"""Deployments of a scenario: commands and manifests that start its engine, written and read."""

from servesim.launch.engine_command import Written, command

__all__ = ["Written", "command"]
