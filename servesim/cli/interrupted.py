"""Location of an interrupt: the call to a user's own policy during which it arrived."""

from __future__ import annotations

import traceback
from pathlib import Path

from servesim.plugins.user_policies import is_own


def call_during(error: BaseException) -> str:
    """Return the call to a user's own policy during which an exception was raised, such as `Mine.plan (mine.py line
    9)`; empty if there is none."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        me, code = type(frame.f_locals.get("self")), frame.f_code
        contracts = any(each.__module__.startswith("servesim.contracts.") for each in me.__mro__)
        if contracts and is_own(me) and not str(frame.f_globals.get("__name__")).startswith("servesim."):
            return f"{getattr(me, 'name', me.__name__)}.{code.co_name} ({Path(code.co_filename).name} line {line})"
    return ""
