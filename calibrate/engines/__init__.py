"""Real engines, driven and logged."""
