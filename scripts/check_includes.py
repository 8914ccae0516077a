"""Holds the includes of the engine to the direction of its rooms, and prints each line that breaks it.

Every folder of spillway/ is a room. A room includes itself and the rooms named for it below; files that lie directly in
spillway/ are the facade and include all. Nothing includes a .cc file, and a room's headers are included by their path
from the root, so that no include can hide from this check.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import checking

# The arrows of ARCHITECTURE.md. An entry with a slash allows one header (of plain values), not the whole room.
ROOMS: dict[str, set[str]] = {
    "base": set(),
    "sys": {"base"},
    "memory": {"base", "sys"},
    "network": {"base"},
    "storage": {"base", "sys"},
    "journal": {"base", "sys", "storage"},
    "kernels": {"base"},
    "device": {"base", "sys", "kernels"},
    "optim": {"base", "kernels"},
    "state": {"base", "kernels", "optim", "storage", "memory"},
    "machine": {"base", "sys", "memory", "storage", "kernels", "device"},
    "plan": {
        *{"base", "optim/optimizers.h", "optim/reduction.h", "machine/profile.h", "machine/profile_fields.h"},
        *{"state/layout.h", "state/ownership.h", "state/rule.h"},
    },
    "sink": {"device", "kernels", "plan/device_workspace.h", "state"},
    "subspace": {"base", "device", "kernels", "optim", "plan", "sink", "state"},
    "execute": {
        *{"base", "network", "optim", "plan", "state", "memory", "storage"},
        *{"journal", "device", "kernels", "sink", "subspace"},
    },
}

FOLDERS = ("spillway", "python/bindings", "tests", "bench", "research", "examples")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, opening mark and path of each #include of a file."""
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def form_fault(root: Path, file: Path, mark: str, included: str) -> str | None:
    """What is wrong with an include whatever its room, or None."""
    if Path(included).suffix in {".cc", ".cpp", ".cxx"}:
        return f"includes the source file {included}; only headers are included"
    if Path(included).parts[0] == "research" and not file.is_relative_to(root / "research"):
        return f"includes {included}; nothing outside research/ depends on it"
    in_room = file.is_relative_to(root / "spillway")
    beside = mark == '"' and (file.parent / included).is_file()
    if ".." in Path(included).parts or (in_room and beside):
        return f"includes {included} relative to itself; write the path from the root"
    return None


def room_fault(room: str, included: str) -> str | None:
    """Why a file of this room may not include this path, or None."""
    parts = Path(included).parts
    if len(parts) < 2 or parts[0] != "spillway":
        return None
    if len(parts) == 2:
        return f"room {room} includes the facade {included}; the facade stands above all rooms"
    other, header = parts[1], "/".join(parts[1:])
    allowed = ROOMS[room]
    if other == room or other in allowed or header in allowed:
        return None
    return f"room {room} may not include {included}; it may include {', '.join(sorted(allowed)) or 'no other room'}"


def violations(root: Path) -> Iterator[str]:
    """One line per broken rule in the tree under `root`, as FILE:LINE: what is wrong."""
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in {".h", ".cc"}]
    for file in sorted(files):
        path = file.relative_to(root)
        room = path.parts[1] if path.parts[0] == "spillway" and len(path.parts) > 2 else None
        if room is not None and room not in ROOMS:
            yield f"{path}:1: {room} is no room that scripts/check_includes.py knows; add it there with its arrows"
            continue
        for number, mark, included in includes(file):
            fault = form_fault(root, file, mark, included)
            if fault is None and room is not None:
                fault = room_fault(room, included)
            if fault is not None:
                yield f"{path}:{number}: {fault}"


if __name__ == "__main__":
    sys.exit(checking.main(violations, "spillway", "includes", "against the rooms' direction", "all arrows point up"))
