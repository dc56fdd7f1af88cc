"""Numbers that stand for something else."""

from typing import Final

NEVER: Final = 1 << 62
"""A time in nanoseconds, or a place in an order, later than any."""
