"""Requests to send: traces as columns, and their arrival."""
