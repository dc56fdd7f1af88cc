"""docs/map.md is what `make docs` makes of the modules as they are."""

from __future__ import annotations

import re

from tests.support import module_map
from tests.support.documents import ROOT


def test_the_map_is_up_to_date() -> None:
    assert module_map.PAGE.read_text(encoding="utf-8") == module_map.page(), "`make docs` makes it"


def test_the_map_names_every_module_and_says_something_of_each() -> None:
    rows = re.findall(r"^\| \[\w+\]\(\.\./(.*?)\) \| (.*) \|$", module_map.page(), flags=re.M)
    folders = ("servesim", "policies", "traces", "calibrate", "reports", "lab")
    modules = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert {name for name, _ in rows} == modules
    assert [name for name, sentence in rows if len(sentence) < 10] == []


def test_pages_for_newcomers_lead_to_the_map() -> None:
    for name, link in (("docs/README.md", "(map.md)"), ("CONTRIBUTING.md", "(docs/map.md)")):
        assert link in (ROOT / name).read_text(encoding="utf-8")
