"""What becomes of a run's state that cannot be saved where it should be: it stays on the storage paths, durable or not.

A durable run has it there anyway; of another one a manifest is left (spillway.left), which `spillway export` reads.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spillway.output import left

if TYPE_CHECKING:
    from spillway.config import Config


class Leaves(Protocol):
    def leave(self, state: dict[str, Any]) -> bytes: ...


def leave(session: Leaves, config: Config, output_dir: Path, state: dict[str, Any]) -> str:
    """Leaves it, and says where and what to do. OSError, or the session's errors, where it cannot be left."""
    manifest = session.leave(state)
    quoted = shlex.quote(str(output_dir))
    words = f"its state stays on the storage paths: `spillway export --output_dir {quoted} --to DIR` writes it"
    if not manifest:
        return f"{words}, `spillway resume {quoted}` goes on from it"
    left.keep(manifest, left.places(output_dir, config.paths))
    return words


def why(error: BaseException) -> str:
    """A failure in words, with the file that it is about."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def with_room(config: Config, needed: int) -> list[Path]:
    """Storage directories whose file systems have room for as much."""
    plain = [Path(path.place) for path in config.paths if Path(path.place).is_dir()]
    return [path for path in plain if shutil.disk_usage(path).free > needed]
