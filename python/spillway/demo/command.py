"""Runs the `spillway` command as a person would, and reads the files it leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.demo.memory_limit import MemoryLimit

SPILLWAY = [sys.executable, "-m", "spillway"]


def as_typed() -> str:
    """The command as a person types it: its name where the shell finds this installation's, else its path."""
    beside = Path(sys.executable).with_name("spillway")
    return "spillway" if shutil.which("spillway") == str(beside) else str(beside)


@dataclass(frozen=True)
class Outcome:
    code: int  # exit code; negative: killed by that signal
    output: str  # standard output; empty when it went to the terminal
    errors: str  # standard error; the same

    def message(self) -> str:
        """What the command itself said at its end: its last line that begins with its name."""
        lines = [line for line in self.errors.splitlines() if line.startswith("spillway: ")]
        return lines[-1] if lines else self.errors or self.output


def run(words: list[str], *, live: bool = False, limit: MemoryLimit | None = None) -> Outcome:
    """Runs `spillway WORDS...` to its end. `live`: on this terminal; else its output is kept."""
    return ended(begin(words, live=live, limit=limit))


def begin(words: list[str], *, live: bool = False, limit: MemoryLimit | None = None) -> subprocess.Popen[str]:
    """Starts `spillway WORDS...`, to go on beside what follows."""
    pipe = None if live else subprocess.PIPE
    return subprocess.Popen(
        [*SPILLWAY, *words],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment(),
        preexec_fn=limit.enter if limit else None,
    )


def ended(program: subprocess.Popen[str]) -> Outcome:
    """Waits for its end. What interrupts this ends the program, too."""
    with program:
        try:
            output, errors = program.communicate()
        except BaseException:
            program.kill()
            raise
    return Outcome(program.returncode, output or "", errors or "")


def run_and_interrupt(words: list[str], output_dir: Path, after_step: int) -> Outcome:
    """Runs `spillway WORDS...` and presses Ctrl-C once the run in `output_dir` has logged step `after_step`."""
    program = begin(words)
    while program.poll() is None and not any(row["step"] >= after_step for row in metrics(output_dir)):
        time.sleep(0.01)
    if program.poll() is None:
        program.send_signal(signal.SIGINT)
    return ended(program)


def environment() -> dict[str, str]:
    """This one, held to local files, and with a terminal as wide as what is quoted from it."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "110"}


def metrics(output_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl so far; none before the file is there. A line still being written is left out."""
    file = output_dir / "metrics.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def content(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))
