"""Small files written so that a crash leaves the old content or the new, and never a half of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")

PUBLIC, PRIVATE = 0o666, 0o600  # permissions of files, less the umask: results, and the state of a run


def sheet_of(path: Path) -> Path:
    """The digests that the engine's writer leaves beside a safetensors file, until a list has them."""
    return path.with_name(f".{path.name}.digests")


def write_json(path: Path, content: Any, mode: int = PUBLIC) -> None:
    replace_text(path, json.dumps(content, indent=2) + "\n", mode)


def flush(path: Path) -> None:
    """fsync of a file or directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def new_file(path: Path, mode: int = PUBLIC) -> int:
    """A new file in place of what has the name, open for writing. Where others may write to the directory, a link can
    lie there: what it names is not touched."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def no_link(path: str, flags: int) -> int:
    """For `open`: a link in place of the file is refused."""
    return os.open(path, flags | os.O_NOFOLLOW, PUBLIC)


def replace_text(path: Path, text: str, mode: int = PUBLIC) -> None:
    replace_bytes(path, text.encode(), mode)


def replace_bytes(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Old content or new, never half of it."""
    temporary = path.with_name(f".tmp-{path.name}")
    with open(new_file(temporary, mode), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def existing(path: Path) -> Path:
    """It, or the directory that it would be made in."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
