"""The volumes of a run's storage paths, from outside: is one there, how large is it. What it holds the engine knows.

A directory's volume is the file `spillway.volume`, or of one of several processes that of its shard; on a raw block
device it begins at byte 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from spillway._engine import list_volumes
from spillway.base.sizes import size
from spillway.config.values import StoragePath

MAGIC = b"SPILLWAY"
SUPERBLOCKS = (0, 524288)  # bytes at which a volume's two superblocks begin


def volume(path: StoragePath) -> Path:
    place = Path(path.place)
    return place if place.is_block_device() else place / path.file


def present(paths: Sequence[StoragePath]) -> list[Path]:
    """The volumes that are there, whoever they belong to."""
    return [found for found in map(volume, paths) if found.is_file() or (found.is_block_device() and begins(found))]


def of_run(paths: Sequence[StoragePath], run: str) -> list[Path]:
    """The volumes of this run that are there."""
    return [found for found in present(paths) if found in listed(found, run)]


def of_other_numbers(paths: Sequence[StoragePath], run: str) -> list[Path]:
    """The volumes that another number of processes of this run has left in the same directories."""
    return [found for path in paths for found in listed(Path(path.place), run) if found != volume(path)]


def listed(place: Path, run: str) -> list[Path]:
    """The volumes of a run in a directory, or the one that a file or device is."""
    return [Path(found["file"]) for found in json.loads(list_volumes(str(place))) if found["run"] == run]


def begins(device: Path) -> bool:
    """Whether a volume begins on a block device."""
    try:
        with open(device, "rb", buffering=0) as stream:
            return any(read_at(stream.fileno(), offset) == MAGIC for offset in SUPERBLOCKS)
    except OSError:
        return False


def read_at(handle: int, offset: int) -> bytes:
    return os.pread(handle, len(MAGIC), offset)


def held(path: StoragePath) -> int:
    """Bytes that a directory's volume takes of its file system; 0: there is none."""
    try:
        return os.stat(Path(path.place, path.file)).st_blocks * 512
    except OSError:
        return 0


def told(volume: Path) -> str:
    """With its size, where it takes any of a file system."""
    return f"{volume} ({size(volume.stat().st_size)})" if volume.is_file() else str(volume)
