"""Checkpoints: written under a temporary name, flushed, renamed; and the final model beside them.

A checkpoint may be a manifest of what lies on the storage paths. These places are given up only after the checkpoint's
directory is durably gone: a checkpoint that can be listed can be resumed. One that somebody has moved to another disk
and linked to counts as any other, but for its end: the link goes, what it points to stays.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from spillway.base.files import flush
from spillway.errors import InputError
from spillway.output import saved
from spillway.output.directory import (
    INDICES,
    MANIFEST,
    MODEL_FILES,
    RESULTS,
    checkpoints,
    manifests,
    newest_alone,
    remove,
    remove_lists,
)
from spillway.output.records import METRICS, keep_rows_until

Release = Callable[[bytes], None]  # the content of a manifest whose checkpoint is gone

NOT_MODEL = ("spillway", "trainer_state.json")
GIVEN_UP = "spillway.given_up"  # what `spillway` is called in a checkpoint that was moved away and has lost its places
SAVE_FILES = (*MODEL_FILES, *NOT_MODEL)  # what a save leaves in a directory


def write(
    output_dir: Path, step: int, fill: Callable[[Path], None], release: Release, tell: Callable[[str], object] = str
) -> Path:
    """`fill` gets an empty directory; when it returns, everything in it is flushed and gets its name at once. `tell` is
    given what a person should know of what was there before."""
    final = output_dir / f"checkpoint-{step}"
    with open_temporary(output_dir / f".tmp-checkpoint-{step}") as temporary:
        fill(temporary)
        flush_tree(temporary)
    for words in put_in_place(temporary, final, release):
        tell(words)
    return final


@contextmanager
def open_temporary(place: Path) -> Iterator[Path]:
    """An empty directory. A failure inside removes it."""
    remove(place)
    place.mkdir()
    try:
        yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def put_in_place(temporary: Path, final: Path, release: Release) -> list[str]:
    """Gives a directory its name at once. What had it is discarded; returns what a person should know of that.

    A file system that cannot exchange names has neither for an instant; `directory.adopt` looks after who is killed in
    it."""
    old = final.with_name(f".old-{final.name}")
    if os.path.lexists(final):
        remove(old)
        if exchange(temporary, final):
            os.replace(temporary, old)
        else:
            os.replace(final, old)
            os.replace(temporary, final)
    else:
        os.replace(temporary, final)
    flush(final.parent)
    return tried(old, release) if os.path.lexists(old) else []


def exchange(one: Path, other: Path) -> bool:
    from spillway._engine import exchange as exchange_names

    return exchange_names(str(one), str(other))


def discard(checkpoint: Path, release: Release) -> str | None:
    """Removes a checkpoint, then gives up the places of its manifest. Returns what a person should know."""
    old = checkpoint.with_name(f".old-{checkpoint.name.removeprefix('.old-')}")
    if checkpoint != old:
        remove(old)
        os.replace(checkpoint, old)
        flush(checkpoint.parent)
    if old.is_symlink():
        return discard_link(old, release)
    content = content_of(old / MANIFEST)
    shutil.rmtree(old)
    if content is not None:
        flush(checkpoint.parent)
        release(content)
    return None


def discard_link(link: Path, release: Release) -> str:
    """What a link points to is somebody's own; it only must not name places that are given up."""
    target = Path(os.path.realpath(link))
    words = f"{link.name.removeprefix('.old-')} is a link: it was removed, and {target} stays"
    content = content_of(target / MANIFEST)
    if content is not None:
        try:
            give_up(target)
            words += ", as a model; nothing can be resumed from it, since its state lay on the storage paths"
        except OSError as error:
            content = None  # it names its places, so they are kept while this process lives
            words += f", whose state on the storage paths cannot be given up: {error}"
    link.unlink()
    flush(link.parent)
    if content is not None:
        release(content)
    return words


def give_up(checkpoint: Path) -> None:
    """Leaves a model of a checkpoint whose state lies on the storage paths."""
    remove(checkpoint / GIVEN_UP)
    os.replace((checkpoint / MANIFEST).parent, checkpoint / GIVEN_UP)
    flush(checkpoint)


def give_up_all(output_dir: Path) -> list[str]:
    """Leaves models of the checkpoints whose state lay on volumes that are not there. Returns notices for a person."""
    lost = [path for _, path in manifests(output_dir)]
    for path in lost:
        give_up(path)
    return [f"{path.name} stays as a model: its state lay on volumes that are not there" for path in lost]


def content_of(manifest: Path) -> bytes | None:
    try:
        return manifest.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def tried(checkpoint: Path, release: Release) -> list[str]:
    """Discards what no run depends on: a failure is told, and the run goes on."""
    try:
        words = discard(checkpoint, release)
    except OSError as error:
        words = f"{checkpoint.name.removeprefix('.old-')} could not be removed: {error}"
    return [words] if words else []


def keep_newest(output_dir: Path, limit: int | None, release: Release, keeps_whole: bool = False) -> list[str]:
    """Returns what a person should know of what was removed. `keeps_whole`: the newest that stands alone stays, too."""
    if limit is None:
        return []
    older = [path for _, path in checkpoints(output_dir)[:-limit]]
    alone = newest_alone(output_dir) if keeps_whole else None
    return [words for path in older if path != alone for words in tried(path, release)]


