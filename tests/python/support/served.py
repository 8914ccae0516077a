"""A directory that a server shows, as that of a remote file system: it may be slow, away, in trouble, or dead."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT = 300.0  # seconds that an answer may take at most, on a machine with much other work
SOURCE = Path(__file__).with_name("served.c")
UNTRIED = "so storage whose server goes away stays untried"


class Unserved(Exception):
    """This machine cannot show such a directory; why."""


def program(place: Path) -> Path:
    """served.c, compiled into an existing directory."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        raise Unserved(f"no right to mount what /dev/fuse offers, {UNTRIED}")
    compiler, flags = shutil.which("cc"), shutil.which("pkg-config")
    if compiler is None or flags is None:
        raise Unserved(f"no C compiler or no pkg-config, {UNTRIED}")
    found = subprocess.run([flags, "--cflags", "--libs", "fuse3 >= 3.12"], capture_output=True, text=True)
    if found.returncode != 0:
        raise Unserved(f"no libfuse3-dev from 3.12 on, {UNTRIED}")
    to = place / "served"
    subprocess.run([compiler, "-std=gnu17", "-O1", "-o", to, SOURCE, *found.stdout.split()], check=True)
    return to


class Server:
    """What it shows outlives it: another one goes on where it was killed."""

    def __init__(self, program: Path, backing: Path, shown: Path) -> None:
        for place in (backing, shown):
            place.mkdir(parents=True, exist_ok=True)
        self.directory = shown
        self._process = subprocess.Popen(
            [program, backing, shown], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._expect("ready")

    def go_away(self) -> None:
        """From now on nothing is answered."""
        self._order("away")

    def wait_for_request(self) -> None:
        """Until one waits. Once after each `go_away`."""
        self._expect("waits")

    def come_back(self) -> None:
        self._order("back")

    def fail(self, error: int) -> None:
        """Every request ends so; 0: it is done."""
        self._order(f"fail {error}")

    def limit(self, rate: float) -> None:
        """Bytes a second that it reads, and as many that it writes; 0: as many as it can."""
        self._order(f"rate {rate:.0f}")

    def kill(self) -> None:
        """Requests that wait end, and all later ones, with the error of a connection that is gone."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Takes the mount away. Once or more, and after `kill`."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(LIMIT)
        subprocess.run(["umount", "--lazy", self.directory], stderr=subprocess.DEVNULL)

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._expect("done")

    def _expect(self, word: str) -> None:
        """Nobody may have asked for what it said before."""
        assert self._process.stdout is not None
        said = b""
        while not said.endswith(f"{word}\n".encode()):
            if not select.select([self._process.stdout], [], [], LIMIT)[0]:
                raise AssertionError(f"the server has not said {word!r} for {LIMIT:.0f} s, but {said!r}")
            if not (more := self._process.stdout.read(1)):
                raise AssertionError(f"the server has ended with {self._process.wait()}, and said {said!r}")
            said += more


@contextmanager
def served(program: Path, backing: Path, shown: Path) -> Iterator[Server]:
    server = Server(program, backing, shown)
    try:
        yield server
    finally:
        server.close()
