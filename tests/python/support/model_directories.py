"""Configurations of real models, as the benchmarks have them."""

import sys

from folders import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "bench"))
import model_shapes  # noqa: E402

__all__ = ["model_shapes"]
