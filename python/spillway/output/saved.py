"""Digests of the files that were saved together: spillway/files.json lists them, and so tells a mixture and damage.

A small file has a digest of all of its bytes. A safetensors file has one of its header, and one of each megabyte of a
tensor: the engine's writer makes them with the bytes, and its reader verifies them before a byte is used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from spillway.base.documents import parse_json, read_json
from spillway.base.files import PRIVATE, sheet_of, write_json
from spillway.errors import InputError

FOLDER = Path("spillway")
FILES = FOLDER / "files.json"
FORMAT, SAMPLED = 2, 1  # SAMPLED: of larger files a list has a digest of some pieces
WEIGHTS = ("model*.safetensors", "*.safetensors.index.json", "adapter_model.safetensors")
EVERYTHING = ("*",)
NO_STATE = ("files.json", "wear.json")  # in the state's folder, and no part of it
TENSORS = ".safetensors"
SPOTS = 16  # pieces of a file that are compared before it is opened
WHOLE = 4 << 20  # SAMPLED: bytes up to which all of a file is read
PIECES, PIECE = 256, 4096
MOST_HEADER = 100_000_000  # bytes of a safetensors header
Entry = dict[str, Any]


def record_files(directory: Path, patterns: Sequence[str] = EVERYTHING) -> None:
    """Lists a save with its digests, when all of it is there. `patterns`: names of its files where the directory holds
    others, too; its folders are no part of it then."""
    before = read_list(directory) or {}
    names = list_files(directory) if patterns is EVERYTHING else list_top(directory, patterns)
    content = {name: digest_entry(directory, name, before.get(name)) for name in sorted(names)}
    write_list(directory, content)
    for name in names:
        sheet_of(directory / name).unlink(missing_ok=True)


def write_list(directory: Path, content: dict[str, Entry]) -> None:
    (directory / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_json(directory / FILES, {"format": FORMAT, "files": content}, PRIVATE)


def publish_list(checkpoint: Path, to: Path, names: Sequence[str]) -> None:
    """The list of a directory that has these files of a checkpoint, and folders of the same names."""
    entries = read_list(checkpoint)
    chosen = {name: entry for name, entry in (entries or {}).items() if name.split("/")[0] in names}
    if chosen:
        write_list(to, chosen)
    else:
        (to / FILES).unlink(missing_ok=True)


def check_files(directory: Path, only: Path | None = None, key: str = "resume_from_checkpoint") -> None:
    """InputError that names the first file that is not as it was saved. Larger files are compared in spots: the engine
    verifies the rest while it reads. A directory without a list is taken as it is. `only`: that file alone; `key`: of
    the configuration, which names the directory."""
    path = directory / FILES
    content = load_list(directory)
    if content is None or content["format"] not in (FORMAT, SAMPLED):
        return  # of a later release, which may tell files by other means
    entries = content["files"]
    names = expected_names(directory, entries)
    for name in names if only is None else [name for name in names if name == str(only)]:
        for change in changes_of(directory, name, entries.get(name), SPOTS):
            raise InputError(
                f"{key}: {directory} is not as it was saved: {change}. It may be damaged, or hold "
                f"parts of several saves: name another checkpoint. If the file was changed on purpose, "
                f"{way_on(path, name)} to load it all the same"
            )


def way_on(path: Path, name: str) -> str:
    """What to do about a file that was edited, in words."""
    whole = any(fnmatch(name, pattern) for pattern in WEIGHTS) or name.startswith(f"{FOLDER}/")
    return f"remove {path}" if whole else f"remove its entry from {path}, or the list as a whole,"


def find_changes(directory: Path) -> Iterator[str]:
    """Every change since the files were saved, by the file's name and in words. Reads all bytes that have a digest."""
    entries = read_list(directory) or {}
    for name in expected_names(directory, entries):
        yield from changes_of(directory, name, entries.get(name), None)


def expected_names(directory: Path, entries: dict[str, Entry]) -> list[str]:
    """What a list names, and the weights and the state that are there."""
    of_checkpoint = (directory / FOLDER / "session.json").is_file()  # the folder of a run at the root is no state
    members = list_members(directory) if of_checkpoint else set(list_top(directory, WEIGHTS))
    return sorted(entries.keys() | members)


