"""Policies by name (built-in, installed, or in the user's own files), and the checks of their contracts."""
