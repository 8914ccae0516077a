"""Places in the repository, and PYTHONPATH of processes that import helpers or test files."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TESTS = REPOSITORY / "tests" / "python"
FOLDERS = sorted(folder for folder in TESTS.iterdir() if any(folder.glob("*.py")))  # support/ and one per package
PYTHONPATH = os.pathsep.join([*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])])
