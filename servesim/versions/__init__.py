"""Behavior of serving engines by engine, version and GPU, as one dated table with sources.

Each engine has a YAML file here: `engine`, `newest` (the newest known version), `dated` (the date on which the facts
were checked), `unpriced` (names of facts that nothing depends on yet), and then facts by name. Each fact is a list of
entries. An entry covers the versions from `since` up to but not including `before` (either may be omitted), on the
listed `gpus` (all GPUs if omitted). If several entries apply, an entry that names the GPU takes precedence, then one
that names `before`, then the one with the latest `since`. An entry has a `value` and a `source`: a file of the engine,
a pull request, or a recorded server. Unknown facts have no entry.
"""

from servesim.versions.table import EngineFacts, Fact, engine_facts, engines, noting, recorded_engine, turning_points

__all__ = ["EngineFacts", "Fact", "engine_facts", "engines", "noting", "recorded_engine", "turning_points"]
