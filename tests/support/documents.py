"""Documents whose blocks are run: what a page shows is what happens.

A block is indented by four spaces or stands between ``` fences. The HTML comment before it says what it is:

    (none)                    commands of a shell; fenced ones are marked `sh`
    <!-- run with: OPTIONS --> the same, each `servesim` line with these options besides: cheaper in tests
    <!-- exit: 2 -->          the same, and it fails with this code
    <!-- python -->           a Python script
    <!-- file: NAME -->       a file that later blocks use
    <!-- output -->           what the block before printed, 100 columns wide
    <!-- output: /REGEX/ -->  of it, the lines that match; `...` stands for the others
    <!-- output: 1-8 12 -->   of it, these lines
    <!-- with ../shared -->   commands that read reference data in $SHARED: not run, and their output not compared,
                              where there is none; `with ../shared: python` a script
    <!-- not run: REASON -->  needs what a test has not, such as a GPU

Blocks of a document run in order in one folder. `make docs` puts present outputs into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "calibrate").glob("*.md")])
SHARED = ROOT.parent / "shared"
DATA = "with ../shared"
KINDS = ("run", "run with", "exit", "python", "file", "output", DATA, "not run")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<say>[^\n]*?) -->\n\n?)?(?P<body>^```.*?^```$|(?:^    [^\n]*\n(?:\n(?=    ))?)+)", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A block of a page: what it is, by which argument, its text, and where."""

    kind: str
    argument: str
    text: str
    span: tuple[int, int]
    """Of the text in the page."""
    line: int

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, each on one line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(line.split()) if "'" not in line else line for line in lines if line.strip()]


@dataclass(frozen=True)
class Outcome:
    """A block that did not do what its page says."""

    block: Block
    told: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page in order; ValueError where one does not say what it is."""
    for found in _BLOCK.finditer(page):
        body, line = found["body"], page.count("\n", 0, found.start("body")) + 1
        fenced = body.startswith("```")
        language, _, rest = body.partition("\n") if fenced else ("```sh", "", body)
        text = rest.removesuffix("```") if fenced else re.sub("^    ", "", body, flags=re.M)
        kind, _, argument = (found["say"] or ("run" if language == "```sh" else "")).partition(": ")
        if kind not in KINDS:
            raise ValueError(f"line {line}: the block does not say what it is (tests/support/documents.py): {kind!r}")
        start = found.start("body") + (len(language) + 1 if fenced else 0)
        yield Block(kind, argument, text, (start, start + len(text)), line)


def run(page: str, folder: Path) -> tuple[list[Outcome], str]:
    """Run a page's blocks in a folder: what went otherwise, and the page with the outputs seen."""
    failed: list[Outcome] = []
    said: str | None = None  # of the block before, unless it failed
    fresh, end = "", 0
    for block in blocks(page):
        if block.kind == "file":
            (folder / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.argument).write_text(block.text)
        elif block.kind == "output":
            shown = chosen(said, block.argument) if said is not None else block.text
            if shown != block.text:
                failed.append(Outcome(block, f"shown:\n{block.text}\nprinted:\n{shown}"))
            fresh += page[end : block.span[0]] + shown
            end = block.span[1]
        elif block.kind == DATA and not SHARED.is_dir():
            said = None
        elif block.kind != "not run":
            code, said = call(block, folder)
            if code != (int(block.argument) if block.kind == "exit" else 0):
                failed.append(Outcome(block, f"exit code {code}:\n{said}"))
                said = None
    return failed, fresh + page[end:]


PROGRESS = re.compile(r"(compare|sweep|capacity|worth|recommend): \d+ (of|runs) ")
"""What experiments say while they run, if they run long: as often as the machine is slow."""


def call(block: Block, folder: Path) -> tuple[int, str]:
    """Exit code and output (both streams, as a terminal shows them) of a block."""
    if block.kind == "python" or block.argument == "python":
        arguments = [sys.executable, "-c", block.text]
    else:
        extra = f" {block.argument}" if block.kind == "run with" else ""
        lines = (_recipe(line) + (extra if line.startswith("servesim ") else "") for line in block.commands)
        arguments = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    terminal = {
        "COLUMNS": "100",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    environment = {**os.environ, **terminal, "PATH": path, "SHARED": str(SHARED)}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    lines = (line.rstrip() for line in done.stdout.splitlines() if not PROGRESS.match(line))
    return done.returncode, "".join(f"{line}\n" for line in lines)


def _recipe(line: str) -> str:
    """What `make TARGET` runs once the environment is there; tests run in the checkout; other commands as they are."""
    if line.startswith("pytest "):
        return f"(cd {shlex.quote(str(ROOT))} && {line})"
    if not line.startswith("make "):
        return line
    dry = [
        "make",
        "--no-print-directory",
        "-C",
        str(ROOT),
        "-n",
        "-o",
        ".venv/.ready",
        "-o",
        ".venv/.installed",
        *line.partition("#")[0].split()[1:],
    ]
    done = subprocess.run(dry, capture_output=True, text=True, check=True)
    return done.stdout.replace(".venv/bin/", "").strip()


def chosen(output: str, which: str) -> str:
    """The lines of an output that a page shows; `...` for those left out."""
    if not which:
        return output
    lines = output.splitlines()
    if which.startswith("/"):
        kept = {i for i, line in enumerate(lines) if re.search(which.strip("/"), line)}
    else:
        spans = [part.partition("-") for part in which.split()]
        kept = {i for first, _, last in spans for i in range(int(first) - 1, int(last or first))}
    shown: list[str] = []
    for i, line in enumerate(lines):
        if i in kept:
            shown.append(line)
        elif shown[-1:] != ["..."]:
            shown.append("...")
    return "".join(f"{line}\n" for line in shown)


def refresh(documents: list[Path]) -> None:
    """Put the outputs seen now into pages."""
    import tempfile

    for path in documents:
        page = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            failed, fresh = run(page, Path(folder))
        for outcome in failed:
            print(f"{path.relative_to(ROOT)}:{outcome.block.line}: {outcome.block.kind}")
            if outcome.block.kind != "output":
                print(outcome.told)
        path.write_text(fresh)


if __name__ == "__main__":  # make docs
    refresh([Path(name).resolve() for name in sys.argv[1:]] or DOCUMENTS)
