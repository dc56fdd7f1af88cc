"""Logs with fewer requests than windows, as in the first try with a log of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli.tables import print_capacity
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


def capacity_of(log: dict[str, str], caught: pytest.CaptureFixture[str], **asked: Any) -> tuple[dict[str, Any], str]:
    """The document of a capacity question and what the command prints of it."""
    settings = log | {"gpu": "h200", "slo": "ttft:1000", "intervals": False, "jobs": 1, "tolerance": 0.3}
    document = servesim.capacity(**settings, **asked).attrs["document"]
    caught.readouterr()
    print_capacity(document, None, verbose=True)
    return document, " ".join(caught.readouterr().out.split())


def test_windows_and_intervals_that_do_not_exist_are_not_printed(
    log: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of two seconds has no 10-minute windows, and a number of replicas no interval."""
    document, said = capacity_of(log, capsys, rate="3x")
    assert "window_minutes" not in document["settings"]
    assert "minute window" not in said
    assert "deployment GPUs rate share " in said


def test_one_replicate_of_a_log_that_has_more_is_told_to_take_more(
    log: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = capacity_of(log, capsys, rate="3x")
    assert "Use a longer log" in said
    assert "bisection" not in said
    Path(log["trace"]).write_text(LOG + "".join(f"2026-11-02T09:00:0{i}Z,96,10\n" for i in range(3, 9)))
    for asked in ({"rate": "3x"}, {}):
        _, said = capacity_of(log, capsys, replicates=1, **asked)
        assert "Use a longer log" not in said
        assert "Use --replicates 5" in said
        assert ("bisection" in said) == (not asked)
