"""Hugging Face models as a stream of layers (see README.md in this folder)."""
