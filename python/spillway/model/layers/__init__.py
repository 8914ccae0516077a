"""Arithmetic inside layers: kernels, attention, tiles, sums, what autograd saves."""
