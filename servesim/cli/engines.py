"""`servesim engines`: the serving systems that have presets, and what is known about a version of one of them."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

ENGINES_EXAMPLES = """
\b
Examples:
  servesim engines
  servesim engines vllm --version 0.15.1 --gpu h100
"""


def engines(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Engine. [default: list all engines]")] = None,
    version: Annotated[str | None, typer.Option(help="Version. [default: the newest known]")] = None,
    gpu: Annotated[str, typer.Option(help="GPU.")] = "h100",
) -> None:
    """List serving systems, or show what is known about one.

    Each fact applies to one version on one GPU and includes its source.
    """
    from servesim.hardware import Gpu
    from servesim.run.presets import engine_presets, facts_of, preset_settings

    if name is None:
        for preset, about in engine_presets().items():
            typer.echo(f"{preset:20}{about['version']:36}rests on {about['rests_on']}")
        return
    preset_settings(name)
    facts = facts_of(name, version, Gpu.load(gpu).name)
    if facts.engine != name:
        typer.echo(f"No versions of {name} are known: it is priced like {facts.engine} {facts.version}.")
        return
    beyond = (
        (", which is newer than every known version, so the facts are those of the newest one") if facts.beyond else ""
    )
    typer.echo(f"{facts.engine} {facts.version} on {facts.gpu}{beyond}")
    for fact, known in facts.facts.items():
        typer.echo(f"\n{fact}: {known.value}{'' if known.priced else ' (not used yet)'}")
        typer.echo(textwrap.fill(known.source, 100, initial_indent="  ", subsequent_indent="  "))
