"""Processes of their own that are quick to begin: forked from one that has imported PyTorch and transformers, which
takes a new interpreter six CPU seconds and more.

They have their own memory, files, signals and end, and what the environment says of them. Only the imports lie before
their beginning, and what `once` leaves out. In `make nightly`, and where a test asks for it, they begin as a user's do.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import interposed
from folders import PYTHONPATH

NIGHTLY = os.environ.get("SPILLWAY_NIGHTLY", "0") not in ("", "0")
ONE_THREAD = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
LONGEST = 1 << 20  # bytes of a message


class Process:
    """Of subprocess.Popen what tests use. What it says goes to files, so that nothing waits for a reader."""

    def __init__(self, parent: Parent, words: list[str], environment: Mapping[str, str], stdin: int) -> None:
        self.args = words
        self.returncode: int | None = None
        self._parent = parent
        self._out, self._error = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.pid = parent.start(words, environment, [stdin, self._out.fileno(), self._error.fileno()])

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it said, when it has ended."""
        self.wait(timeout)
        said = []
        for file in (self._out, self._error):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ended(self.pid, seconds)
        return self.returncode


class Parent:
    """The process that has imported everything, and forks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], env=dict(environment), pass_fds=[theirs.fileno()]
            )
        self._socket = ours
        self._codes: dict[int, int] = {}
        atexit.register(self.end)

    def start(self, words: list[str], environment: Mapping[str, str], files: list[int]) -> int:
        mask = os.umask(0o077)
        os.umask(mask)
        asked = {"words": words, "environment": dict(environment), "directory": os.getcwd(), "path": sys.path}
        asked["umask"] = mask
        socket.send_fds(self._socket, [json.dumps(asked).encode()], files)
        while (told := self._told(None)) is None or "began" not in told:
            pass
        return int(told["began"])

    def ended(self, pid: int, seconds: float | None) -> int | None:
        """How it ended; None: not within so many seconds."""
        last = None if seconds is None else time.monotonic() + seconds
        while pid not in self._codes:
            left = None if last is None else max(0.0, last - time.monotonic())
            if self._told(left) is None and left == 0:
                return None
        return self._codes[pid]

    def _told(self, seconds: float | None) -> dict[str, int] | None:
        """The next message, if one comes in time."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return None
        message = self._socket.recv(LONGEST)
        if not message:
            raise RuntimeError(f"the process that forks others has ended with {self._process.wait()}")
        told: dict[str, int] = json.loads(message)
        if "began" in told:
            self._codes.pop(told["began"], None)  # of one that had this number before
        if "ended" in told:
            self._codes[told["ended"]] = told["code"]
        return told

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


_parents: dict[str, Parent] = {}  # by the libraries that are loaded before all others


def python(
    *words: object,
    env: Mapping[str, str] = MappingProxyType({}),
    stdin: int | None = None,
    cold: bool = False,
    forked: bool = False,
) -> Any:
    """`python WORDS`: `-m MODULE ...`, `-c SCRIPT ...` or `SCRIPT ...`, on one thread, with `env` in its environment
    besides. `cold`: it imports by itself. `forked`: not even in `make nightly`, of which it does hundreds."""
    words, whole = tuple(map(str, words)), {**os.environ, **ONE_THREAD, **env}
    if cold or (NIGHTLY and not forked):
        paths = os.pathsep.join(filter(None, (PYTHONPATH, whole.get("PYTHONPATH"))))
        whole["PYTHONPATH"] = paths  # as a forked one has it
        return subprocess.Popen(
            [sys.executable, *words], env=whole, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    libraries = whole.get("LD_PRELOAD", "")
    if set(filter(None, libraries.split(":"))) <= set(interposed.all_of_them()):
        libraries = ":".join(interposed.all_of_them())
    if libraries not in _parents:
        _parents[libraries] = Parent(os.environ | ONE_THREAD | ({"LD_PRELOAD": libraries} if libraries else {}))
    with open(os.devnull) as nothing:
        return Process(_parents[libraries], list(words), whole, nothing.fileno() if stdin is None else stdin)


# ---- in the process that forks


def serve(asked: socket.socket) -> None:
    """Until the other end is closed."""
    running: dict[int, int] = {}  # processes by what becomes readable when they end
    while True:
        for ready in select.select([asked, *running], [], [])[0]:
            if ready is asked:
                message, files, _, _ = socket.recv_fds(asked, LONGEST, 3)
                if not message:
                    return
                pid = os.fork()
                if pid == 0:
                    for other in (asked.detach(), *running):
                        os.close(other)
                    begin(json.loads(message), files)
                for file in files:
                    os.close(file)
                running[os.pidfd_open(pid)] = pid
                tell(asked, began=pid)
            else:
                pid = running.pop(ready)
                os.close(ready)
                tell(asked, ended=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def tell(whom: socket.socket, **what: int) -> None:
    whom.send(json.dumps(what).encode())


def begin(asked: dict[str, Any], files: list[int]) -> NoReturn:
    """As the interpreter does with these words."""
    for wanted, file in enumerate(files):
        os.dup2(file, wanted)
        os.close(file)
    os.chdir(asked["directory"])
    os.umask(asked["umask"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    more = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [*more, *asked["path"]]
    how, *rest = asked["words"]
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [how, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(how)))
        runpy.run_path(how, run_name="__main__")
    sys.exit(0)


def main() -> None:
    from spillway.cli import quiet_libraries

    quiet_libraries()
    import gc

    import transformers.models.llama.modeling_llama  # noqa: F401
    import transformers.trainer_utils  # noqa: F401

    import once
    from spillway.machine import products

    products.measured("bf16")  # which decides what a model computes in: in all of them the same
    with once.is_enough(forked=True):
        gc.collect()
        gc.freeze()
        serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
