"""Values with a special meaning."""

from typing import Final

NEVER: Final = 1 << 62
"""A time in nanoseconds, or a position in an order, later than any other."""
COMMON: Final = "common"
"""Mark of an option that `--help` lists: in a setting's annotation, or as the `rich_help_panel` of a command's own."""
NOTHING: Final = ("none", "null")
"""Words for a setting that is not given, where that is the default."""
