"""Nothing is opened, created, extended or closed inside a step: shown by tracing the system calls of a durable run.

The rings' operations are no system calls of their own; the engine's are reads, writes and flushes of a registered file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from folders import PYTHONPATH
from hf_models import tiny_config, tiny_model
from needs import needs

# What takes a file's name, makes or ends a descriptor, or changes a file's length.
TRACED = (
    "%file,close,close_range,dup,dup2,dup3,ftruncate,fallocate,memfd_create,mmap,"
    "io_uring_setup,io_uring_register,socket,pipe,pipe2,write"
)
LINE = re.compile(r"^(?P<thread>\d+) +(?P<call>\w+)\((?P<words>.*)$")
MARK = re.compile(r'^\d+</dev/null>, "(?P<mark>(begin|end) \w+)"')
OWN = re.compile(r'^(AT_FDCWD(<[^>]*>)?, )?"/proc/self/|^\d+</proc/\d+/')  # this process's own memory


@dataclass(frozen=True)
class Call:
    thread: int
    name: str
    words: str  # arguments and result

    def __str__(self) -> str:
        return f"thread {self.thread}: {self.name}({self.words}"


@dataclass(frozen=True)
class Trace:
    main: int  # thread
    calls: list[Call]

    def window(self, name: str) -> list[Call]:
        """Between its marks."""
        marks = [found and found["mark"] for found in (mark(call) for call in self.calls)]
        first, last = marks.index(f"begin {name}"), marks.index(f"end {name}")
        return [call for call in self.calls[first + 1 : last] if call.name != "write"]


def mark(call: Call) -> re.Match[str] | None:
    return MARK.match(call.words) if call.name == "write" else None


def parsed(text: str) -> Trace:
    found = [LINE.match(line) for line in text.splitlines()]
    calls = [Call(int(it["thread"]), it["call"], it["words"]) for it in found if it]
    return Trace(calls[0].thread, calls)


def offences(trace: Trace, window: str, storage: Path) -> list[str]:
    """Calls that no step may make: of storage in any thread; of anything but memory in the engine's. Between passes the
    session looks at how large this process is."""
    return [str(call) for call in trace.window(window) if not allowed(trace, call, storage)]


def allowed(trace: Trace, call: Call, storage: Path) -> bool:
    if call.name == "mmap" and "MAP_ANONYMOUS" in call.words:
        return True
    return call.thread == trace.main and str(storage) not in call.words and bool(OWN.match(call.words))


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def trace(storage: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("run")
    require_strace(folder)
    tiny_model(tiny_config("llama")).save_pretrained(folder / "model")
    program = Path(__file__).with_name("marked_steps.py")
    done = traced(folder / "trace", sys.executable, str(program), str(folder / "model"), str(storage))
    assert done.returncode == 0, done.stderr
    return parsed((folder / "trace").read_text(errors="replace"))


def traced(out: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", "signal=none", "-e", f"trace={TRACED}", "-o", str(out)]
    quiet = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    return subprocess.run([*words, *command], capture_output=True, text=True, env=os.environ | quiet)


def require_strace(folder: Path) -> None:
    needs("strace", shutil.which("strace"), "there is no strace to see system calls with")
    done = traced(folder / "nothing", "true")
    needs("ptrace", done.returncode == 0, f"strace may not trace here: {done.stderr.strip()}")


def test_the_run_is_seen(trace: Trace, storage: Path) -> None:
    """Its volume is made, its engine has threads of its own, and there is something to see in the steady steps."""
    made = f'"{storage / "spillway.volume.new"}"'
    assert any(call.name == "openat" and made in call.words and "O_CREAT" in call.words for call in trace.calls)
    assert {call.thread for call in trace.calls} > {trace.main}
    assert trace.window("steady")


def test_nothing_is_opened_created_extended_or_closed_inside_a_step(trace: Trace, storage: Path) -> None:
    assert offences(trace, "steady", storage) == []


@pytest.mark.parametrize(
    ("window", "calls"),
    [
        ("open", ["open", "close"]),
        ("create", ["open", "close"]),
        ("rename", ["rename"]),
        ("thread", ["open", "close"]),
        ("extend", ["ftruncate"]),
    ],
)
def test_a_step_that_did_would_be_caught(trace: Trace, storage: Path, window: str, calls: list[str]) -> None:
    names = [found.partition(": ")[2].partition("(")[0] for found in offences(trace, window, storage)]
    assert all(any(name.startswith(call) for name in names) for call in calls)
