"""Measurement of a running server: the client, its loops, the facts the server reports, and the files written."""
