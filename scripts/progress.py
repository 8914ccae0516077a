"""Runs a command that builds with Ninja and shows how far it is: one line that changes on a terminal, elsewhere a line
for each tenth. All that the command says goes to a file; its end is shown when the command fails."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

STATUS = re.compile(r"^\s*\[(\d+)/(\d+)\] (.*)")  # Ninja's, wherever pip has indented it
SHOWN_OF_A_FAILURE = 60  # lines


class Progress:
    """Shows Ninja's status lines on `screen`. `narrow`: columns of a terminal; None: the screen is a file."""

    def __init__(self, screen: TextIO, narrow: int | None) -> None:
        self._screen = screen
        self._narrow = narrow
        self._start = time.monotonic()
        self._tenth = 0
        self._open = False

    def see(self, line: str) -> None:
        found = STATUS.match(line)
        if found is None:
            return
        done, total, what = int(found[1]), int(found[2]), found[3]
        words = f"{100 * done // total:3} %, {done} of {total} steps, {self.seconds():.0f} s"
        if self._narrow is not None:
            self._screen.write("\r" + f"  {words}: {subject(what)}"[: self._narrow - 1] + "\x1b[K")
            self._open = True
        elif 10 * done // total > self._tenth:
            self._tenth = 10 * done // total
            self._screen.write(f"  {words}\n")
        self._screen.flush()

    def close(self) -> None:
        if self._open:
            self._screen.write("\n")
            self._open = False

    def seconds(self) -> float:
        return time.monotonic() - self._start


def subject(what: str) -> str:
    """The last part of a path, of "Building CXX object spillway/.../engine.cc.o"."""
    return what.rsplit("/", 1)[-1].removesuffix(".o")


def failure(lines: list[str]) -> list[str]:
    """What to show of a command that failed: what the first step that failed says, else the last lines."""
    failed = [at for at, line in enumerate(lines) if line.lstrip().startswith("FAILED:")]
    first = failed[0] if failed else max(len(lines) - SHOWN_OF_A_FAILURE, 0)
    return lines[first : first + SHOWN_OF_A_FAILURE]


def follow(output: Iterable[str], progress: Progress, log: TextIO) -> list[str]:
    """Reads to the end; returns every line."""
    lines = []
    for line in output:
        log.write(line)
        progress.see(line)
        lines.append(line)
    progress.close()
    return lines


def main(log: Path, command: list[str]) -> int:
    narrow = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("w") as file:
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        )
        assert program.stdout is not None
        lines = follow(program.stdout, Progress(sys.stdout, narrow), file)
    code = program.wait()
    if code != 0:
        sys.stdout.writelines(failure(lines))
        print(f"All of it is in {log}.")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
