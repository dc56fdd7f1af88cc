"""Results under the other known versions of the engine, for a run that names none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from servesim.contracts.feature import Feature, features
from servesim.contracts.section import Section

if TYPE_CHECKING:
    from servesim.contracts.figures import Group
    from servesim.contracts.part import Part


class VersionOptions(Section):
    """Options of engine versions."""

    versions: bool = Field(default=False, json_schema_extra={"on_command_line": True})
    """If no engine version is set, show the latencies under each known one, from one short run per version."""


@features.register("engine_versions")
class EngineVersionsFeature(Feature):
    """Versions of the engine that a run does not name."""

    rank, section, Options = 85, "", VersionOptions

    def build(self, setup: Any) -> Part | None:
        asked = setup.asked
        unnamed = asked.engine.version is None and not asked.pools and setup.stream is None
        if not setup.options.versions or not unnamed:
            return None
        from servesim.features.engine_versions.part import EngineVersions, others

        assumed = setup.pools[0].server.engine
        known = others(assumed, asked.preset)
        return EngineVersions(asked, len(setup.trace), assumed, known) if known else None

    def groups(self) -> tuple[Group, ...]:
        from servesim.features.engine_versions.figures import ENGINE_VERSIONS

        return (ENGINE_VERSIONS,)
