"""What `spillway report` reads of a run that goes on: its timeline and what summary.json will say, now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from spillway.base.files import write_json
from spillway.output import identity

SECONDS = 30.0  # between two


class Told(Protocol):
    def record_experts(self, output_dir: Path) -> None: ...
    def write_timeline(self, path: Path) -> None: ...


class SoFar:
    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._at = -math.inf  # when it was last told

    def tell(self, session: Told, steps: int, summary: Callable[[], dict[str, Any]]) -> None:
        """After each step; `steps`: of this process. From the second on, since the first also loads."""
        now = time.monotonic()
        if steps < 2 or now - self._at < SECONDS:
            return
        self._at = now
        (self._output_dir / identity.FOLDER).mkdir(exist_ok=True)
        session.record_experts(self._output_dir)
        session.write_timeline(self._output_dir / identity.TIMELINE)
        write_json(self._output_dir / identity.SO_FAR, summary())

    def ended(self) -> None:
        """The files of a finished run say it all."""
        for path in (identity.SO_FAR, identity.TIMELINE, identity.LATE):
            (self._output_dir / path).unlink(missing_ok=True)
