"""metrics.jsonl and the small JSON files of a run.

Floats are written as shortest round-trip (Python's repr), so that equal bits print equal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillway.run.protocol import StepResult

METRICS = "metrics.jsonl"
PUBLIC, PRIVATE = 0o666, 0o600  # permissions of files, less the umask: results, and the state of a run


def step_row(
    step: int,
    result: StepResult,
    loss: float,
    tokens: int,
    learning_rate: float,
    epoch: float | None = None,
    skipped_steps: int = 0,
) -> dict[str, Any]:
    """Of a step that was just done. `loss`: the mean since the last logged row; `tokens`: of this step, unpadded;
    `skipped_steps`: so far."""
    row = {
        "step": step,
        **({} if epoch is None else {"epoch": epoch}),
        "loss": loss,
        "grad_norm": result.grad_norm,
        "learning_rate": learning_rate,
        "tokens": tokens,
        "step_seconds": result.seconds,
        "path_bytes": result.path_bytes,
    }
    if result.link_bytes:
        row["link_bytes"] = result.link_bytes
    if result.node_updates:
        row["node_updates"] = result.node_updates
    row |= result.subspaces
    if result.loss_scale != 1:
        row["loss_scale"] = result.loss_scale
    if result.skipped:
        row["skipped"] = True
    if skipped_steps:
        row["skipped_steps"] = skipped_steps
    return row


class Metrics:
    """Appends rows; each is in the file when `add` returns, and on the disk after `sync`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[str] = open(path, "a", encoding="utf-8", opener=no_link)  # noqa: SIM115 - as long as the run

    def add(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row) + "\n")
        self._stream.flush()

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


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
