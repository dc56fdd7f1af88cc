"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(label: str) -> str:
    found = re.search(rf"<!-- {label}.*?-->\n```\w*\n(.*?)```", README, re.DOTALL)
    assert found is not None, f"the README has no block {label}"
    return found[1]


def commands() -> list[str]:
    return [line.strip().partition("  #")[0] for line in README.splitlines() if line.startswith("    servesim ")]


def call(command: str, folder: Path) -> str:
    arguments = [sys.executable, "-m", *shlex.split(command)]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_run(folder: Path) -> str:
    recipe = re.search(r"^\t\$\(VENV\)/bin/(servesim run .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return "".join(f"{line.rstrip()}\n" for line in call(recipe[1], folder).splitlines())


def test_make_run_prints_what_the_readme_shows(tmp_path: Path) -> None:
    assert block("run") == make_run(tmp_path), "if the change is meant, `make readme` puts it into the README"


def test_the_commands_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "spf.py").write_text(block("policy"))
    assert len(commands()) >= 6
    for command in commands():
        call(command, tmp_path)
    assert (tmp_path / "result" / "summary.json").is_file()
    assert (tmp_path / "twin.jsonl").is_file()


def test_three_lines_of_python_run(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("python"), {})
    assert "queue_time_ns" in capsys.readouterr().out


if __name__ == "__main__":  # make readme
    (ROOT / "README.md").write_text(README.replace(block("run"), make_run(ROOT)))
