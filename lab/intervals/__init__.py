"""Intervals fitted to measured cells and evaluated on left-out data."""
