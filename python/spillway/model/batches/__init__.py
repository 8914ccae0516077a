"""Micro-batches of a step."""
