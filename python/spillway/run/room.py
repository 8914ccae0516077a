"""Disk space for the plan: the writes of a run to `output_dir`, and the free space of its file systems and of the
volumes'."""

from __future__ import annotations

import math
import os
import resource
import shutil
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spillway import _engine
from spillway._engine import Description, EngineSettings, FileSystem
from spillway.base import files
from spillway.base.sizes import size
from spillway.errors import DoesNotFit
from spillway.model.source import hub
from spillway.output import directory, volumes
from spillway.output.directory import Start
from spillway.run.protocol import Saving
from spillway.run.world import World

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.config.values import FileShare

ROW_BYTES = 640  # of a step in metrics.jsonl or trainer_state.json
RUN_BYTES = 4 << 20  # timeline, page, curve and what else a run leaves once
MOST_SHARD = 50_000_000_000  # limit of bytes of weights in one file
FILE_BYTES = 64 << 10  # configurations of a checkpoint
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
LINKLESS = ("vfat", "msdos", "exfat")  # file systems in which a file has one name


def estimate_saving(
    config: Config, start: Start, begun: int, saves: Sequence[bool], rows: int, also: int = 0, once: int = 0
) -> Saving:
    """`begun`: the step that the run goes on from; `saves`: checkpoints that come after it, each true if it stands
    alone on a path's run; `rows`: that it logs; `also`: bytes that the run keeps of its data, and each checkpoint with
    it; `once`: that the run keeps alone."""
    rows = max(0, rows)
    there = [] if start.clear else directory.checkpoints(start.output_dir)
    gone = [path for step, path in there if step > begun and start.resume is not None and not start.durable]
    kept = [path for _, path in there if path not in gone]
    removed = directory.removed_files(start) if start.clear else gone
    stay = [config.save_whole_steps is not None and directory.stands_alone(path) for path in kept]
    return Saving(
        output_dir=start.output_dir,
        saves=len(saves),
        limit=config.save_total_limit,
        there=tuple(map(freeable, kept)),
        whole=tuple(number for number, alone in enumerate([*stay, *saves]) if alone),
        freed=sum(map(freeable, removed)),
        small=tokenizer_bytes(config) + FILE_BYTES + rows * ROW_BYTES + also,
        beside=RUN_BYTES + rows * ROW_BYTES + also + once,
        model_only=config.save_only_model,
    )


def require_file_size(config: Config, description: Description) -> None:
    """DoesNotFit where the limit of this process is below the model's file, which only the first save would find."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    tensors = [tensor for block in description.blocks for tensor in block.tensors]
    weights = sum(math.prod(tensor.shape) for tensor in tensors) * (4 if config.weight_dtype == "fp32" else 2)
    needed = 0 if config.method == "lora" else min(weights, MOST_SHARD)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise DoesNotFit(
            f"output_dir: a file of the model takes {size(needed)}, and files of this process may have {size(limit)} "
            "(ulimit -f): raise the limit"
        )


def require_files(world: World, shares: Sequence[FileShare]) -> None:
    """DoesNotFit where a file system has too little for the files that several processes map there as memory. All
    call it."""
    host = socket.gethostname()
    own = [
        (
            host,
            os.stat(share.directory).st_dev,
            share.directory,
            share.capacity,
            shutil.disk_usage(share.directory).free,
        )
        for share in shares
    ]
    asked: dict[tuple[str, int], int] = {}
    for where, device, place, capacity, free in (each for part in world.gather(own) for each in part):
        asked[where, device] = asked.get((where, device), 0) + capacity
        if asked[where, device] > free:
            raise DoesNotFit(
                f"memory_file: the file system of {place} ({where}) has {size(free)} free, and the processes of "
                f"the run ask for {size(asked[where, device])} or more there; ask for less, or name {{local_rank}} in "
                "the directory, such as /mnt/pmem{local_rank}"
            )


def add_files(made: EngineSettings, config: Config, saving: Saving | None, converted: bool, carried: int = 0) -> None:
    """Adds what is saved, and the file systems. `converted`: forms of tensors in files are not the engine's. `carried`:
    bytes of a checkpoint that the engine has not."""
    places = {number: Path(path.place) for number, path in enumerate(config.paths)}
    volume = {number: volumes.volume(path) for number, path in enumerate(config.paths)}
    plain = {number: place for number, place in places.items() if place.is_dir()}
    output = files.existing(saving.output_dir) if saving else None
    made.file_systems = [
        system(place, plain, volume, output)
        for place in choose_one_per_device([*plain.values(), *([output] if output else [])])
    ]
    if saving is None or output is None:
        return
    copies = saving.copies or kind(mount_point(output)) in LINKLESS
    carried = 0 if config.method == "lora" else carried
    made.saving = _engine.Saving(
        saves=saving.saves,
        limit=saving.limit,
        there=list(saving.there),
        whole=list(saving.whole),
        freed=saving.freed,
        small=saving.small + carried,
        beside=saving.beside + (carried if copies else 0),
        model_only=saving.model_only,
        copies=copies,
        adapters=config.method == "lora",
        converted=converted and config.method != "lora",
    )


def system(place: Path, plain: dict[int, Path], volume: dict[int, Path], output: Path | None) -> FileSystem:
    """The file system of a place, with what the volumes that are there hold of it."""
    own = os.stat(place).st_dev
    on = [number for number, path in plain.items() if os.stat(path).st_dev == own]
    held = sum(volume_bytes(each) for each in {volume[number] for number in on})
    return FileSystem(
        name=str(mount_point(place)),
        free=shutil.disk_usage(place).free + held,
        paths=on,
        output=output is not None and os.stat(output).st_dev == own,
    )


def choose_one_per_device(places: Iterable[Path]) -> list[Path]:
    """One place of each file system."""
    return list({os.stat(place).st_dev: place for place in places}.values())


def mount_point(place: Path) -> Path:
    real = Path(os.path.realpath(place))
    return next((path for path in (real, *real.parents) if os.path.ismount(path)), real)


def kind(mount: Path) -> str:
    """The kind of the file system mounted there; empty where it is not known."""
    return mounted(mount)[0]


def mounted(mount: Path) -> tuple[str, str]:
    """The kind of the file system mounted there, and its options; empty where they are not known."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", ""
    mounts = [(words[2], words[3]) for words in map(str.split, lines) if len(words) > 3 and words[1] == str(mount)]
    return mounts[-1] if mounts else ("", "")


def volume_bytes(volume: Path) -> int:
    try:
        return os.stat(volume).st_blocks * 512
    except OSError:
        return 0


def freeable(path: Path) -> int:
    """Bytes that removing it gives back: not those of files that have another name, or lie elsewhere."""
    if path.is_symlink():
        return 0
    files = [path] if path.is_file() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    sizes = [os.lstat(file) for file in files]
    return sum(status.st_blocks * 512 for status in sizes if status.st_nlink == 1)


def tokenizer_bytes(config: Config) -> int:
    place = hub.tokenizer_directory(config)
    return sum(path.stat().st_size for path in place.iterdir() if path.is_file() and path.suffix not in WEIGHTS)
