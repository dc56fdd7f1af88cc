"""Recordings too short for host terms are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servesim.calibrate.host import fit_host
from servesim.errors import UserError


def test_a_log_of_few_steps_is_refused_in_one_line(tmp_path: Path) -> None:
    """Six requests one after the other, two at a time: no step was seen fifteen times."""
    rows = "".join(f"{400_000 * i},{400_000 * i + 100_000},{400_000 * i + 500_000},64,20\n" for i in range(6))
    head = "send_time_us,first_chunk_time_us,last_chunk_time_us,server_input_tokens,output_tokens\n"
    (tmp_path / "run.csv").write_text(head + rows)
    (tmp_path / "server_config.json").write_text(json.dumps({"model": "qwen3-8b", "gpu": "h100"}))
    with pytest.raises(UserError, match="too few recorded steps"):
        fit_host(tmp_path)