def changes_of(directory: Path, name: str, entry: Entry | None, spots: int | None) -> Iterator[str]:
    path = directory / name
    if entry is None:
        yield f"{name} is none of the files that were saved together"
    elif not path.is_file():
        yield f"{name} is missing"
    elif "tensors" in entry:
        yield from tensor_changes(path, name, entry, spots)
    elif (sampled_entry(path) if "sampled" in entry else small_entry(path)) != unmarked(entry):
        yield f"{name} is not the file that was saved with the others"


def tensor_changes(path: Path, name: str, entry: Entry, spots: int | None) -> Iterator[str]:
    """By the engine, which reads what it compares in pieces."""
    from spillway._engine import find_damage

    try:
        damage = find_damage(str(path), json.dumps(entry), spots)
    except ValueError as error:  # a header that is none
        yield f"{name} is not the file that was saved with the others: {error}"
        return
    for tensor, begin, end in damage or []:
        what = f"tensor {tensor}" if tensor else "header or length"
        yield f"{name} is not the file that was saved with the others: {what}, bytes {begin} to {end}"


def read_list(directory: Path) -> dict[str, Entry] | None:
    """The entries by name; None where there is no list, or one of a later release."""
    content = load_list(directory)
    if content is None or content["format"] not in (FORMAT, SAMPLED):
        return None
    entries: dict[str, Entry] = content["files"]
    return entries


def load_list(directory: Path) -> dict[str, Any] | None:
    path = directory / FILES
    if not path.is_file():
        return None
    try:
        content = read_json(path)
        version, entries = content["format"], dict(content["files"])
        if version == SAMPLED:
            entries = {name: {**entry, "sampled": True} for name, entry in entries.items()}
        of_entry = sound_entry if version in (FORMAT, SAMPLED) else dict
        return {"format": version, "files": {name: of_entry(entry) for name, entry in entries.items()}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {error!r}; name another checkpoint, or remove it") from None


def sound_entry(entry: Any) -> Entry:
    """ValueError where its length is none."""
    result = dict(entry)
    if not isinstance(result["bytes"], int):
        raise ValueError(f"`bytes` is {result['bytes']!r:.80}")
    return result


def unmarked(entry: Entry) -> Entry:
    return {key: value for key, value in entry.items() if key != "sampled"}


def list_files(directory: Path) -> set[str]:
    """All files of a directory and its folders, hidden ones left out."""
    files = {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}
    plain = {path for path in files if not any(part.startswith(".") for part in path.parts)}
    return {str(path) for path in plain if path.parts[0] != str(FOLDER) or path.name not in NO_STATE}


def list_top(directory: Path, patterns: Sequence[str]) -> list[str]:
    names = {path.name for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return sorted(name for name in names if not name.startswith("."))


def list_members(directory: Path) -> set[str]:
    """Weights and state: files that only a save brings."""
    state = {name for name in list_files(directory / FOLDER) if Path(name).name not in NO_STATE}
    return {*list_top(directory, WEIGHTS), *(str(FOLDER / name) for name in state)}


def digest_entry(directory: Path, name: str, before: Entry | None) -> Entry:
    """An entry of the list. A safetensors file has its digests from its writer, or from the list `before`."""
    from spillway._engine import digests_of, find_damage

    path = directory / name
    if not name.endswith(TENSORS):
        return small_entry(path)
    sheet = sheet_of(path)
    if sheet.is_file():
        return dict(read_json(sheet))
    if before is not None and "tensors" in before and find_damage(str(path), json.dumps(before), SPOTS) == []:
        return before
    try:
        return dict(json.loads(digests_of(str(path))))
    except ValueError:  # the name alone is that of a safetensors file
        return small_entry(path)


def small_entry(path: Path) -> Entry:
    digest, length = hashlib.blake2b(digest_size=16), 0
    with open(path, "rb", buffering=0) as stream:
        while part := stream.read(WHOLE):
            digest.update(part)
            length += len(part)
    return {"bytes": length, "digest": digest.hexdigest()}


def sampled_entry(path: Path) -> Entry:
    """As lists of the format SAMPLED have it."""
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
        header = parse_json(stream.read(min(length, MOST_HEADER)))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        return os.fstat(stream.fileno()).st_size == stream.tell() + end