def go_back(output_dir: Path, step: int, release: Release) -> list[str]:
    """Removes what the run made after `step`: it will be made again, perhaps differently. Says what, in words."""
    removed = []
    for number, path in reversed(checkpoints(output_dir)):
        if number > step:
            removed.append(discard(path, release) or path.name)
    if rows := keep_rows_until(output_dir / METRICS, step):
        removed.append(f"{rows} rows of {METRICS} after step {step}")
    if removed:
        remove_lists(output_dir)
        for pattern in (*MODEL_FILES, *RESULTS):
            for path in output_dir.glob(pattern):
                remove(path)
    flush(output_dir)
    return removed


def publish(checkpoint: Path, output_dir: Path) -> None:
    """The checkpoint's model at the root of `output_dir`, weights as hard links where the file system has them.

    While files of two models may lie there, no index and no list says that they are one, after a power cut either."""
    names = sorted(path.name for path in checkpoint.iterdir() if path.name not in NOT_MODEL)
    indices = [name for name in names if is_index(name)]
    if any(not same_file(checkpoint / name, output_dir / name) for name in names):
        remove_lists(output_dir)
    for name in names:
        if name not in indices:
            put(checkpoint / name, output_dir / name)
    if indices:
        flush(output_dir)
    for name in indices:
        put(checkpoint / name, output_dir / name)
    for pattern in MODEL_FILES:
        for path in output_dir.glob(pattern):
            if path.name not in names:
                remove(path)
    flush(output_dir)
    saved.publish_list(checkpoint, output_dir, names)
    flush(output_dir)


def is_index(name: str) -> bool:
    return fnmatch(name, INDICES)


def same_file(one: Path, other: Path) -> bool:
    """Links to the same bytes, or small files of equal content."""
    if not (one.is_file() and other.is_file()):
        return False
    return one.samefile(other) or (one.suffix != ".safetensors" and one.read_bytes() == other.read_bytes())


def put(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return  # renaming a second link of it would leave both names
    temporary = target.with_name(f".tmp-{target.name}")
    remove(temporary)
    try:
        link_or_copy(source, temporary)
        if target.is_dir() and not target.is_symlink():
            remove(target)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            remove(temporary)
        raise


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


def write_directory(directory: Path, fill: Callable[[Path], None]) -> None:
    """`directory` becomes what `fill` makes of an empty one, and keeps files that it had beside a save: all at once.

    Where its parent cannot be written, where the file system cannot exchange names, and where the directory holds
    others, files are renamed one by one instead: first the list of what belongs together (spillway.output.saved)."""
    final = Path(os.path.realpath(directory))
    if os.path.lexists(final) and not final.is_dir():
        raise InputError(f"save: {directory} is a file; expects a directory")
    final.parent.mkdir(parents=True, exist_ok=True)
    others = [path for path in final.iterdir() if not is_of_save(path.name)] if final.is_dir() else []
    at_once = os.access(final.parent, os.W_OK | os.X_OK) and not os.path.ismount(final)
    at_once = at_once and not any(path.is_dir() and not path.is_symlink() for path in others)
    with open_temporary(final.with_name(f".tmp-{final.name}") if at_once else final / ".tmp-save") as temporary:
        fill(temporary)
        if at_once:
            for path in others:
                carry_along(path, temporary / path.name)
        flush_tree(temporary)
    if not at_once or not replaced(temporary, final):
        move_files(temporary, final)
    remove(temporary)


def replaced(temporary: Path, final: Path) -> bool:
    """Whether it has the name now; what had it before has the temporary one."""
    if not os.path.lexists(final):
        os.replace(temporary, final)
    elif not exchange(temporary, final):
        return False
    flush(final.parent)
    return True


def carry_along(path: Path, to: Path) -> None:
    """A file that is none of a save."""
    if os.path.lexists(to):
        return
    try:
        os.link(path, to, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, to, follow_symlinks=False)


def is_of_save(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in SAVE_FILES)


def move_files(temporary: Path, final: Path) -> None:
    """The state's folder, with the list of what belongs together, comes first, an index last."""
    final.mkdir(exist_ok=True)
    names = sorted(path.name for path in temporary.iterdir())
    for path in [path for path in final.iterdir() if is_of_save(path.name)]:
        if is_index(path.name) or path.name not in names:
            remove(path)
    for name in sorted(names, key=lambda name: (name != NOT_MODEL[0], is_index(name))):
        move(temporary / name, final / name)
        flush(final)


def move(source: Path, target: Path) -> None:
    """A folder changes places with the one that is there, where that can be done."""
    folder = target.is_dir() and not target.is_symlink()
    if folder and exchange(source, target):
        return
    if folder:
        remove(target)
    os.replace(source, target)


def flush_files(directory: Path) -> None:
    """Those of a save that lie in a directory beside others, which may be large; and their names."""
    for path in directory.iterdir():
        if path.is_file() and not path.is_symlink():
            flush(path)
    flush(directory)


def flush_tree(directory: Path) -> None:
    """OSError where a folder cannot be listed, too: no file is passed over."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(directory, onerror=refuse):
        for name in names:
            if not os.path.islink(os.path.join(folder, name)):
                flush(Path(folder, name))
        flush(Path(folder))
