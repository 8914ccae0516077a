"""The volumes of a run's storage paths, from outside: is one there, how large is it. What it holds the engine knows.

A directory's volume is the file `spillway.volume`, or of one of several processes that of its shard; on a raw block
device it begins at byte 0.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spillway._engine import ListedVolume, give_back_volume, list_volumes
from spillway.base.files import flush
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


def of_other_numbers(paths: Sequence[StoragePath], run: str, also: Iterable[str] = ()) -> list[Path]:
    """The volumes that another number of processes of this run has left where the `paths` of this process are, and in
    other places."""
    own, number = set(map(volume, paths)), paths[0].world if paths else 0
    places = dict.fromkeys([*(path.place for path in paths), *also])
    others = [each.file for each in told_of(places, run) if each.superblock.world != number]
    return [each for each in others if each.is_block_device() or each not in own]  # a device has one name for all


def told_of(places: Iterable[str], run: str) -> list[ListedVolume]:
    """What the engine tells of the volumes of this run in these places."""
    return [each for place in places for each in list_volumes(place) if each.superblock.run == run]


def list_sets(paths: Sequence[StoragePath], run: str) -> set[int]:
    """The numbers of the sets of volumes that this run has on these paths: volumes made anew have another one."""
    return {each.superblock.set for each in told_of([path.place for path in paths], run)}


def remove(volume: Path, run: str) -> None:
    """The volume of the run is gone: the file, or what a block device holds."""
    if volume.is_block_device():
        give_back_volume(str(volume), run)
    else:
        volume.unlink(missing_ok=True)
        flush(volume.parent)


@dataclass(frozen=True)
class ShardVolumes:
    """Volumes of a run that were made together, on all of a process's paths."""

    world: int
    shard: int
    set: int
    places: tuple[str, ...]  # by path


def shards(places: Iterable[str], run: str) -> list[ShardVolumes]:
    """Those of which every volume is in one of these places."""
    found: dict[tuple[int, int, int, int], dict[int, str]] = {}
    for place in dict.fromkeys(map(os.path.realpath, places)):
        for it in (each.superblock for each in told_of([place], run)):
            if it.ready:
                found.setdefault((it.world, it.shard, it.set, it.paths), {})[it.number] = place
    whole = {key: there for key, there in found.items() if len(there) == key[3]}
    return [
        ShardVolumes(*key[:3], tuple(there[path] for path in range(key[3]))) for key, there in sorted(whole.items())
    ]


def listed(place: Path, run: str) -> list[Path]:
    """The volumes of a run in a directory, or the one that a file or device is."""
    return [found.file for found in told_of([str(place)], run)]


def give_up_others(paths: Sequence[StoragePath], run: str, begun: Collection[Path]) -> None:
    """Removes the volumes of earlier processes of a run from the directories of this process. `begun`: the volumes of
    all processes that begin the run anew, which stay."""
    for found in [found for path in paths for found in listed(Path(path.place), run)]:
        if found not in begun:
            remove(found, run)


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
