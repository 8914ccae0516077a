"""Trainers whose objective needs no reference model."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class WithoutReference:
    """State that a streamed trainer keeps beside the session, where there is no reference."""

    def refer(self, trainer: Any, began_in: Path | None, began: bool, durable: bool) -> None:
        """There is no reference."""

    def save(self, checkpoint: Path) -> None:
        """There is no reference."""
