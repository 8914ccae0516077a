"""Reading of texts and JSON that a person or another program wrote, once and without waiting."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
}
OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # pipes of a shell's `<(command)`


def read_text(path: Path) -> str:
    """The text of a file. ValueError without the path if it is no plain file or no UTF-8; OSError."""
    if not str(path).startswith(OPEN_ALREADY) and (kind := describe_kind(path)):
        raise ValueError(f"it is {kind}, and a file is expected")
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The JSON in a file. ValueError if it is no JSON, and the errors of `read_text`."""
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> Any:
    """The value of JSON text. ValueError if it is no JSON or is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None


def describe_kind(path: Path) -> str:
    """The kind of a path that is no plain file; empty for a plain file and for a missing path."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return ""
