"""A hard memory limit for one program: a cgroup of its own, version 1 or 2, where this user may make one."""

import os
from dataclasses import dataclass
from pathlib import Path


class Unavailable(Exception):
    """No limit can be set here; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where a group with a memory limit could be made, and how its files are called there."""

    parent: Path
    limit: str
    swap: str
    swap_value: str | None  # None: the limit itself (version 1 counts memory and swap together)


def mounts(table: str) -> dict[str, Path]:
    """Mount points of the memory controller ("v1") and of the unified hierarchy ("v2") in the text of /proc/mounts."""
    found: dict[str, Path] = {}
    for line in table.splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            found.setdefault("v1", Path(point))
        elif kind == "cgroup2":
            found.setdefault("v2", Path(point))
    return found


def own_group(table: str, version: str) -> str:
    """This process's group, relative to the mount, from the text of /proc/self/cgroup."""
    for line in table.splitlines():
        number, controllers, path = line.split(":", 2)
        if (version == "v1" and "memory" in controllers.split(",")) or (version == "v2" and number == "0"):
            return path.strip("/")
    return ""


def place(mount_table: str, group_table: str) -> Place:
    """The folder to make a group in. Raises Unavailable."""
    found = mounts(mount_table)
    if "v1" in found:
        own = found["v1"] / own_group(group_table, "v1")
        parent = own if own.is_dir() else found["v1"]
        return Place(parent, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", None)
    if "v2" in found:
        own = found["v2"] / own_group(group_table, "v2")
        # A group that holds processes cannot pass controllers on, so the new one stands beside this process's.
        for parent in (own, own.parent):
            control = parent / "cgroup.subtree_control"
            if control.is_file() and "memory" in control.read_text().split():
                return Place(parent, "memory.max", "memory.swap.max", "0")
        raise Unavailable(f"the group {own} may not pass the memory controller on")
    raise Unavailable("no cgroups are mounted here")


class MemoryLimit:
    """Owns a cgroup with a limit of `limit` bytes. Give `enter` to subprocess as preexec_fn; then close()."""

    def __init__(self, limit: int) -> None:
        at = place(Path("/proc/mounts").read_text(), Path("/proc/self/cgroup").read_text())
        self.group = at.parent / f"spillway-quickstart-{os.getpid()}"
        try:
            self.group.mkdir()
        except OSError as error:
            raise Unavailable(f"{self.group}: {error.strerror}") from None
        try:
            (self.group / at.limit).write_text(str(limit))
        except OSError as error:
            self.group.rmdir()
            raise Unavailable(f"{self.group / at.limit}: {error.strerror}") from None
        try:
            (self.group / at.swap).write_text(at.swap_value or str(limit))
        except OSError:
            pass  # a kernel that does not count swap; without swap the limit holds all the same

    def enter(self) -> None:
        """Moves the calling process into the group."""
        (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def killed(self) -> int:
        """How many processes the kernel has killed for passing the limit."""
        for name in ("memory.oom_control", "memory.events"):
            if (self.group / name).is_file():
                words = dict(line.split() for line in (self.group / name).read_text().splitlines())
                return int(words.get("oom_kill", 0))
        return 0

    def close(self) -> None:
        self.group.rmdir()
