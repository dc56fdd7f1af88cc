"""Intervals fitted to measured cells, and judged on what was left out."""
