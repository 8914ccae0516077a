"""Frozen bases: adapters, and weights kept as codes of few bits."""
