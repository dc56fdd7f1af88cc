"""Behavior of serving engines by engine, version and GPU: one dated table with sources.

Each engine has a YAML file here: `engine`, `newest` (the newest version known), `dated` (when it was looked at),
`unpriced` (names of facts that nothing depends on yet), and then facts by name. A fact has entries. An entry is about
versions from `since` on, `before` another (either may be missing), on some `gpus` (missing: all). Of several that apply
the one holds that names the GPU, then the one that names `before`, then the one with the latest `since`. An entry has a
`value` and a `source`: a file of the engine, a pull request, a recorded server. What is not known has no entry.
"""

from servesim.versions.table import EngineFacts, Fact, engine_facts, engines, recorded_engine

__all__ = ["EngineFacts", "Fact", "engine_facts", "engines", "recorded_engine"]
