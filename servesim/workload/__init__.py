"""Who sends requests: traces as columns, and how they arrive."""
