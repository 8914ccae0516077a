"""Does an export of NFS beside a local drive shorten a step? Steps of the engine without compute, in a virtual machine
whose kernel has a client and a server of NFS (tests/virtual).

    python bench/paths_nfs.py BUILD/bench [--local 2] [--remote 1] [--steps 4] [--note WORDS]

The steps are those of `replay tiny`: every transfer and every update of a step whose state lies on the paths. The local
path is a loop device with a limit (throttled.py). The client of NFS reaches its server through a program that passes
so many bytes a second each way. QEMU translates every instruction, so the limits are far below what its processor
keeps up with. `wire` has the bytes of a whole run between client and server, with everything that NFS adds.

    local    the local path alone
    nfs      the local path and the export

Results: bench/results/paths-nfs.json, as in paths-steps.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from throttled import throttled

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "virtual"))

import train_nfs

PROXY_PORT = 2050
VOLUME = 400  # MiB of the local path
SHAPE, DRAM_GIB = "tiny", "0.25"
BOOT = 1200  # seconds for the machine, its programs and the first fill of the paths
PATIENCE = 900  # seconds, far more than the requests in flight take at the limit
PIECE = 1 << 16
BURST = 1.0  # seconds that a late piece may catch up: other programs may hold the emulator back for that long
MARK = "measured: "


class Proxy:
    """Passes bytes between the client and the server of NFS, so many a second each way, and counts them."""

    def __init__(self, rate: float) -> None:
        self.moved = {"read": 0, "written": 0}
        self._rate = rate
        self._listener = socket.create_server((train_nfs.ADDRESS, PROXY_PORT))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection((train_nfs.ADDRESS, train_nfs.PORT))
            for way, source, sink in (("written", client, server), ("read", server, client)):
                threading.Thread(target=self._pass, args=(way, source, sink), daemon=True).start()

    def _pass(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        due = time.monotonic()
        while piece := source.recv(PIECE):
            sink.sendall(piece)
            self.moved[way] += len(piece)
            due = max(due, time.monotonic() - BURST) + len(piece) / self._rate
            time.sleep(max(0.0, due - time.monotonic()))
        sink.shutdown(socket.SHUT_WR)


def read_steps(text: str) -> dict[str, Any]:
    """Seconds of the steps that replay has printed, and the bytes of each path in the last one."""
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    moved = re.findall(r"path:\d+ (\d+) (\d+)", lines[-1])
    return {
        "seconds": [float(line.split()[2]) for line in lines],
        "path_bytes": [{"read": int(read), "written": int(written)} for read, written in moved],
    }


def measure_inside(programs: str, local: float, remote: float, steps: int) -> None:
    """In the virtual machine; prints a line for each case."""
    os.environ["PATH"] += f"{os.pathsep}/usr/sbin"  # losetup, mkfs.ext4
    train_nfs.loopback(up=True)
    proxy = Proxy(remote * 1e6)
    work = Path(tempfile.mkdtemp())
    groups = work / "groups"
    groups.mkdir()
    train_nfs.mount("cgroup", groups, "cgroup", "blkio")
    with throttled([local], VOLUME) as paths:
        server = train_nfs.Server(work, PROXY_PORT, PATIENCE)
        drive = str(paths.directories[0])
        for name, directories in (("local", drive), ("nfs", f"{drive},{server.directory}")):
            before = dict(proxy.moved)
            words = [*paths.prefix, f"{programs}/replay", directories, SHAPE, DRAM_GIB, str(steps)]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            print(done.stdout, flush=True)
            case = read_steps(done.stdout) | {"wire": {way: proxy.moved[way] - before[way] for way in before}}
            print(MARK + json.dumps({name: case}), flush=True)


def measure(arguments: argparse.Namespace) -> None:
    import machine as virtual
    from figures import machine, processor, save
    from paths_steps import Case, finish, say

    beside = machine() | processor() | {"note": arguments.note}
    words = [sys.executable, "-B", "bench/paths_nfs.py", str(arguments.programs.resolve()), "--inside"]
    words += [f"--{name}={getattr(arguments, name)}" for name in ("local", "remote", "steps")]
    result = virtual.boot(words, "nfs", BOOT + arguments.steps * 600 / arguments.local, show=True)
    if result.status != 0:
        raise SystemExit(f"the virtual machine ended with status {result.status}:\n{result.output[-3000:]}")
    cases: dict[str, Any] = {}
    for line in re.findall(rf"^{MARK}(.*)$", result.output, re.MULTILINE):
        cases |= json.loads(line)
    for name, case in cases.items():
        finish(Case((arguments.local,), remote=arguments.remote if name == "nfs" else 0), case)
        say(name, case)
    save("paths-nfs", {"shape": SHAPE, "dram_gib": float(DRAM_GIB), "machine": beside, "cases": cases})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built benchmarks")
    parser.add_argument("--local", type=float, default=2, help="MB/s in each direction")
    parser.add_argument("--remote", type=float, default=1)
    parser.add_argument("--steps", type=int, default=4, help="of each case; the first does not count")
    parser.add_argument("--note", default="", help="on the machine, for readers of the results")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        measure_inside(str(arguments.programs), arguments.local, arguments.remote, arguments.steps)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
