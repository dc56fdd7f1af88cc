"""Conversion of a scenario into a result."""
