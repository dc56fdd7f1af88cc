"""Autoscalers, one file each."""
