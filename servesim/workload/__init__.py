"""Requests to send: traces in columnar form, and the times at which their requests arrive."""
