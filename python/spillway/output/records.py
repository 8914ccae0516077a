"""metrics.jsonl: a row for each logged step and each evaluation.

Floats are written as shortest round-trip (Python's repr), so that equal bits print equal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from spillway.base.files import no_link, replace_text

METRICS = "metrics.jsonl"


class Metrics:
    """Appends rows; each is in the file when `add` returns, and on the disk after `sync`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = open(path, "ab", buffering=0, opener=no_link)  # noqa: SIM115 - as long as the run

    def add(self, row: dict[str, Any]) -> None:
        """OSError where it cannot be written, and then nothing of it is in the file, now or later."""
        line, before = memoryview((json.dumps(row) + "\n").encode()), os.fstat(self._stream.fileno()).st_size
        try:
            while line:
                line = line[self._stream.write(line) :]
        except OSError as error:
            with suppress(OSError):
                self._stream.truncate(before)
            error.filename = str(self.path)
            raise

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class NoMetrics:
    """Of a process that leaves them to another one."""

    path = Path(os.devnull)

    def add(self, row: dict[str, Any]) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file; a last line that a crash cut short is left out."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if line.endswith("\n"):
                yield json.loads(line)


def keep_rows_until(path: Path, step: int) -> int:
    """Removes the rows after `step`, and a line cut short; returns how many rows went."""
    if not path.exists():
        return 0
    everything = list(rows(path))
    kept = [row for row in everything if row["step"] <= step]
    replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))
    return len(everything) - len(kept)


def newest_step(path: Path) -> int:
    """The highest step of any row; 0 where there is none. Lines that are no rows are passed over."""
    newest = 0
    with suppress(OSError), open(path, "rb") as stream:
        for line in stream:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                newest = max(newest, int(json.loads(line)["step"]))
    return newest
