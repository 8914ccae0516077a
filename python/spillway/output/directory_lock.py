"""The lock of an output_dir: one run at a time writes there.

A run locks `spillway/lock.json` as long as it lives, and writes its process into the file. The kernel releases the lock
when the process ends, however it ends. The file of a killed process blocks nobody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from spillway.base.documents import parse_json
from spillway.base.files import PUBLIC
from spillway.errors import InputError
from spillway.output import identity

LOCK = Path(identity.FOLDER, "lock.json")
PATIENCE = 5.0  # seconds to wait for a run that is ending, as for a volume
RESUME_PATIENCE = 20.0  # seconds of a resume, which a supervisor may start during a save
DEAD_PATIENCE = 60.0  # seconds for a dead holder: a kernel frees memory before locks
INTERVAL = 0.02  # seconds between two attempts
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
CONTENT_BYTES = 4096  # limit of bytes read from the file

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Holder:
    """The process that has the lock, as its file says."""

    host: str = ""
    pid: int = 0
    since: str = ""

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname() and self.pid > 0

    @property
    def is_dead(self) -> bool:
        """True if the process ran on this machine and has ended."""
        return self.is_here and has_ended(self.pid)

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} on {self.host}, since {self.since}"


@dataclass
class HeldFile:
    """A lock file that this process has locked."""

    file: int
    is_shared: bool  # the Trainers of this process share the lock
    count: int = 1
    made: list[Path] = field(default_factory=list)  # folders made for the file, the innermost first


_held: dict[tuple[int, int], HeldFile] = {}  # lock files by device and inode


def close_in_child() -> None:
    """Closes the parent's lock files in a forked child, which would keep the locks after the parent's end."""
    for each in _held.values():
        with suppress(OSError):
            os.close(each.file)
    _held.clear()


os.register_at_fork(after_in_child=close_in_child)


class DirectoryLock:
    """The lock of one output_dir; may be taken and released several times."""

    def __init__(self, output_dir: Path, is_shared: bool = False) -> None:
        """`is_shared`: several locks of one process share the directory."""
        self._output_dir, self._path, self._is_shared = output_dir, output_dir / LOCK, is_shared
        self._key: tuple[int, int] | None = None
        self._process = os.getpid()
        self._made: list[Path] = []  # folders that the lock made, the innermost first

    def take(self, patience: float, tell: Tell = str) -> None:
        """Takes the lock, and waits for a run that is ending. InputError if the run goes on. `tell` gets a notice of
        the wait, and of a file system without locks."""
        if self._key is not None:
            return
        self._process = os.getpid()
        try:
            while not self._lock_named_file(patience, tell):
                pass
        except BaseException:
            remove_empty(self._made)
            self._made = []
            raise

    def release(self) -> None:
        """Gives the lock back, and removes its file and the folders that were made for it, where they are empty. In a
        forked child nothing."""
        key, self._key = self._key, None
        if key is None or self._process != os.getpid() or key not in _held:
            return
        held = _held[key]
        held.made = [*held.made, *self._made]
        self._made = []
        held.count -= 1
        if held.count:
            return
        del _held[key]
        with suppress(OSError):
            if has_name(self._path, key):
                self._path.unlink()
        os.close(held.file)
        remove_empty(held.made)

    def _lock_named_file(self, patience: float, tell: Tell) -> bool:
        """Locks the named file. False if the file lost its name meanwhile, since the last holder removed it."""
        self._make_folders()
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PUBLIC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise InputError(
                f"output_dir: {self._path}, which a run locks, cannot be opened ({error.strerror}); remove it, if no "
                "run goes on there"
            ) from None
        try:
            key = self._lock(file, patience, tell)
        except BaseException:
            os.close(file)
            raise
        if key is None:
            os.close(file)
            return False
        if key in _held:
            os.close(file)
            _held[key].count += 1
        else:
            write_holder(file)
            _held[key] = HeldFile(file, self._is_shared)
        self._key = key
        return True

    def _lock(self, file: int, patience: float, tell: Tell) -> tuple[int, int] | None:
        """Locks the file, and returns its device and inode; None if its name belongs to another file."""
        status = os.fstat(file)
        key = status.st_dev, status.st_ino
        if self._is_shared and key in _held and _held[key].is_shared:
            return key
        end, has_told = time.monotonic() + patience, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in NO_LOCKS:
                    tell(f"output_dir: {self._output_dir} has no locks ({error.strerror}): start no second run there")
                    break
            holder, late = read_holder(file), time.monotonic() - end
            if late >= (DEAD_PATIENCE if holder.is_dead else 0):
                raise InputError(self._describe_refusal(holder))
            if holder.pid and not has_told:
                tell(f"output_dir: {self._output_dir} is in use by {holder}; waiting for its end")
                has_told = True
            time.sleep(INTERVAL)
        return key if has_name(self._path, key) else None

    def _describe_refusal(self, holder: Holder) -> str:
        if holder.is_here and holder.pid == os.getpid():
            return (
                f"output_dir: {self._output_dir} is in use by another run of this process ({holder.pid}), since "
                f"{holder.since}; close that one, or name another directory"
            )
        return (
            f"output_dir: {self._output_dir} is in use by another run: {holder}; end that run, or name another "
            "directory. Nothing was changed"
        )

    def _make_folders(self) -> None:
        folder = self._path.parent
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            try:
                each.mkdir()
            except FileExistsError:
                continue
            except FileNotFoundError:
                return  # another process removed the folder; the next attempt makes it
            except OSError as error:
                raise InputError(f"output_dir: {each} cannot be made ({error.strerror})") from None
            self._made = [each, *(other for other in self._made if other != each)]


def is_held(output_dir: Path) -> bool | None:
    """True if a process holds the lock of the directory. None if the file system does not tell. Changes nothing: a run
    that starts at the same moment tries again."""
    try:
        file = os.open(output_dir / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in NO_LOCKS else True
    finally:
        os.close(file)
    return False


def remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def has_name(path: Path, key: tuple[int, int]) -> bool:
    """True if the path names the file of this device and inode."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == key


def read_holder(file: int) -> Holder:
    """The holder in the lock file; empty if the file cannot be read."""
    with suppress(OSError, ValueError, OverflowError, TypeError, KeyError):
        content = parse_json(os.pread(file, CONTENT_BYTES, 0))
        return Holder(str(content["host"]), int(content["pid"]), str(content["since"]))
    return Holder()


def write_holder(file: int) -> None:
    """Writes this process into the lock file. A full disk leaves the file empty, and the lock is held."""
    content: dict[str, Any] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, (json.dumps(content) + "\n").encode(), 0)


def has_ended(pid: int) -> bool:
    """True if the process has ended, even if its parent has not read its status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
