"""Measurement of a running server: its client, its loops, the server's own statements, and the files written."""
