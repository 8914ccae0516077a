"""A test of volume locks between machines. Two machines may have one storage path, and the lock has to keep out the
other's processes. The file system itself is asked, since mount options alone do not say it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from spillway.errors import InputError
from spillway.run import room
from spillway.run.world import World

PREFIX = ".spillway-lock-"
OLD = 3600  # seconds: what has looked for so long was killed meanwhile
ADVICE = {
    "nfs": "without nolock and local_lock",
    "nfs4": "without local_lock",
    "lustre": "with flock in place of localflock",
    "ocfs2": "without localflocks",
    "gfs2": "without localflocks",
    "cifs": "without nobrl",
    "smb3": "without nobrl",
}  # by kind of file system: with it a lock holds on all machines


def check(world: World, places: Sequence[str]) -> None:
    """InputError where a directory of this process is one of another machine's, too, and locks do not hold on both."""
    ranks = world.ranks
    if ranks.machines == 1:
        return
    local = ranks.world // ranks.machines
    directories = [Path(place) for place in places if Path(place).is_dir()]
    with ExitStack() as held:
        own = [name for place in directories for name in held.enter_context(locked(place))]
        for rank, names in enumerate(world.gather(own)):
            if rank // local != ranks.rank // local:
                for place in directories:
                    refuse_free(place, [place / name for name in names], rank)
        world.gather(None)  # until all have looked


@contextmanager
def locked(place: Path) -> Iterator[list[str]]:
    """The name of a new file in a directory, whose lock this process has meanwhile; none where none can be made, which
    the volume's own creation says better."""
    clear(place)
    path = place / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        yield []
        return
    try:
        take(file, place)
        yield [path.name]
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def clear(place: Path) -> None:
    """Takes away what processes have left that were killed here."""
    for left in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > OLD:
                left.unlink()


def take(file: int, place: Path) -> None:
    """The lock of a new file in `place`. InputError where its file system has none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise InputError(f"storage: {place} has no locks: {error.strerror}. {remedy(place)}") from error


def refuse_free(place: Path, others: Sequence[Path], rank: int) -> None:
    """InputError where this process gets a lock that process `rank`, of another machine, has."""
    for path in others:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # each machine has a directory of its own there
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(file)
        raise InputError(
            f"storage: {place} is a directory that rank {rank} has on another machine, too, and locks do not hold on "
            f"both: two runs could write one volume. {remedy(place)}"
        )


def remedy(place: Path) -> str:
    mount = room.mount_point(place)
    kind, options = room.mounted(mount)
    advice = ADVICE.get(kind, "so that locks hold on all machines")
    return (
        f"{mount} is a file system of kind {kind or 'unknown'}, mounted with {options or 'unknown options'}; mount it "
        f"{advice}, or name a directory that each machine has for itself"
    )
