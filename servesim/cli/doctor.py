"""`servesim doctor`: check of this installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim import __version__
from servesim.errors import UserError

DOCTOR_EXAMPLES = """
\b
Examples:
  servesim doctor
  servesim doctor --json

The exit code is 1 if a check fails.
"""
SELF_TEST: dict[str, Any] = {
    "trace": "synth:rate=20,prompt=500,output=100",
    "requests": 200,
    "model": "llama-3.1-8b",
    "gpu": "h200",
}
"""Scenario of the self-test. It takes a second, mostly for imports; its prices come from tables, and both modes must
agree."""
OPTIONAL = ("ray", "optuna", "aiconfigurator-core", "torch", "transformers")


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the installation, with a short run in both modes.

    The checks cover Python, packages, tables and cores.
    """
    found = examine()
    if as_json:
        from servesim.cli.known import print_json

        print_json(found)
    else:
        _print(found)
    if not found["sound"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Return all findings, even if some checks fail."""
    from servesim.engine import compiled

    packages, tables, test = _packages(), _tables(), _self_test()
    problems = [f"{name} is missing or too old: {one['installed']}" for name, one in packages.items() if not one["ok"]]
    problems += [f"kernel tables {name} cannot be read: {error}" for name, error in tables.items() if error]
    problems += [f"self test: {test['error']}"] if test["error"] else []
    return {
        "servesim": __version__,
        "compiled": compiled(),
        "folder": str(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "packages": packages,
        "optional": {name: _version(name) for name in OPTIONAL},
        "tables": {name: not error for name, error in tables.items()},
        "self_test": test,
        "problems": problems,
        "sound": not problems,
    }


def _packages() -> dict[str, dict[str, Any]]:
    """Return each package that servesim needs, with the installed and required versions and whether they are
    compatible."""
    from packaging.requirements import InvalidRequirement, Requirement

    found = {}
    try:
        needed = importlib.metadata.requires("servesim") or []
    except importlib.metadata.PackageNotFoundError:
        needed = []
    for text in needed:
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        installed = _version(one.name)
        ok = installed is not None and one.specifier.contains(installed, prereleases=True)
        found[one.name] = {"installed": installed, "needed": str(one.specifier), "ok": ok}
    return dict(sorted(found.items()))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tables() -> dict[str, str]:
    """Return the GPUs that have kernel tables, and why tables cannot be read (empty if they can)."""
    from servesim.cost import KernelTables
    from servesim.hardware import Gpu, gpu_names

    found = {}
    for name in sorted({tables for gpu in gpu_names() if (tables := Gpu.load(gpu).tables)}):
        try:
            KernelTables.load(name)
            found[name] = ""
        except (UserError, OSError) as error:
            found[name] = str(error)
    return found


def _self_test() -> dict[str, Any]:
    """Simulate the same requests in both modes, whose results must agree."""
    from servesim import simulate

    began, error, rate = time.perf_counter(), "", 0.0
    try:
        fast = simulate(SELF_TEST)
        took = time.perf_counter() - began
        plain = simulate(SELF_TEST | {"mode": "reference"})
        if not fast.requests.equals(plain.requests):
            error = "fast mode and reference mode disagree"
        rate = len(fast.requests) / took
    except Exception as fault:  # any error is a finding
        error = f"{type(fault).__name__}: {fault}"
    return {"seconds": time.perf_counter() - began, "requests_per_second": rate, "error": error or None}


def _print(found: dict[str, Any]) -> None:
    from servesim.cli.faster import FASTER, editable

    kind = (
        "compiled" if found["compiled"] else "pure Python, from a checkout" if editable() else f"pure Python ({FASTER})"
    )
    lines = {
        "servesim": f"{found['servesim']}, {kind}, in {found['folder']}",
        "python": f"{found['python']}, {sys.executable}",
        "platform": f"{found['platform']}, {found['cores']} cores",
        "packages": ", ".join(f"{name} {one['installed']}" for name, one in found["packages"].items()),
        "optional": ", ".join(f"{name} {version or '-'}" for name, version in found["optional"].items()),
        "tables": ", ".join(found["tables"]),
        "self test": f"{found['self_test']['seconds']:.1f} s, both modes agree"
        if not found["self_test"]["error"]
        else found["self_test"]["error"],
    }
    for name, text in lines.items():
        typer.echo(f"{name:<11}{text}")
    for problem in found["problems"]:
        typer.echo(f"problem: {problem}")
    typer.echo("no problems found" if found["sound"] else f"{len(found['problems'])} problem(s) to fix")
