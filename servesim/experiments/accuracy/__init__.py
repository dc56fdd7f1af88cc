"""Accuracy of the simulator: measured serving cells are replayed, screened and scored."""
