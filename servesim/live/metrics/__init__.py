"""Metrics of a live run for Prometheus, by the names and with the meanings of the simulated engine."""
