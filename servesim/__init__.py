"""Simulator of LLM inference serving."""
