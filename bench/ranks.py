"""Several processes of one program on this machine, with what a launcher tells them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def start_ranks(command: Sequence[str], count: int, folder: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The command in so many processes, whose words go to RANK.log in the folder. Those that still run at the end are
    killed."""
    running: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for rank in range(count):
            environment = os.environ | {
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            log = stack.enter_context((folder / f"{rank}.log").open("wb"))
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            stack.callback(running[-1].kill)
        yield running


def wait_ranks(running: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Ends this program with the first process's words if one of them failed."""
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"exit codes {codes}: " + (folder / "0.log").read_text(errors="replace")[-2000:])
