"""How many examples Hypothesis tries: a tenth in profile dev, what is written in ci, ten times as many in nightly."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

IN_CI = 100
"""Examples of a test that names no number, in profile ci; the profiles stand in the same proportion."""


def register_profiles() -> None:
    """Register dev, ci and nightly, and load ci; `pytest --hypothesis-profile=NAME` loads another.

    dev and ci try the same examples every time; nightly looks further, at others each time.
    """
    common: dict[str, Any] = {
        "deadline": None,  # the machine may be doing something else
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    }
    settings.register_profile("dev", max_examples=IN_CI // 10, derandomize=True, **common)
    settings.register_profile("ci", max_examples=IN_CI, derandomize=True, **common)
    settings.register_profile("nightly", max_examples=IN_CI * 10, print_blob=True, **common)
    settings.load_profile("ci")


def examples(in_ci: int, **more: Any) -> settings:
    """Return settings for a test that tries `in_ci` examples in profile ci, and others in proportion."""
    return settings(max_examples=max(1, in_ci * settings().max_examples // IN_CI), **more)
