"""Queues by class and tenant: by hand, and beside the queue of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.reports.figures.queues import MOST, queue_by
from servesim.reports.run import Run
from servesim.reports.run_tables import groups_table

ONE_AT_A_TIME: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "scheduler": "vllm:max_num_seqs=1",
    "slo": "ttft:100",
    "conclude": False,
}


def run_of(labels: list[str], kind: str = "class") -> Run:
    """Requests that come at once, served one after the other."""
    n = len(labels)
    trace = pd.DataFrame({"arrival_ns": [0] * n, "prompt_len": [100] * n, "output_len": [50] * n, kind: labels})
    return Run(servesim.simulate(trace=trace, **ONE_AT_A_TIME))


def test_each_class_waits_until_its_own_requests_are_scheduled() -> None:
    run = run_of(["gold", "batch", "batch"])
    gold, batch = (run.waiting_of(run.labels["class"] == name) for name in ("gold", "batch"))
    width_ns = (run.end_ns - run.begin_ns) / len(gold)
    scheduled = run.requests["scheduled_ns"]
    assert gold.sum() * width_ns == pytest.approx(scheduled[0] - run.begin_ns)
    assert batch.sum() * width_ns == pytest.approx((scheduled[1:] - run.begin_ns).sum(), rel=1e-6)


def test_the_areas_are_the_queue_of_all_and_the_longest_lies_at_the_bottom() -> None:
    run = run_of(["gold", "batch", "batch", "gold", "batch"])
    drawn = queue_by(run, "class")
    assert drawn is not None
    assert [words for _, words in drawn.legend] == ["batch", "gold"]
    data = drawn.data
    total = data.groupby("x").y.sum().reindex(sorted(set(data.x)))
    assert np.allclose(total.to_numpy(), np.interp(total.index, run.clock_s, run.waiting), atol=1e-3)


def test_tenants_without_a_colour_of_their_own_share_the_last_one() -> None:
    run = run_of([f"t{i:02}" for i in range(12)], "tenant")
    drawn = queue_by(run, "tenant")
    assert drawn is not None
    words = [words for _, words in drawn.legend]
    assert len(words) == MOST + 1
    assert words[-1] == f"{12 - MOST} others"
    assert words[0] == "t11", "what waits longest first"


def test_without_two_labels_or_a_queue_there_is_no_figure() -> None:
    assert queue_by(run_of(["gold", "gold"]), "class") is None
    assert queue_by(run_of(["gold", "batch"]), "tenant") is None
    alone = pd.DataFrame({"arrival_ns": [0], "prompt_len": [9], "output_len": [2], "class": ["a"]})
    assert queue_by(Run(servesim.simulate(trace=alone, **ONE_AT_A_TIME)), "class") is None


@pytest.mark.feature("classes")
def test_the_page_has_a_table_of_classes_and_of_tenants() -> None:
    run = run_of(["gold", "batch", "batch", ""])
    table = groups_table(run, "class")
    assert table is not None
    assert [row[:2] for row in table.rows] == [("batch", "2"), ("(none)", "1"), ("gold", "1")]
    assert table.rows[2][-1] == "100.0 %", "the first one waits for nothing"
    assert groups_table(run, "tenant") is None


@pytest.mark.feature("classes")
def test_a_long_name_takes_one_line_of_forty_characters() -> None:
    run = run_of([f"tenant {i} {'x' * 100}\n<b>" for i in range(40)], "tenant")
    drawn = queue_by(run, "tenant")
    assert drawn is not None
    assert max(len(words) for _, words in drawn.legend) == 40
    assert "\n" not in drawn.alt
    table = groups_table(run, "tenant")
    assert table is not None
    assert max(len(row[0]) for row in table.rows) == 40
