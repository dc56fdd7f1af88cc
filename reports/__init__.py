"""Templates and figures of the generated reports."""

if "." not in __name__:  # a bare `import reports` would be a second copy with separate registries
    raise ImportError("import servesim.reports instead (run from an installed servesim)")
