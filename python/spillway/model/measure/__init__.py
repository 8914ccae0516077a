"""Seconds and bytes of PyTorch's part of a step."""
