"""`servesim policies`: the available policies and features, with a description of each."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.cli.known import print_json
from servesim.cli.parameters import idea, parameters
from servesim.errors import UserError

POLICIES_EXAMPLES = """
\b
Examples:
  servesim policies
  servesim policies sglang
  servesim policies --out policies.html
  servesim policies my_policy.py:MyScheduler
  servesim policies check my_policy.py:MyScheduler
  servesim policies check sarathi:chunk_size=256 --world 12
  servesim policies check energy.py:Energy:busy_w=500
"""


def policies(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of a policy, file.py:Class, or the word check. [default: list all policies]"
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(metavar="POLICY", help="With check: the policy, as name, name:key=value,... or file.py:Class."),
    ] = None,
    worlds: Annotated[int, typer.Option(min=1, help="With check: number of random worlds.")] = 80,
    world: Annotated[int | None, typer.Option(min=0, help="With check: run only the world with this number.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Page to write. Not with check.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the policies, or show or check one.

    For one policy, the command shows how it works, its parameters with defaults, its requirements and its paper.
    `check` tests a policy in small random simulations: fast mode against reference mode, invariants, determinism,
    contract and settings. It prints one line per failure, and exits with code 1 if there are any.
    """
    if name == "check":
        if target is None:
            raise UserError("policies check: specify the policy, such as my_policy.py:MyScheduler")
        if out is not None:
            raise UserError(f"--out {out}: check writes no page")
        _check(target, range(worlds) if world is None else range(world, world + 1), as_json)
        return
    if target is not None:
        raise UserError(f"policies {name} {target}: specify one policy, or `check` and one policy")
    from servesim.checking.subject import registry_of
    from servesim.contracts import REGISTRIES

    if out is not None:
        _write(out, name)
    if name is None and as_json:
        print_json({"policies": _all()})
        return
    if name is None:
        for registry in REGISTRIES:
            typer.echo(registry.kind)
            for known in registry.names():
                first, _, _ = idea(registry.resolve(known)[0]).partition("\n")
                typer.echo(f"  {known:30} {first}")
        return
    registry = registry_of(name)
    if as_json:
        print_json({"policies": [described(registry.kind, name, registry.resolve(name)[0])]})
        return
    _show(registry.kind, name, registry.resolve(name)[0])


def _all() -> list[dict[str, Any]]:
    from servesim.contracts import REGISTRIES

    return [described(r.kind, known, r.resolve(known)[0]) for r in REGISTRIES for known in r.names()]


def _write(out: Path, name: str | None) -> None:
    """Write the page of all policies or of one policy."""
    from servesim.checking.subject import registry_of
    from servesim.cli.report import page_file
    from servesim.reports.files import writing
    from servesim.reports.policies_page import policies_page

    page_file(out)
    if name is None:
        found = _all()
    else:
        registry = registry_of(name)
        found = [described(registry.kind, name, registry.resolve(name)[0])]
    with writing(out) as file:
        file.write(policies_page(found).html())
    typer.echo(f"written to {out}", err=True)


def described(kind: str, name: str, cls: type[Any]) -> dict[str, Any]:
    """Return what is known about a policy, in a form suitable for JSON."""
    return {
        "kind": kind,
        "name": name,
        "idea": idea(cls),
        "needs": sorted(getattr(cls, "needs", ())),
        "supports": sorted(getattr(cls, "supports", ())),
        "cannot": dict(getattr(cls, "cannot", {})),
        "paper": vars(cls).get("paper") or None,
        "parameters": [
            {
                "name": one.name,
                "type": one.type,
                "required": one.default is dataclasses.MISSING,
                "default": None if one.default in (dataclasses.MISSING, None) else str(one.default),
                "doc": " ".join(one.doc.split()),
            }
            for one in parameters(cls)
        ],
    }


def _check(target: str, numbers: range, as_json: bool) -> None:
    """Check a policy in the worlds with these numbers. Exit with code 1 if a check failed."""
    from servesim.checking.check import check
    from servesim.checking.subject import Subject

    began = time.perf_counter()
    report = check(Subject.of(target), numbers)
    if as_json:
        print_json(
            {"policy": target, "runs": report.runs, "failures": list(report.failures), "notes": list(report.notes)}
        )
        if report.failures:
            raise typer.Exit(1)
        return
    for line in [*report.failures, *(f"note: {note}" for note in report.notes)]:
        typer.echo(line)
    failed = len(report.failures)
    came_of_it = "no failure" if not failed else "1 failure" if failed == 1 else f"{failed} failures"
    typer.echo(f"{report.runs} runs in {time.perf_counter() - began:.0f} s: {came_of_it}")
    if failed:
        raise typer.Exit(1)


def _show(kind: str, name: str, cls: type[Any]) -> None:
    typer.echo(f"{kind} {name}\n\n{idea(cls)}\n")
    for label in ("needs", "supports"):
        if getattr(cls, label, ()):
            typer.echo(f"{label}: {', '.join(sorted(getattr(cls, label)))}")
    for what, reason in getattr(cls, "cannot", {}).items():
        typer.echo(f"cannot: {what} ({reason})")
    if getattr(cls, "samples", ""):
        typer.echo(f"samples (n > 1): {cls.samples}" * ("samples" not in cls.cannot))
    if paper := vars(cls).get("paper"):  # subclasses do not inherit the paper
        typer.echo(f"paper: {paper}")
    found = parameters(cls)
    if not found:
        typer.echo("parameters: none")
        return
    typer.echo("parameters:")
    for one in found:
        typer.echo(f"  {one.name} = {_default(one.default)}")
        for line in one.doc.splitlines():
            typer.echo(f"      {line.strip()}")


def _default(default: Any) -> str:
    if default is not dataclasses.MISSING:
        return "(by GPU and model)" if default is None else repr(default)
    return "(required)"
