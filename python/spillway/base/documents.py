"""Texts and JSON that a person or another program wrote: read once, whole, and never waited for."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
}
NO_FILE = "it is {}, and a file is expected"
OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # pipes of a shell's `<(command)`


def read_text(path: Path) -> str:
    """ValueError for what is no file or no UTF-8, and OSError, both in words that need the path beside them."""
    if not str(path).startswith(OPEN_ALREADY) and (kind := kind_of(path)):
        raise ValueError(NO_FILE.format(kind))
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """As `read_text`; ValueError for what is no JSON, too."""
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> Any:
    """ValueError for what is no JSON, however deep it is nested and however long its numbers are."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise ValueError(f"a number has more than {most} digits; write it as text") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None


def require_file(path: Path) -> None:
    """OSError for what is no plain file: opening a FIFO would wait."""
    if kind := kind_of(path):
        raise OSError(errno.EINVAL, NO_FILE.format(kind), str(path))


def kind_of(path: Path) -> str:
    """The name of what is no plain file; empty for one, and where nothing is."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return ""
