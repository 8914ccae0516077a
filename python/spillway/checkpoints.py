"""Checkpoints: written under a temporary name, flushed, renamed; and the final model beside them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from spillway.directory import MODEL_FILES, checkpoints, remove

NOT_MODEL = ("spillway", "trainer_state.json")


def write(output_dir: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """`fill` gets an empty directory; when it returns, everything in it is flushed and gets its name at once."""
    final = output_dir / f"checkpoint-{step}"
    temporary = output_dir / f".tmp-checkpoint-{step}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        fill(temporary)
        flush_tree(temporary)
        put_in_place(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def put_in_place(temporary: Path, final: Path) -> None:
    old = final.with_name(f".old-{final.name}")
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def keep_newest(output_dir: Path, limit: int | None) -> None:
    if limit is not None:
        for _, path in checkpoints(output_dir)[:-limit]:
            shutil.rmtree(path)


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


def flush(path: Path) -> None:
    """fsync of a file or directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
