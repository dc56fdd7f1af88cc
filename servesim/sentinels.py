"""Numbers with a special meaning."""

from typing import Final

NEVER: Final = 1 << 62
"""A time in nanoseconds, or a position in an order, later than any other."""
