"""Runs described by the commands that produced them, one line per run, with the output of the engine and of `vllm bench
serve`.

Lengths are computed from the totals, since the bench command on a page may not have been used for every run on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.recording import known_gpu
from servesim.run.compilation_config import by_key
from servesim.run.flag_meanings import SIZES, serve_flags, settings_of_flag
from servesim.run.serve_command import parsed

SERVE, REQUESTS = "serve_command", "Successful requests"
PROMPTS, ANSWERS = "Total input tokens", "Total generated tokens"
RATE, CLIENTS = "Output token throughput (tok/s)", "Maximum request concurrency"
TTFT, TPOT, ITL = "Mean TTFT (ms)", "Mean TPOT (ms)", "Mean ITL (ms)"
COLUMNS = ("doc", "section", SERVE, REQUESTS, PROMPTS, ANSWERS, RATE, TTFT, TPOT)
_FORMATS = re.compile(r"-(FP8|AWQ|GPTQ|INT4|NVFP4)$", re.IGNORECASE)
CONTRADICTION = "contradiction"
"""Placeholder for the model of a run whose heading names a different model or flag than its command."""
CLOSED = 0.75
"""Minimum share of its clients' requests that a closed loop has in flight on average. (Recorded ones: 0.96 to 1.)"""


def number_in(row: Mapping[str, str], where: str, name: str) -> float:
    """Return a number in a line, or 0 if it is not stated. Raise UserError if it is not a finite number."""
    text = row.get(name) or ""
    try:
        value = float(text) if text.strip() else 0.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: {name} is {text!r} but must be a number")
    return value


def cell_of_run(row: Mapping[str, str], number: int, where: str) -> Cell:
    """Return a line as a cell. Raise UserError if a value is not a number."""
    figure = partial(number_in, row, where)
    engine, model, flags = parsed(row[SERVE])
    sizes = {SIZES[name]: int(value) for name, value in flags if name in SIZES and value.isdigit()}
    others = tuple((name, value) for name, value in flags if name not in SIZES)
    count = round(figure(REQUESTS))
    weights = found[1].lower() if (found := _FORMATS.search(model)) else ""
    versions = re.findall(r"'([^']+)': '([^']+)'", row.get("engine_versions") or "")
    version = next((v for name, v in versions if name.lower().replace("-", "").startswith(engine[:4])), "")
    tp = sizes.get("tp", 1)
    gap = figure(ITL) if figure(ITL) <= figure(TPOT) else 0.0  # over all chunks; longer where chunks are several tokens
    gaps = gap * (figure(ANSWERS) / max(count, 1) - 1)
    return Cell(
        id=f"{row['doc']} {number}",
        source=row["section"] if agrees(row, model, flags) else f"{CONTRADICTION}: {row['section']}",
        engine=engine,
        version=version,
        model=_FORMATS.sub("", model),
        gpu=known_gpu(row["doc"].rpartition("_")[2]) or row["doc"].rpartition("_")[2],
        precision=weights,
        weights=weights,
        isl=round(figure(PROMPTS) / max(count, 1)),
        osl=round(figure(ANSWERS) / max(count, 1)),
        concurrency=round(figure(CLIENTS)) or count,
        tp=tp,
        pp=sizes.get("pp", 1),
        ep=tp if ("enable-expert-parallel", "") in others else sizes.get("ep", 1),
        ttft_ms=figure(TTFT),
        tpot_ms=figure(TPOT),
        workers=" ".join(f"--{name} {value}".strip() for name, value in others),
        flags=others,
        requests=count,
        output_rate=figure(RATE),
        e2e_ms=figure(TTFT) + gaps if gaps > 0 else 0.0,
    )


def agrees(row: Mapping[str, str], model: str, flags: tuple[tuple[str, str], ...]) -> bool:
    """Return whether the heading and the page name of a run agree with its command."""
    if row["doc"].rpartition("_")[0].partition(".x")[0].lower() not in model.lower():
        return False
    if not row["section"].startswith("--"):
        return True
    (_, _, headed) = parsed(f"vllm serve {row['section']}")
    return set(headed) <= set(flags)


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the dotted settings that match the flags of a command. Raise UserError for a flag that is not modeled."""
    assert cell.flags is not None
    known = serve_flags().get(cell.engine, {})
    found: dict[str, Any] = {}
    for name, value in by_key(dict(cell.flags)).items():
        settings = settings_of_flag(known[name], value) if name in known else None
        if settings is None:
            raise UserError(f"flag --{name} of {cell.engine}")
        found |= settings
    return found


def check_loop(cell: Cell) -> None:
    """Raise UserError if far fewer requests were in flight (by Little's law) than the stated number of clients, each of
    which is taken to send its next request at once."""
    if not cell.output_rate or cell.osl < 1:
        return
    seconds = (cell.e2e_ms or cell.ttft_ms + (cell.osl - 1) * cell.tpot_ms) / 1e3
    if cell.output_rate / cell.osl * seconds < CLOSED * cell.concurrency:
        raise UserError(
            "far fewer requests were in flight than there were clients, so they were sent at an unstated rate"
        )
