"""Trains with half of the storage on an export of NFS whose server goes away, by the kernel's own client and server: it
is named and waited for, and a run that was killed meanwhile resumes; the bits are those of a run in memory.

Runs inside the virtual machine of machine.py: `python tests/virtual/machine.py --machine nfs -- PYTHON
tests/virtual/train_nfs.py`. Client and server are this machine, over its loopback device; an outage takes that down.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HERE / "tests" / "python" / folder) for folder in ("support", "run")]
sys.dont_write_bytecode = True

ADDRESS = "127.0.0.1"
CLIENTS = "loopback"  # what the server calls those that may mount
PORT = 2049  # of the server
LAST = 2**31 - 1  # seconds: what the server is told never expires
# Of linux/nfsd/export.h: any port, no check that a file lies below the export, no locks by another protocol, numbered.
INSECURE_PORT, NO_SUBTREE_CHECK, NO_LOCK_AUTHENTICATION, NUMBERED = 0x2, 0x400, 0x800, 0x2000
NOBODY = 65534
NUMBER = 0  # of the export: the root of what clients of version 4 see
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def loopback(up: bool) -> None:
    """Takes the device up or down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = fcntl.ioctl(asked, SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack_from("16sh", request)[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags))


def mount(what: str, at: Path, kind: str, options: str = "") -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(what.encode(), str(at).encode(), kind.encode(), 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {kind} at {at}: {os.strerror(ctypes.get_errno())}")


def tell(cache: str, words: str) -> None:
    """The kernel of the server, what exportfs and rpc.mountd would (fs/nfsd/export.c, net/sunrpc/svcauth_unix.c)."""
    with open(f"/proc/net/rpc/{cache}/channel", "w") as channel:
        channel.write(f"{words}\n")


def serve(exported: Path) -> None:
    """The directory, to this machine, by version 4.2 alone: other versions want daemons."""
    control = Path("/proc/fs/nfsd")
    if not (control / "threads").exists():
        mount("nfsd", control, "nfsd")
    (control / "versions").write_text("-2 -3 +4 +4.1 +4.2\n")
    for name in ("nfsv4leasetime", "nfsv4gracetime"):
        if (control / name).exists():
            (control / name).write_text("10\n")
    flags = INSECURE_PORT | NO_SUBTREE_CHECK | NO_LOCK_AUTHENTICATION | NUMBERED
    tell("auth.unix.ip", f"nfsd {ADDRESS} {LAST} {CLIENTS}")
    tell("nfsd.export", f"{CLIENTS} {exported} {LAST} {flags} {NOBODY} {NOBODY} {NUMBER}")
    tell("nfsd.fh", f"{CLIENTS} 1 \\x{NUMBER:08x} {LAST} {exported}")
    (control / "portlist").write_text(f"tcp {PORT}\n")
    (control / "threads").write_text("4\n")


class Server:
    """As `served.Server`, of a kernel."""

    def __init__(self, work: Path, port: int = PORT, patience: int = 60) -> None:
        """The client connects to `port`: that of the server, or of what stands before it. After `patience` seconds it
        sends a request again."""
        self.directory = work / "remote"
        exported = work / "exported"
        for place in (exported, self.directory):
            place.mkdir()
        loopback(up=True)
        mount("exported", exported, "tmpfs", "size=256m")
        serve(exported)
        by_wire = Path("/sys/module/nfs/parameters/localio_enabled")  # else a client beside its server goes past RPC
        if by_wire.exists():
            by_wire.write_text("N")
        options = f"addr={ADDRESS},port={port},clientaddr={ADDRESS},vers=4.2,sec=sys,hard,timeo={10 * patience}"
        mount(f"{ADDRESS}:/", self.directory, "nfs4", options)
        print(next(line for line in Path("/proc/mounts").read_text().splitlines() if " nfs4 " in line), flush=True)

    def go_away(self) -> None:
        loopback(up=False)

    def come_back(self) -> None:
        loopback(up=True)


def main() -> int:
    work = Path(tempfile.mkdtemp())
    os.environ |= {"HOME": str(work), "HF_HOME": str(work), "HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(work)}
    import held
    import real_runs
    import spillway.run.run
    import test_remote as remote

    spillway.run.run.plot_apart = lambda *_: "not drawn in a machine this slow"
    server = Server(work)
    given = real_runs.inputs(work / "inputs")
    print("training in memory", flush=True)
    assert real_runs.here(given, work / "memory", "--max_steps", str(remote.STEPS)) == 0
    undisturbed = real_runs.result(work / "memory")

    out = work / "out"
    print("training over NFS", flush=True)
    run = remote.has_begun(remote.impatient(*remote.words(given, out, server)), out)
    server.go_away()
    held.wait_for(run, lambda: remote.has_said(run, remote.SILENT))
    print("the server is away, and named", flush=True)
    server.come_back()
    held.wait_for(run, lambda: remote.has_said(run, remote.BACK) and held.has_row(out, 5))
    print("the server is back, and the run goes on", flush=True)
    server.go_away()
    time.sleep(1)  # requests are under way
    run.kill()
    server.come_back()
    assert remote.waited(remote.said_by(run), server) and run.returncode == -9
    print("killed while the server was away; resuming", flush=True)
    remote.finished(remote.resume(out))
    assert real_runs.result(out) == undisturbed, "the bits depend on the server"
    verified = real_runs.apart("-m", "spillway", "verify", str(out))
    remote.finished(verified)
    print("over NFS and resumed, the same bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
