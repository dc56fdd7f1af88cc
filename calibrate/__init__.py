"""Kernel tables: importers, profilers, and the tables themselves."""

if "." not in __name__:  # a bare `import calibrate` would load a second copy with separate registries
    raise ImportError("import servesim.calibrate instead (run from an installed servesim)")
