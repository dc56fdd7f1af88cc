"""Request traces: readers and writers of their formats, synthetic workloads, fitted presets."""

if "." not in __name__:  # a bare `import traces` would be a second copy with registries of its own
    raise ImportError("import servesim.traces instead (run from an installed servesim)")
