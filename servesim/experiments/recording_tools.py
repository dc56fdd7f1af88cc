"""Runs recorded by benchmark clients, gateways and tracers, with latencies read from files that can also be
read as traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from servesim.errors import UserError
from servesim.experiments.recording import RecordedRun, run_name, settings_beside, stated_server


def read_tool(path: Path, root: Path, alone: bool) -> RecordedRun | None:
    """Read a recorded run from an AIPerf, GuideLLM, GenAI-Perf, inference-perf, OpenTelemetry or Baseten file or, if
    `alone` is set, from any log with latencies. Return None if the file holds no latencies."""
    from servesim.traces.formats import detect_format, formats

    try:
        module = formats()[detect_format(path)]
    except UserError:
        return None
    if not hasattr(module, "recorded") or (getattr(module, "LOOSE", False) and not alone):
        return None
    log = module.recorded(path)
    if np.isnan(log.e2el_ms).all() and np.isnan(log.ttft_ms).all():
        return None
    settings = settings_beside(path, root)
    return RecordedRun(
        name=run_name(path, root),
        path=path,
        format=module.NAME,
        server=stated_server(path, settings, log.model or settings.get("model")),
        arrival_ns=log.start_ns,
        prompt_len=log.prompt,
        output_len=log.output,
        ttft_ms=log.ttft_ms,
        e2el_ms=log.e2el_ms,
        concurrency=log.concurrency,
        notes=log.notes,
    )
