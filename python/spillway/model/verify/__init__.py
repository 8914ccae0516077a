"""Equivalence of the stream with the library, on tiny copies."""
