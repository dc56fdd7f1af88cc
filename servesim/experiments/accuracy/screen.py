"""Screening for measured cells that contradict their labels, by rules that do not use predictions.

Rules are tried in the order of `RULES`; the first one that applies excludes the cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from servesim.experiments.accuracy.cells import Cell
from servesim.experiments.accuracy.reach import Reach, prompt_mean, reach_of, tokens_per_s
from servesim.experiments.accuracy.recipes import output_mean, recipes
from servesim.experiments.named import grouped

FALL = 0.05
"""Relative drop in TPOT, compared with fewer clients, that counts as a contradiction. Repeats differ by a median of .7
% and a mean of 3.4 %."""
APART = 0.25
"""Relative difference at which two measurements of one place contradict each other: repeats with one version differ by
3.4 % on average, and those with different versions by 14 %."""
IDLE = 0.5
"""Fraction of the matrix products' maximum rate below which clients are considered to wait unnecessarily."""
_DRAFTS = re.compile(r"\b(mtp|nextn|eagle\d?|spec(ulative)?[_-]?(dec\w*)?)\b", re.IGNORECASE)

RULES = {
    "missing label": "lengths, concurrency, tensor parallelism (of one engine), TTFT or TPOT is missing",
    "copy": (
        "duplicates: every label (the version may be missing) and both times equal those of another cell, which is kept"
    ),
    "two labels": "both times equal those of a cell with different labels to the last digit: one label is wrong",
    "more GPUs than a box": "one engine, or its experts, spans more GPUs than one server of that type has",
    "two numbers of clients": "both concurrency and batch size are stated, but concurrency is not the batch size times "
    "the number of attention replicas: one of the three labels is wrong",
    "drafts of unknown acceptance": "the label names speculation but no acceptance rate",
    "two measurements": f"TPOTs of cells with the same labels, lengths and concurrency are more than {APART:.0%} "
    "apart: some ran with unstated settings, such as multi-token prediction",
    "faster than its products": "all cells of a server if one produces more tokens per second than the model's GEMMs "
    "alone allow, each at the fastest rate measured on that GPU: its prompts were cached",
    "waits without need": f"requests wait for over half of their time although less than {IDLE:.0%} of GEMM-bound "
    "throughput is used and the KV of all clients fits in memory: an unstated limit admits fewer",
    "waits longer than its rate": f"all cells of a server if requests of one wait over {APART:.0%} longer than the "
    "server's shortest TTFT plus the time it needs for the prompts of all clients at its own highest measured rate, "
    "although the KV of all clients fits in memory: it stalled, or an unstated limit admits fewer",
    "falls with concurrency": f"TPOT is more than {FALL:.0%} below the same server's at fewer clients; all cells are "
    "excluded except the largest set in which TPOT does not fall",
}
"""Descriptions of the rules, by rule name."""


def screen(cells: Sequence[Cell]) -> list[str]:
    """Return, for each cell, the rule that excludes it, or an empty string if none does."""
    out = [""] * len(cells)
    labels = (_each(_missing), _copies, _two_labels, _each(_too_many), _each(_two_numbers), _each(_drafts))
    for rule, check in zip(RULES, (*labels, _apart, _too_fast, _waiting, _stalled, _falling), strict=True):
        left = [i for i, by in enumerate(out) if not by]
        for place in check([cells[i] for i in left]):
            out[left[place]] = rule
    return out


def _each(applies: Callable[[Cell], object]) -> Callable[[Sequence[Cell]], list[int]]:
    """Return a rule for each cell alone as one for all of them."""
    return lambda cells: [i for i, cell in enumerate(cells) if applies(cell)]


def _missing(cell: Cell) -> bool:
    tp = cell.tp if cell.mode == "agg" else 1
    return min(cell.isl, cell.osl, cell.concurrency, cell.ttft_ms, cell.tpot_ms, tp) <= 0


def _times(cell: Cell) -> tuple[float, float]:
    return cell.ttft_ms, cell.tpot_ms


def _labels(cell: Cell) -> tuple[str | int, ...]:
    """Return all labels except the version, which some tables omit, with the different names of a model unified."""
    model = recipes()["same_models"].get(cell.model, cell.model)
    return replace(cell, model=model, version="").place


def _copies(cells: Sequence[Cell]) -> Iterator[int]:
    """Yield the copies: in each group of equal cells, all but the first that states its version, or all but the first
    cell if none does."""
    for members in grouped(((_labels(cell), *_times(cell)), i) for i, cell in enumerate(cells)).values():
        stays = next((i for i in members if cells[i].version), members[0])
        yield from (i for i in members if i != stays)


