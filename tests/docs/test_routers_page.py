"""docs/routers.md names every router, and counts the recorded decisions that there are."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from servesim.contracts import routers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "routers.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Which follow what")[2].partition("## Rules")[0]
ROWS = [line.split(" | ") for line in TABLE.splitlines() if line.startswith(("| `", "| ["))]
RECORDED = ROOT.parent / "shared" / "conformance" / "cluster"


def test_every_router_is_in_the_table() -> None:
    named = {name.partition(":")[0] for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
    assert named == set(routers.names())


@pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not here")
def test_its_decisions_are_those_recorded() -> None:
    found = 0
    for path in RECORDED.glob("*.json.gz"):
        script = json.loads(gzip.decompress(path.read_bytes()))
        if "ops" in script:
            found += sum(op["op"] in ("arrive", "request") for op in script["ops"])
    said = [int(row[-1].strip(" |").replace(",", "")) for row in ROWS if row[-1].strip(" |").replace(",", "").isdigit()]
    assert sum(said) == found
