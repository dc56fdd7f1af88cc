"""Requests to send: traces in columnar form, and when their requests arrive."""
