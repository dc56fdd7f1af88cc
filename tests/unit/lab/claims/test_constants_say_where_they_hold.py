"""Constants say where they are from: shipped host terms, and numbers at the top of the modules that price steps."""

from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import servesim.cost
from servesim.cost.host import OF_CHIP

SHIPPED = resources.files("servesim.calibrate.tables") / "host"
FILES = sorted(path.name for path in SHIPPED.iterdir() if path.name.endswith(".yaml"))
ABOUT = ("base", "engine", "gpus", "provenance")
FITTED = ("fitted_on", "logs")
"""Keys of a provenance that says of all terms of its file at once what they were fitted on."""
TOGETHER = {"of_chip": OF_CHIP, "front": ("front_in", "front_out", "front_per_request", "front_in_per_token")}
"""Keys of a provenance that speak of several terms."""


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((SHIPPED / name).read_text(encoding="utf-8"))
    return found


def unaccounted(values: dict[str, Any]) -> list[str]:
    """Return what a file of host terms leaves open: terms without an origin, and what it does not say as a whole."""
    said = values.get("provenance") or {}
    told = {term for key in said for term in (key, *TOGETHER.get(key, ()))}
    terms = [term for term, value in values.items() if term not in ABOUT and value]
    open_terms = [] if any(key in said for key in FITTED) else [term for term in terms if term not in told]
    short = [key for key, text in said.items() if isinstance(text, str) and key in terms and len(text) < 20]
    return open_terms + short + ([] if said.get("range") else ["range"])


@pytest.mark.parametrize("name", FILES)
def test_shipped_host_terms_say_what_they_were_fitted_on_and_where_they_hold(name: str) -> None:
    assert unaccounted(loaded(name)) == []


def test_a_term_nobody_accounts_for_is_found() -> None:
    file = {"exposed": 5.0, "front_in": 7.0, "overlapped": 0.0, "provenance": {"front": "measured on a server of ours"}}
    assert unaccounted(file) == ["exposed", "range"]
    assert unaccounted({**file, "provenance": {"logs": ["a"], "range": "1 to 8 sequences"}}) == []


MODULES = sorted(path for path in Path(next(iter(servesim.cost.__path__))).glob("*.py"))


def undocumented(source: str) -> list[str]:
    """Return the names of numbers assigned at the top of a module with no text after them."""
    body = ast.parse(source).body
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, float) and not (
            isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        ):
            found.append(ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_numbers_that_price_steps_are_explained_where_they_stand(path: Path) -> None:
    assert undocumented(path.read_text(encoding="utf-8")) == []


def test_a_number_without_a_word_is_found() -> None:
    assert undocumented('A = 0.5\n"""What it is."""\nB: float = 2.5\nC = 3') == ["B"]
