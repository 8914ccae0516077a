"""Processes whose reads or writes of some files wait, as those of a slow drive do, or of one that does not answer."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import interposed
import warm

LIMIT = 300  # seconds that anything may take at most, on a machine with much other work
ONCE = 0.005  # seconds between two looks
STEPS = ["--max_steps", "400", "--save_strategy", "no", "--save_only_model"]  # of a run that is killed


def library() -> Path:
    return interposed.library("held", "no call can be held up")


def spillway(*words: str, environment: Mapping[str, str] = MappingProxyType({})) -> Any:
    return warm.python("-m", "spillway", *words, env=environment)


def has_row(out: Path, step: int) -> bool:
    rows = out / "metrics.jsonl"
    return rows.exists() and f'{{"step": {step},' in rows.read_text()


@dataclass
class Held:
    """Calls that wait from `hold` to `let_go`."""

    library: Path
    place: Path  # an empty directory
    call: str  # pread or pwrite
    name: str  # part of the names of the files
    milliseconds: int = 0  # that each waits; 0: until `let_go`

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "HELD_PLACE": str(self.place),
            "HELD_CALL": self.call,
            "HELD_NAME": self.name,
            "HELD_MS": str(self.milliseconds),
        }

    def hold(self) -> None:
        self.place.mkdir(exist_ok=True)
        (self.place / "hold").touch()

    def let_go(self) -> None:
        (self.place / "hold").unlink()

    def wait(self, process: Any) -> None:
        """Until the first call waits."""
        wait_for(process, (self.place / "reached").exists)


def wait_for(process: Any, happened: Callable[[], bool]) -> None:
    """Until it is true, while the process lives."""
    ended = os.pidfd_open(process.pid)
    try:
        for _ in range(int(LIMIT / ONCE)):
            if happened():
                return
            if select.select([ended], [], [], ONCE)[0]:
                raise AssertionError(f"it ended with {process.wait()}: {process.communicate()}")
    finally:
        os.close(ended)
    process.kill()
    raise AssertionError(f"nothing in {LIMIT} s: {process.communicate()}")


def wait_for_any(processes: Sequence[Any]) -> None:
    """Waits until one of the processes has ended."""
    for _ in range(int(LIMIT / ONCE)):
        if any(each.poll() is not None for each in processes):
            return
        time.sleep(ONCE)
    raise AssertionError(f"no process has ended in {LIMIT} s")


def pause() -> None:
    """Lets another process go on."""
    time.sleep(ONCE)


def has_open(process: Any, file: Path) -> bool:
    """Whether the process has a file open by this name."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if os.readlink(link) == str(file):
                return True
        except OSError:
            continue
    return False
