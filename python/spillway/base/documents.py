"""Reading of texts and JSON that a person or another program wrote, once and without waiting."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, Protocol

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
    """The text of a file. ValueError without the path if it is no plain file or no UTF-8; OSError."""
    if not str(path).startswith(OPEN_ALREADY) and (kind := name_file_kind(path)):
        raise ValueError(NO_FILE.format(kind))
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The JSON in a file. ValueError if it is no JSON, and the errors of `read_text`."""
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> Any:
    """The value of JSON text. ValueError if it is no JSON, is nested too deep or has numbers that are too long."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise ValueError(f"a number has more than {most} digits; write it as text") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None


class Answer(Protocol):
    """An answer of the engine that files hold, too (spillway._engine.PlanSummary, Fits, MemoryPlaces)."""

    def to_json(self) -> str: ...


def make_document(answer: Answer) -> dict[str, Any]:
    """The answer as a file's JSON has it."""
    document: dict[str, Any] = json.loads(answer.to_json())
    return document


def require_file(path: Path) -> None:
    """Refuses a path that is no plain file with an OSError: opening a FIFO would wait."""
    if kind := name_file_kind(path):
        raise OSError(errno.EINVAL, NO_FILE.format(kind), str(path))


def describe_broken_link(path: str | Path) -> str:
    """Words that continue a sentence about a missing path; empty unless it is a link to nothing."""
    if not os.path.islink(path) or os.path.exists(path):
        return ""
    return f": it is a link to {os.readlink(path)}, which is missing"


def name_file_kind(path: Path) -> str:
    """The kind of a path that is no plain file; empty for a plain file and for a missing path."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return ""
