"""Metric definitions: the meaning of a run's figures, and how they follow from its records."""
