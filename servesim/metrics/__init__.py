"""Metric definitions: what the figures of a run mean, and how they follow from its records."""
