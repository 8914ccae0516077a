"""The parts of the quickstart: each small, each of use without the others."""
