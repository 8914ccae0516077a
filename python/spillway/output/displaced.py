"""Volumes that lost their file during a run. The run saves a complete checkpoint and ends."""

from __future__ import annotations

from collections.abc import Sequence

from spillway.errors import SpillwayError


class VolumeDisplaced(SpillwayError):
    """A volume's file, or its directory, was removed, renamed or replaced."""

    def __init__(self, volumes: Sequence[str], saved: bool) -> None:
        """`saved`: the run has a checkpoint of the step that needs no volume."""
        several = len(volumes) > 1
        rest = "; the newest checkpoint stands alone, and a resume goes on from it" if saved else ""
        super().__init__(
            f"storage: {', '.join(volumes)} {'were' if several else 'was'} removed, renamed or replaced while the run "
            f"used {'them' if several else 'it'}: no later process can go on from what lies there, nor from "
            f"checkpoints whose state does{rest}"
        )


def describe(volumes: Sequence[str]) -> str:
    """The notice for a run without durable steps, which can still end well."""
    return (
        f"{', '.join(volumes)}: the file was removed, renamed or replaced while the run uses it. The run goes on, and "
        "its checkpoints stand alone"
    )
