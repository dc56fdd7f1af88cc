"""From a scenario to a result."""
