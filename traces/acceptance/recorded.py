"""Acceptance taken from a recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servesim.contracts import AcceptanceModel, Request, acceptance_models
from servesim.errors import UserError
from servesim.untrusted import json_value, read_text


@dataclass(frozen=True)
class RecordedParams:
    """File of the recording."""

    path: str = ""
    """Path of a JSONL file with {"row": 0, "right": "1101..."} per request; character i is 1 if a draft of output token
    i is correct."""


@acceptance_models.register("recorded")
class Recorded(AcceptanceModel):
    """Recorded draft outcomes, one per output token. Positions and rows beyond the recording wrap around (modulo the
    number recorded)."""

    Params = RecordedParams
    params: RecordedParams

    def __init__(self, params: RecordedParams, seed: int) -> None:
        super().__init__(params, seed)
        self._right = _read(Path(params.path))

    def accepted(self, request: Request, position: int, drafts: int, width: int = 1) -> int:
        right = self._right[request.row % len(self._right)]
        for j in range(drafts):
            if not right[(position + j) % len(right)]:
                return j
        return drafts

    def rates(self, k: int) -> list[float]:
        starts = runs = 0
        counts = [0] * k
        for right in self._right:
            for start in range(len(right)):
                runs = next((j for j in range(k) if not right[(start + j) % len(right)]), k)
                starts += 1
                for j in range(runs):
                    counts[j] += 1
        return [count / starts for count in counts]


def _read(path: Path) -> list[list[bool]]:
    if not str(path) or not path.is_file():
        raise UserError(f"acceptance recorded: file {str(path)!r} does not exist (recorded:path=FILE.jsonl)")
    rows: dict[int, list[bool]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            entry = json_value(line)
            row, right = entry["row"], entry["right"]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f'{path}: line {number}: expected an object such as {{"row": 0, "right": "1101"}}'
            ) from None
        if type(row) is not int or not isinstance(right, str):
            raise UserError(f'{path}: line {number}: expected an object such as {{"row": 0, "right": "1101"}}')
        if not right or set(right) - {"0", "1"} or row != len(rows):
            raise UserError(
                f"{path}: line {number}: rows must be numbered from 0 without gaps, and 'right' must consist of 0 and 1"
            )
        rows[row] = [letter == "1" for letter in right]
    if not rows:
        raise UserError(f"{path}: no rows")
    return list(rows.values())
