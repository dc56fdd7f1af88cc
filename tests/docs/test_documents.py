"""What README and docs show is what happens: every block is run and its output compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from servesim.cli.app import app
from servesim.cli.options import ScenarioCommand, _settings_of_own, canonical
from servesim.errors import UserError
from tests.support.documents import DOCUMENTS, ROOT, blocks, chosen, run

ROOT_COMMAND = typer.main.get_command(app)
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


LONG = ("README.md", "docs/accuracy-notes.md", "docs/first-ten-minutes.md", "docs/speculation.md")
"""Pages that take longest, run by a file of their own: test files are what workers share out."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
def test_every_block_does_what_the_page_says(name: str, tmp_path: Path) -> None:
    does_what_it_says(name, tmp_path)


def does_what_it_says(name: str, tmp_path: Path) -> None:
    """Run a page; AssertionError tells what was shown and what came."""
    failed, _ = run((ROOT / name).read_text(), tmp_path)
    told = [f"{name}:{outcome.block.line}: {outcome.told}" for outcome in failed]
    assert not told, "\n".join([*told, "if the change is meant, `make docs` puts it into the pages"])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_run_says_why(name: str) -> None:
    for block in blocks((ROOT / name).read_text()):
        assert block.kind != "not run" or len(block.argument) > 10, f"{name}:{block.line}"


def commands(page: str) -> Iterator[str]:
    """Every `servesim` command of a page, also those that are not run or stand within a sentence."""
    for block in blocks(page):
        if block.kind in ("run", "run with", "exit", "with ../shared", "not run"):
            yield from (line for line in block.commands if line.startswith("servesim "))
    yield from (" ".join(text.split()) for text in re.findall(r"`(servesim [^`]+)`", page))


def unknown(command: str) -> str | None:
    """The first subcommand or option of a command that servesim does not have."""
    here: Any = ROOT_COMMAND
    for word in shlex.split(command, comments=True)[1:]:
        if hasattr(here, "commands") and not word.startswith("-"):
            if word not in here.commands:
                return word if word.islower() else None  # NAME: any
            here = here.commands[word]
        elif word.startswith("-"):
            known = {name for p in here.params for name in (*p.opts, *p.secondary_opts)} | {"--help", "--help-all"}
            name = word.partition("=")[0]
            if name not in known and not (isinstance(here, ScenarioCommand) and is_part(name)):
                return word
    return None


def is_part(option: str) -> bool:
    """Whether it is a parameter of a policy, a limit, or a setting of the feature that pages show."""
    feature = _settings_of_own((f"{ROOT / 'tests' / 'support' / 'energy.py'}:Energy",))
    try:
        return option in {name for setting in feature for name in setting.names} or bool(canonical([option])[1])
    except UserError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_every_command_named_exists(name: str) -> None:
    for command in commands((ROOT / name).read_text()):
        assert unknown(command) is None, f"{name}: {command}"


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert unknown("servesim run --trace x --modle y") == "--modle"
    assert unknown("servesim compare --trace x --modle y") == "--modle"
    assert unknown("servesim sweep --scheduler.max-num-seqs 1,2 --engine.blocksize 16") == "--engine.blocksize"
    assert unknown("servesim trace convrt x y") == "convrt"
    assert unknown("servesim calibrate import vidur x --out y") is None


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{name}: {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor[1:] in slugs, f"{name}: {target}{anchor}"


PAGE = """
Two commands, the second of which fails:

    printf 'a\\nb\\nc\\n'

<!-- output: 1 3 -->
```
a
...
d
```

    exit 3
"""


def test_a_wrong_output_and_a_failing_command_are_noticed(tmp_path: Path) -> None:
    failed, fresh = run(PAGE, tmp_path)
    assert [(outcome.block.line, outcome.block.kind) for outcome in failed] == [(7, "output"), (13, "run")]
    assert fresh == PAGE.replace("\nd\n", "\nc\n")


def test_a_block_that_does_not_say_what_it_is_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: the block does not say what it is"):
        list(blocks("\n```\nsome output\n```\n"))


def test_lines_by_pattern() -> None:
    assert chosen("one\ntwo\nthree\n", "/^t/") == "...\ntwo\nthree\n"
