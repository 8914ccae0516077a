"""Configurations of real models, as the benchmarks have them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import model_shapes  # noqa: E402

__all__ = ["model_shapes"]
