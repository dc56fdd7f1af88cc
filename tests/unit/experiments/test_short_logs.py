"""Logs with fewer requests than windows, as in the first try with a log of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.errors import UserError
from servesim.experiments.replicates import replicates_of

LOG = "time,prompt,output\n2026-11-02T09:00:00Z,812,140\n2026-11-02T09:00:01Z,96,310\n2026-11-02T09:00:02Z,2048,64\n"


@pytest.fixture
def log(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "log.csv").write_text(LOG)
    return {"trace": str(tmp_path / "log.csv"), "model": "llama-3.1-8b", "gpu": "h100"}


def test_a_log_of_fewer_requests_than_windows_is_one_window_by_default(log: dict[str, str]) -> None:
    found = replicates_of(log, None, default=5)
    assert (len(found), found.changes) == (1, ({"skip": 0, "requests": 3},))
    assert len(replicates_of(log, None, default=3)) == 3


def test_windows_that_are_asked_for_are_refused_if_there_are_too_few_requests(log: dict[str, str]) -> None:
    with pytest.raises(UserError, match="3 requests are too few for 5 windows"):
        replicates_of(log, 5)
