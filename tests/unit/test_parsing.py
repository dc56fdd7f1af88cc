"""Texts of the command line in parts, the same on every system."""

from __future__ import annotations

import pytest

from servesim.contracts import schedulers
from servesim.contracts.section import policy_settings
from servesim.errors import UserError, suggest
from servesim.experiments.axes import split_values
from servesim.parsing import policy_parts

WINDOWS = r"C:\x\spf.py:Cls"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("vllm", ("vllm", "", "")),
        ("vllm:max_num_seqs=8,policy=priority", ("vllm", "", "max_num_seqs=8,policy=priority")),
        ("a/b.py:Cls", ("a/b.py", "Cls", "")),
        ("a/b.py:Cls:k=1,l=x:y", ("a/b.py", "Cls", "k=1,l=x:y")),
        (WINDOWS, (r"C:\x\spf.py", "Cls", "")),
        (rf"{WINDOWS}:model=D:\m\config.json", (r"C:\x\spf.py", "Cls", r"model=D:\m\config.json")),
        ("c:/x/spf.py:Cls:k=1", ("c:/x/spf.py", "Cls", "k=1")),
        (r"C:\x\spf.py", (r"C:\x\spf.py", "", "")),
    ],
)
def test_a_drive_is_part_of_the_path(text: str, parts: tuple[str, str, str]) -> None:
    assert policy_parts(text) == parts


def test_a_policy_on_a_drive_is_named_whole_wherever_it_is_named() -> None:
    assert policy_settings(f"{WINDOWS}:k=1") == {"name": WINDOWS, "k": "1"}
    assert split_values("scheduler", f"{WINDOWS}:k=1,l=2,vllm") == [f"{WINDOWS}:k=1,l=2", "vllm"]
    with pytest.raises(UserError, match=r"scheduler file C:\\x\\spf.py does not exist"):
        schedulers.resolve(WINDOWS)
    with pytest.raises(UserError, match=r"name the class|does not exist"):
        schedulers.resolve(r"C:\x\spf.py")


def test_choices_are_listed_as_far_as_a_line_goes() -> None:
    assert suggest("zzz", ["b", "a"]) == " (choose from: a, b)"
    many = [f"name_{i:03}" for i in range(100)]
    told = suggest("zzz", many)
    assert told.startswith(" (choose from: name_000, name_001, ")
    listed = told.count("name_")
    assert told.endswith(f" and {100 - listed} more)")
    assert 100 < len(told) <= 230
    assert suggest("zzz", ["x" * 500]).startswith(" (choose from: xxx")
