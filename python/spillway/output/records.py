"""metrics.jsonl: a row for each logged step and each evaluation.

Floats are written as shortest round-trip (Python's repr), so that equal bits print equal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.base.documents import parse_json, require_file
from spillway.base.files import flush, no_link, replace_text

METRICS = "metrics.jsonl"
ASIDE = ".damaged"  # suffix of the file that damaged lines move to
LINES_TOLD = 5
LARGEST = 2**63  # the limit of counts
NUMBERS = ("epoch", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "eval_loss", "eval_perplexity")


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


@dataclass(frozen=True)
class DamagedLine:
    """A line of a log that holds no row."""

    number: int  # counted from 1
    why: str
    content: bytes  # bytes of the line, with its end


def read_lines(
    path: Path, wrong: Callable[[dict[str, Any]], str]
) -> Iterator[tuple[dict[str, Any] | None, DamagedLine | None]]:
    """The row or the damage of each line of a log of JSON objects. `wrong` gives the reason why an object is no row. A
    last line that a crash truncated is left out."""
    if not path.exists():
        return
    require_file(path)
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n") and line.startswith(b"{") and b"\0" not in line:
                return
            row, why = parse_row(line, wrong)
            yield row, DamagedLine(number, why, line) if why else None


def parse_row(line: bytes, wrong: Callable[[dict[str, Any]], str]) -> tuple[dict[str, Any] | None, str]:
    """The row of a line, or the reason why it has none."""
    if not line.strip(b"\0\n"):
        return None, "zeros" if line.strip(b"\n") else "an empty line"
    try:
        row = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError:
        return None, "bytes that are no UTF-8"
    except ValueError:
        return None, "no JSON"
    if not isinstance(row, dict):
        return None, "no JSON object"
    why = wrong(row)
    return (None, why) if why else (row, "")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file, without damaged lines and without a truncated last line."""
    return (row for row, _ in read_lines(path, describe_wrong_row) if row is not None)


def read_damaged_lines(path: Path) -> list[DamagedLine]:
    """The damaged lines of a metrics file."""
    return [damage for _, damage in read_lines(path, describe_wrong_row) if damage is not None]


def describe_wrong_row(row: dict[str, Any]) -> str:
    """The reason why a JSON object is no row of a metrics file; empty if it is one."""
    step = row.get("step")
    if not isinstance(step, int) or not is_number(step) or step < 0:
        return "no `step`" if step is None else "a `step` that is no count"
    for name in NUMBERS:
        if name in row and not is_number(row[name]):
            return f"a `{name}` that is no number"
    moved = row.get("path_bytes", {})
    if not isinstance(moved, dict) or not all(isinstance(each, dict) and has_numbers(each) for each in moved.values()):
        return "`path_bytes` that are no counts"
    return ""


def is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST)


def has_numbers(counts: dict[str, Any]) -> bool:
    return all(map(is_number, counts.values()))


def describe_damage(name: str, damage: list[DamagedLine], where: str) -> str:
    """A sentence with the damaged lines of a log. `where`: where they go."""
    places = [f"{each.number} ({each.why})" for each in damage[:LINES_TOLD]]
    more = f" and {len(damage) - LINES_TOLD} more" if len(damage) > LINES_TOLD else ""
    several = "s" if len(damage) > 1 else ""
    return f"{name}: damaged line{several} {', '.join(places)}{more}; {where}"


def append_damage(path: Path, damage: list[DamagedLine]) -> str:
    """Appends damaged lines to a file beside the log, and returns a notice. The log keeps them."""
    target = path.with_name(path.name + ASIDE)
    with open(target, "ab", opener=no_link) as stream:
        for each in damage:
            stream.write(each.content if each.content.endswith(b"\n") else each.content + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    flush(target.parent)
    return describe_damage(path.name, damage, f"set aside in {target.name}, the others stay")


def move_damaged_lines(path: Path) -> list[str]:
    """Moves damaged lines of a metrics file to a file beside it, and returns the notices."""
    damage = read_damaged_lines(path)
    if not damage:
        return []
    words = append_damage(path, damage)
    keep_rows(path, list(rows(path)))
    return [words]


def keep_rows(path: Path, remaining: list[dict[str, Any]]) -> None:
    replace_text(path, "".join(json.dumps(row) + "\n" for row in remaining))


def keep_rows_until(path: Path, step: int) -> int:
    """Removes the rows after `step`, and a line cut short; returns how many rows went."""
    if not path.exists():
        return 0
    everything = list(rows(path))
    kept = [row for row in everything if row["step"] <= step]
    keep_rows(path, kept)
    return len(everything) - len(kept)


def read_newest_step(path: Path) -> int:
    """The highest step of any row; 0 without rows. Other lines are skipped."""
    newest = 0
    with suppress(OSError):
        require_file(path)
        with open(path, "rb") as stream:
            for line in stream:
                with suppress(ValueError, OverflowError, KeyError, TypeError):
                    newest = max(newest, int(parse_json(line)["step"]))
    return newest
