"""Measure a running server: its client, its loops, what it says of itself, and the files they become."""