def _two_labels(cells: Sequence[Cell]) -> list[int]:
    labels = grouped((_times(cell), _labels(cell)) for cell in cells)
    return [i for i, cell in enumerate(cells) if len({*labels[_times(cell)]}) > 1]


def _too_many(cell: Cell) -> bool:
    return cell.mode == "agg" and max(cell.gpus, cell.ep) > recipes()["boxes"]["gpus"].get(cell.gpu, inf)


def _two_numbers(cell: Cell) -> bool:
    return cell.mode == "agg" and cell.batch > 0 and cell.concurrency != cell.batch * max(cell.dp, 1)


def _drafts(cell: Cell) -> object:
    return cell.run is None and _DRAFTS.search(f"{cell.id.replace('_', ' ')} {cell.source}")


def _apart(cells: Sequence[Cell]) -> list[int]:
    places = grouped((cell.place, cell.tpot_ms) for cell in cells if cell.run is None)
    apart = {place for place, times in places.items() if max(times) > (1 + APART) * min(times)}
    return [i for i, cell in enumerate(cells) if cell.run is None and cell.place in apart]


def _too_fast(cells: Sequence[Cell]) -> list[int]:
    return _of_servers(_reaches(cells), lambda cell, reach: tokens_per_s(cell) > reach.tokens_per_s)


def _waiting(cells: Sequence[Cell]) -> list[int]:
    def waits(cell: Cell, reach: Reach) -> bool:
        half = cell.ttft_ms > (output_mean(cell) - 1) * cell.tpot_ms
        return half and tokens_per_s(cell) < IDLE * reach.tokens_per_s and _kv_wanted(cell) < reach.kv_tokens

    return [i for i, cell, reach in _reaches(cells) if waits(cell, reach)]


def _stalled(cells: Sequence[Cell]) -> list[int]:
    known = _reaches(cells)
    ttfts = grouped((cell.deployment, cell.ttft_ms) for _, cell, _ in known)
    rates = grouped(((*cell.deployment, cell.isl, cell.osl), tokens_per_s(cell)) for _, cell, _ in known)

    def stalls(cell: Cell, reach: Reach) -> bool:
        highest = max(rates[*cell.deployment, cell.isl, cell.osl])
        longest_ms = (1 + APART) * (min(ttfts[cell.deployment]) + 1e3 * cell.concurrency * prompt_mean(cell) / highest)
        return cell.ttft_ms > longest_ms and _kv_wanted(cell) < reach.kv_tokens

    return _of_servers(known, stalls)


def _of_servers(known: Sequence[tuple[int, Cell, Reach]], applies: Callable[[Cell, Reach], bool]) -> list[int]:
    """Return all cells of the servers to one of whose cells a rule applies."""
    beyond = {cell.deployment for _, cell, reach in known if applies(cell, reach)}
    return [i for i, cell, _ in known if cell.deployment in beyond]


def _kv_wanted(cell: Cell) -> float:
    """Return the number of KV tokens of all clients at the end of their answers."""
    return cell.concurrency * (prompt_mean(cell) + output_mean(cell))


def _reaches(cells: Sequence[Cell]) -> list[tuple[int, Cell, Reach]]:
    """Return the table lines whose servers have known limits."""
    rows = ((i, cell) for i, cell in enumerate(cells) if cell.run is None and cell.flags is None)
    return [(i, cell, reach) for i, cell in rows if (reach := reach_of(cell)) is not None]


def _falling(cells: Sequence[Cell]) -> Iterator[int]:
    known = [(i, cell) for i, cell in enumerate(cells) if cell.run is None and cell.mode == "agg"]
    for members in grouped(((*cell.deployment, cell.isl, cell.osl), i) for i, cell in known).values():
        members.sort(key=lambda i: (cells[i].concurrency, cells[i].tpot_ms))
        kept = rising([cells[i].tpot_ms for i in members])
        yield from (i for place, i in enumerate(members) if place not in kept)


def rising(times: Sequence[float]) -> set[int]:
    """Return the indices of the largest set of values in which none is more than `FALL` below the one before. If
    several sets are equally large, none is known to be right, so return the indices they share."""
    ends: list[tuple[int, set[int]]] = []
    for i, value in enumerate(times):
        length, common = _longest([ends[j] for j in range(i) if value >= (1 - FALL) * times[j]])
        ends.append((length + 1, common | {i}))
    return _longest(ends)[1]


def _longest(chains: Sequence[tuple[int, set[int]]]) -> tuple[int, set[int]]:
    """Return the length of the longest chains, and the indices that all of them share."""
    most = max((length for length, _ in chains), default=0)
    longest = [places for length, places in chains if length == most]
    return most, set.intersection(*longest) if longest else set()
