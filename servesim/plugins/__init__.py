"""Policies by name: those built in, installed and in files of the user's own, and how these are held to contracts."""
