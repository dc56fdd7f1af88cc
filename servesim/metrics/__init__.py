"""Metric definitions: the meaning of a run's figures, and their computation from its records."""
