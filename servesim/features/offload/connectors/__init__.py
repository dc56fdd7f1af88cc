"""Connectors that a scenario's `offload` names, one file each."""
