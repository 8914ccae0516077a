"""Fingerprints of the weights that a run began with: length, header and samples of each file.

Adapters are trained over one base, and a save copies tensors from it. Touched, copied and moved files keep their
fingerprint. A replaced file is refused by its name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from spillway.errors import InputError
from spillway.model.source import hub
from spillway.output import saved

BASE = "base"  # the key in `fixed` and in a checkpoint's session.json
HEADER_LENGTH = 8  # bytes of a safetensors file that hold the header's length

Fingerprint = dict[str, dict[str, Any]]  # entries by file name


def read_fingerprint(directory: Path) -> Fingerprint:
    """The fingerprints of the files of weights in a directory; empty if it has none."""
    return {
        name: read_file_fingerprint(directory / name)
        for name in list_weight_files(directory)
        if (directory / name).is_file()
    }


def list_weight_files(directory: Path) -> list[str]:
    return hub.files_of_weights(directory) or []


def read_file_fingerprint(path: Path) -> dict[str, Any]:
    """The fingerprint of a file's content. Links are followed, and times do not count."""
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(HEADER_LENGTH), "little")
        header = stream.read(min(length, saved.MOST_HEADER))
    return {**saved.sampled_entry(path), "header": hashlib.blake2b(header, digest_size=16).hexdigest()}


def check(known: Any, directory: Path) -> None:
    """InputError names the first file that differs from the known fingerprint. Unknown files are accepted."""
    if not isinstance(known, dict) or not known:
        return
    for name in sorted(known.keys() | set(list_weight_files(directory))):
        if wrong := describe_difference(directory / name, known.get(name)):
            raise InputError(
                f"model: {wrong}. What was trained belongs to the weights that the run was started with; put them "
                "back, or name the directory that has them with --model"
            )


def describe_difference(path: Path, expected: Any) -> str:
    """A sentence with the difference between a file and its known fingerprint; empty without one."""
    if expected is None:
        return f"{path} is none of the files of weights that the run was started with"
    if not path.is_file():
        return f"{path}, which the run was started with, is missing"
    entry = read_file_fingerprint(path)
    if entry == expected:
        return ""
    lengths = [each.get("bytes") if isinstance(each, dict) else None for each in (expected, entry)]
    how = f"it has {lengths[1]} bytes, and had {lengths[0]}" if lengths[0] != lengths[1] else "its content differs"
    return f"{path} is not the file that the run was started with ({how})"
