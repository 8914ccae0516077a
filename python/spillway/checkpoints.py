"""Checkpoints: written under a temporary name, flushed, renamed; and the final model beside them.

A checkpoint may be a manifest of what lies on the storage paths. These places are given up only after the checkpoint's
directory is durably gone: a checkpoint that can be listed can be resumed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from spillway.directory import MANIFEST, MODEL_FILES, RESULTS, checkpoints, remove
from spillway.records import METRICS, flush, keep_rows_until

Release = Callable[[bytes], None]  # the content of a manifest whose checkpoint is gone

NOT_MODEL = ("spillway", "trainer_state.json")


def write(output_dir: Path, step: int, fill: Callable[[Path], None], release: Release) -> Path:
    """`fill` gets an empty directory; when it returns, everything in it is flushed and gets its name at once."""
    final = output_dir / f"checkpoint-{step}"
    temporary = output_dir / f".tmp-checkpoint-{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        fill(temporary)
        flush_tree(temporary)
        put_in_place(temporary, final, release)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def put_in_place(temporary: Path, final: Path, release: Release) -> None:
    old = final.with_name(f".old-{final.name}")
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    flush(final.parent)
    if old.exists():
        discard(old, release)


def discard(checkpoint: Path, release: Release) -> None:
    """Removes a checkpoint, then gives up the places of its manifest."""
    manifest = checkpoint / MANIFEST
    content = manifest.read_bytes() if manifest.is_file() else None
    old = checkpoint.with_name(f".old-{checkpoint.name.removeprefix('.old-')}")
    if checkpoint != old:
        remove(old)
        os.replace(checkpoint, old)
        flush(checkpoint.parent)
    shutil.rmtree(old)
    if content is not None:
        flush(checkpoint.parent)
        release(content)


def keep_newest(output_dir: Path, limit: int | None, release: Release) -> None:
    if limit is not None:
        for _, path in checkpoints(output_dir)[:-limit]:
            discard(path, release)


def go_back(output_dir: Path, step: int, release: Release) -> list[str]:
    """Removes what the run made after `step`: it will be made again, perhaps differently. Says what, in words."""
    removed = []
    for number, path in reversed(checkpoints(output_dir)):
        if number > step:
            discard(path, release)
            removed.append(path.name)
    if rows := keep_rows_until(output_dir / METRICS, step):
        removed.append(f"{rows} rows of {METRICS} after step {step}")
    if removed:
        for pattern in (*MODEL_FILES, *RESULTS):
            for path in output_dir.glob(pattern):
                remove(path)
    flush(output_dir)
    return removed


def publish(checkpoint: Path, output_dir: Path) -> None:
    """The checkpoint's model at the root of `output_dir`, weights as hard links where the file system has them."""
    names = [path.name for path in checkpoint.iterdir() if path.name not in NOT_MODEL]
    for name in names:
        put(checkpoint / name, output_dir / name)
    for pattern in MODEL_FILES:
        for path in output_dir.glob(pattern):
            if path.name not in names:
                remove(path)
    flush(output_dir)


def put(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return  # renaming a second link of it would leave both names
    temporary = target.with_name(f".tmp-{target.name}")
    remove(temporary)
    link_or_copy(source, temporary)
    os.replace(temporary, target)


def link_or_copy(source: Path, target: Path) -> None:
    """Small files are copied, so that editing one leaves the checkpoint as it is."""
    if source.suffix == ".safetensors":
        try:
            os.link(source, target)
            return
        except OSError:
            pass
    if source.is_dir():
        shutil.copytree(source, target)
        return
    shutil.copyfile(source, target)
    flush(target)


def flush_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            flush(Path(folder, name))
        flush(Path(folder))
