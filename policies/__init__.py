"""Scheduling, KV-cache and routing policies, one per file."""

if "." not in __name__:  # a bare `import policies` would load a second copy with its own registries
    raise ImportError("import servesim.policies instead (run from an installed servesim)")
