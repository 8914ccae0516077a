"""The volumes of a run's storage paths, from outside: is one there, how large is it. What it holds the engine knows.

A directory's volume is the file `spillway.volume`; on a raw block device it begins at byte 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spillway.base.sizes import size
from spillway.config.values import StoragePath

NAME = "spillway.volume"
MAGIC = b"SPILLWAY"
SUPERBLOCKS = (0, 524288)  # bytes at which a volume's two superblocks begin


def volume(path: StoragePath) -> Path:
    place = Path(path.place)
    return place if place.is_block_device() else place / NAME


def present(paths: Sequence[StoragePath]) -> list[Path]:
    """The volumes that are there, whoever they belong to."""
    return [found for found in map(volume, paths) if found.is_file() or (found.is_block_device() and begins(found))]


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
        return os.stat(Path(path.place, NAME)).st_blocks * 512
    except OSError:
        return 0


def told(volume: Path) -> str:
    """With its size, where it takes any of a file system."""
    return f"{volume} ({size(volume.stat().st_size)})" if volume.is_file() else str(volume)
