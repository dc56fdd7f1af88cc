"""Measurement of a running server: the client, its request loops, the facts the server reports, and the output
files."""
