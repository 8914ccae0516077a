"""What a run that is not durable has left on its storage paths, because it could not be saved: a manifest beside it.

It lies in `output_dir`, or in a storage directory where that takes no file any more, and is laid out as a checkpoint.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from spillway.base.files import PRIVATE, flush, replace_bytes
from spillway.config.values import StoragePath
from spillway.output import volumes

MANIFEST = Path("spillway", "manifest.bin")  # of a checkpoint whose state lies on the storage paths
LEFT = Path("spillway", "left")  # in output_dir
BESIDE = "spillway.left"  # beside a volume


def places(output_dir: Path, paths: Sequence[StoragePath]) -> list[Path]:
    """Where a manifest may be left, in the order of trying."""
    beside = [Path(path.place, BESIDE) for path in paths if Path(path.place).is_dir()]
    return [output_dir / LEFT, *beside]


def found(output_dir: Path, paths: Sequence[StoragePath]) -> Path | None:
    """What was left of a run whose volumes are still there."""
    if not volumes.present(paths):
        return None
    return next((place for place in places(output_dir, paths) if (place / MANIFEST).is_file()), None)


def keep(manifest: bytes, tries: Sequence[Path]) -> Path:
    """In the first of these directories that takes it, durably."""
    first: OSError | None = None
    for place in tries:
        path = place / MANIFEST
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(path, manifest, PRIVATE)
            for folder in (path.parent, place, place.parent, place.parent.parent):
                flush(folder)
            return place
        except OSError as error:
            first = first or error
            shutil.rmtree(place, ignore_errors=True)
    raise first or OSError("there is no place for the manifest of what is left")


def forget(output_dir: Path, paths: Sequence[StoragePath]) -> None:
    """It was saved after all, or is given up."""
    for place in places(output_dir, paths):
        shutil.rmtree(place, ignore_errors=True)


def refusal(output_dir: Path, paths: Sequence[StoragePath]) -> str:
    """Why no run may take the volumes, in words; empty: it may."""
    place = found(output_dir, paths)
    if place is None:
        return ""
    quoted = shlex.quote(str(output_dir))
    there = ", ".join(map(str, volumes.present(paths)))
    return (
        f"output_dir: the last state of the run in {output_dir} could not be saved and lies in {there}; "
        f"`spillway export --output_dir {quoted} --to DIR` writes it; `--overwrite`, or removing {place}, gives it up"
    )
