"""Tensors of checkpoints: names, ties, first values, which of them are trainable."""
