"""Policies by name: built-in, installed, and in the user's own files, and the checks of their contracts."""
