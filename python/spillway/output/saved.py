"""Which files of a directory were saved together: spillway/files.json names them, so that a mixture is refused.

A large file is told by its length and by pieces all over it, a small one by all of its bytes. Two steps of one run have
files of the same lengths and no piece in common.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from spillway.base.files import PRIVATE, write_json
from spillway.errors import InputError

FILES = Path("spillway", "files.json")
FORMAT = 1
WEIGHTS = ("model*.safetensors", "*.safetensors.index.json", "adapter_model.safetensors")
NO_STATE = ("files.json", "wear.json")  # in the state's folder, and no part of it
WHOLE = 4 << 20  # bytes up to which all of a file is read
PIECES, PIECE = 256, 4096
MOST_HEADER = 100_000_000  # bytes of a safetensors header


def record_files(directory: Path) -> None:
    """Names what a save consists of, when all of it is there."""
    content = {name: told(directory / name) for name in sorted(members(directory))}
    write_json(directory / FILES, {"format": FORMAT, "files": content}, PRIVATE)


def check(directory: Path) -> None:
    """InputError that names the first file that was not saved with the others. What has no list is taken as it is."""
    path = directory / FILES
    if not path.is_file():
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found, listed = content["format"], dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"resume_from_checkpoint: {path} cannot be read: {error!r}") from None
    if found != FORMAT:
        return  # of a later release, which may tell files by other means
    for name in sorted(listed.keys() | members(directory)):
        if wrong := against(directory / name, listed.get(name)):
            raise InputError(
                f"resume_from_checkpoint: {directory} is not one save but parts of several: {wrong}. Name another "
                f"checkpoint, or remove {path} to load it all the same"
            )


def against(path: Path, expected: Any) -> str:
    """What is wrong with a file, in words."""
    if expected is None:
        return f"{path.name} is none of the files that were saved together"
    if not path.is_file():
        return f"{path.name} is missing"
    return "" if told(path) == expected else f"{path.name} is not the file that was saved with the others"


def members(directory: Path) -> set[str]:
    found = {path for pattern in WEIGHTS for path in directory.glob(pattern)}
    state = directory / FILES.parent
    found |= {path for path in state.rglob("*") if path.is_file() and path.name not in NO_STATE}
    return {str(path.relative_to(directory)) for path in found if not path.name.startswith(".")}


def told(path: Path) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as stream:
        length = os.fstat(stream.fileno()).st_size
        if length <= WHOLE:
            digest.update(stream.read())
        else:
            for piece in range(PIECES):
                digest.update(os.pread(stream.fileno(), PIECE, piece * (length - PIECE) // (PIECES - 1)))
    return {"bytes": length, "digest": digest.hexdigest()}


def complete(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(min(length, MOST_HEADER)))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        return os.fstat(stream.fileno()).st_size == stream.tell() + end
