"""The volumes of a run's storage paths, from outside: is one there, how large is it. What it holds the engine knows.

A directory's volume is the file `spillway.volume`, or of one of several processes that of its shard; on a raw block
device it begins at byte 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spillway.base.sizes import size
from spillway.config.values import StoragePath

MAGIC = b"SPILLWAY"
SUPERBLOCKS = (0, 524288)  # bytes at which a volume's two superblocks begin
SUPERBLOCK_BYTES = 4096


def volume(path: StoragePath) -> Path:
    place = Path(path.place)
    return place if place.is_block_device() else place / path.file


def present(paths: Sequence[StoragePath]) -> list[Path]:
    """The volumes that are there, whoever they belong to."""
    return [found for found in map(volume, paths) if found.is_file() or (found.is_block_device() and begins(found))]


def of_run(paths: Sequence[StoragePath], run: str) -> list[Path]:
    """The volumes that are there and name this run."""
    return [found for found in present(paths) if any(run.encode() in block for block in superblocks(found))]


def of_other_numbers(paths: Sequence[StoragePath], run: str) -> list[Path]:
    """The volumes that another number of processes of this run has left in the same directories."""
    beside = ((path, found) for path in paths for found in sorted(Path(path.place).glob("spillway*.volume")))
    others = [found for path, found in beside if found.name != path.file]
    return [found for found in others if any(run.encode() in block for block in superblocks(found))]


def begins(device: Path) -> bool:
    """Whether a volume begins on a block device."""
    return any(block.startswith(MAGIC) for block in superblocks(device))


def superblocks(volume: Path) -> list[bytes]:
    """The two of them, as far as they can be read."""
    try:
        with open(volume, "rb", buffering=0) as stream:
            return [os.pread(stream.fileno(), SUPERBLOCK_BYTES, offset) for offset in SUPERBLOCKS]
    except OSError:
        return []


def held(path: StoragePath) -> int:
    """Bytes that a directory's volume takes of its file system; 0: there is none."""
    try:
        return os.stat(Path(path.place, path.file)).st_blocks * 512
    except OSError:
        return 0


def told(volume: Path) -> str:
    """With its size, where it takes any of a file system."""
    return f"{volume} ({size(volume.stat().st_size)})" if volume.is_file() else str(volume)
