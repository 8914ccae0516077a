"""The loss: the head in slices of the vocabulary, and objectives over it."""
