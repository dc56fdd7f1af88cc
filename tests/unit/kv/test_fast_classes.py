"""Which class serves as an allocator's in fast mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.contracts.kv import kv_allocators
from servesim.engine.modes import MODES
from servesim.policies.kv.paged import Paged

OWN = """
from servesim.engine.fast.kv import FastPaged
from servesim.engine.fast.memory import stands_for
from servesim.policies.kv.paged import Paged


class Mine(Paged):
    pass


class FastMine(FastPaged):
    pass


class Plain(Paged):
    pass


class Derived(FastPaged):
    pass


stands_for(Mine, FastMine)
"""


def test_an_allocator_of_a_users_file_gets_its_fast_class_as_a_built_in_one_does(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    found = {}
    for name in ("Mine", "Plain", "Derived"):
        cls, _ = kv_allocators.resolve(f"{tmp_path / 'own.py'}:{name}")
        assert MODES["reference"].memory(cls) is cls
        found[name] = MODES["fast"].memory(cls).__name__
    assert found == {"Mine": "FastMine", "Plain": "Plain", "Derived": "Derived"}
    assert MODES["fast"].memory(Paged).__name__ == "FastPaged"


@pytest.mark.parametrize("name", kv_allocators.names())
def test_each_built_in_allocator_is_fast_in_fast_mode(name: str) -> None:
    plain, _ = kv_allocators.resolve(name)
    fast = MODES["fast"].memory(plain)
    assert fast is not plain
    assert issubclass(fast, plain)
