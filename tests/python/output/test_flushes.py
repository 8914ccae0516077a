"""What a run has told to be durable lies on the drive: its files are flushed before they get their names, and
directories before what they replace is given up. Seen in the system calls of the `spillway` command, with the real
flush that fake_runs leaves out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import real_runs
from test_system_calls import require_strace

CALLS = "openat,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,fsync,fdatasync"
LINE = re.compile(r"^\d+ +(?P<call>\w+)\((?P<words>.*)\) += (?P<result>-?\d+)")
PATHS = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<at>[^>]*)>, )?"(?P<name>[^"]*)"')
OPEN = re.compile(r"^\d+<(?P<path>[^>]*)>")


@dataclass(frozen=True)
class Event:
    call: str  # "make", "rename", "remove", "flush"
    path: Path
    to: Path | None = None  # of a rename

    @property
    def changes(self) -> set[Path]:
        """Directories whose entries it changes."""
        names = [self.path, *([self.to] if self.to else [])] if self.call != "flush" else []
        return {name.parent for name in names}


def events(trace: str) -> list[Event]:
    out: list[Event] = []
    for line in joined(trace):
        found = LINE.match(line)
        if found is None or found["result"].startswith("-"):
            continue
        call, words = found["call"], found["words"]
        if call in ("fsync", "fdatasync"):
            opened = OPEN.match(words)
            out += [Event("flush", Path(opened["path"]))] if opened else []
            continue
        names = [Path(it["at"] or "/", it["name"]) for it in PATHS.finditer(words)]
        if call.startswith("rename"):
            out.append(Event("rename", *names))
            if "RENAME_EXCHANGE" in words:
                out.append(Event("rename", *reversed(names)))
        elif call.startswith("link"):
            out.append(Event("make", names[1]))
        elif call.startswith("mkdir") or (call == "openat" and "O_CREAT" in words):
            out.append(Event("make", names[0]))
        elif call.startswith(("unlink", "rmdir")):
            out.append(Event("remove", names[0]))
    return out


def joined(trace: str) -> list[str]:
    """Calls that another thread's interrupted are put together again."""
    open_calls: dict[str, str] = {}
    out = []
    for line in trace.splitlines():
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            open_calls[thread] = line.removesuffix("<unfinished ...>").rstrip()
        elif " resumed>" in line:
            out.append(open_calls.pop(thread, thread + " ") + line.split(" resumed>", 1)[1])
        else:
            out.append(line)
    return out


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flushes") / "out"


@pytest.fixture(scope="module")
def seen(out: Path) -> list[Event]:
    """A run on a storage path that makes three checkpoints and keeps one."""
    folder = out.parent
    require_strace(folder)
    given = real_runs.inputs(folder)
    keys = ["--max_steps", "6", "--save_steps", "2", "--save_total_limit", "1", *real_runs.on_path(folder / "storage")]
    trace = folder / "trace"
    quiet = ["-f", "-y", "-qq", "--seccomp-bpf", "-e", "signal=none"]
    command = [str(Path(sys.executable).with_name("spillway")), *real_runs.words(given, out, *keys)]
    words = ["strace", *quiet, "-e", f"trace={CALLS}", "-o", str(trace), *command]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return events(trace.read_text(errors="replace"))


def first(seen: list[Event], begin: int, call: str, path: Path) -> int:
    """Where that happens after `begin`; the end if it never does."""
    numbers = (n for n in range(begin, len(seen)) if seen[n].call == call and path in (seen[n].path, seen[n].to))
    return next(numbers, len(seen))


def named(seen: list[Event], name: str) -> list[int]:
    return [n for n, event in enumerate(seen) if event.to is not None and re.fullmatch(name, event.to.name)]


def next_change(seen: list[Event], begin: int, folder: Path) -> int:
    return next((n for n in range(begin, len(seen)) if folder in seen[n].changes), len(seen))


def test_a_checkpoint_is_flushed_before_it_gets_its_name(seen: list[Event], out: Path) -> None:
    places = named(seen, r"checkpoint-\d+")
    assert [seen[n].to for n in places] == [out / f"checkpoint-{step}" for step in (2, 4, 6)]
    for place in places:
        before = seen[:place]
        temporary = seen[place].path
        begun = max(n for n, event in enumerate(before) if event.call == "make" and event.path == temporary)
        last_change: dict[Path, int] = {}
        flushed: dict[Path, int] = {}
        for n, event in enumerate(before[begun:]):
            if event.call == "flush":
                flushed[event.path] = n
            for path in [event.to or event.path, *event.changes] if event.call != "flush" else []:
                last_change[path] = n
            for path in [event.path] if event.call in ("rename", "remove") else []:
                last_change.pop(path, None)
        inside = [path for path in last_change if path.is_relative_to(temporary)]
        assert len(inside) > 8
        assert [path for path in inside if flushed.get(path, -1) <= last_change[path]] == []


def test_a_name_is_flushed_before_what_follows_it(seen: list[Event], out: Path) -> None:
    """The new checkpoint's before the old one goes, the old one's before its files go, these before its places do."""
    for place in named(seen, r"(\.old-)?checkpoint-\d+"):
        assert first(seen, place, "flush", out) < next_change(seen, place + 1, out)
    gone = [n for n, event in enumerate(seen) if event.call == "remove" and event.path.name.startswith(".old-check")]
    assert len(gone) == 2
    for n in gone:
        assert first(seen, n, "flush", out) < next_change(seen, n + 1, out)


def test_a_volume_is_made_when_its_run_is_known(seen: list[Event], out: Path) -> None:
    """The folder of the run, its output_dir, and what that lies in."""
    draft = out.parent / "storage" / "spillway.volume.new"
    volume = first(seen, 0, "make", draft)
    known = named(seen[:volume], r"run\.json")[-1]
    for folder in (out / "spillway", out, out.parent):
        assert first(seen, known, "flush", folder) < volume


def test_a_volume_is_flushed_with_its_directory(seen: list[Event], out: Path) -> None:
    (place,) = named(seen, r"spillway\.volume")
    storage = out.parent / "storage"
    assert storage / "spillway.volume.new" in {event.path for event in seen[:place] if event.call == "flush"}
    assert first(seen, place, "flush", storage) < len(seen)
