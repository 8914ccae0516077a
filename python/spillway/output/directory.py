"""The rules of `output_dir`: what counts as a run, when it is refused, and what is cleared before a new start.

`decide` only looks, and tries whether it could write; `prepare` writes, and is called when everything else has been
found to be in order.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spillway.base.documents import read_json
from spillway.base.files import PROCESSORS, flush
from spillway.config import CONFIG_HEADER, Config
from spillway.config.values import StoragePath
from spillway.errors import InputError
from spillway.output import identity, left, saved, volumes
from spillway.output.known_runs import describe_missing_identity, load_identity, nothing_to_resume, read_previous_paths
from spillway.output.records import ASIDE, METRICS

RESULTS = ("summary.json", "timeline.json.gz", "loss.png", "report.html")  # written when a run ends
OWN_FILES = ("config.yaml", "plan.json", METRICS, METRICS + ASIDE, *RESULTS)
MODEL_FILES = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    *PROCESSORS,
)
INDICES = "*.safetensors.index.json"
TEMPORARY = (".tmp-*", ".old-*")
RUN_STATE = Path("spillway", "run.json")  # its presence makes a checkpoint one to resume from
MANIFEST = left.MANIFEST


@dataclass(frozen=True)
class Start:
    """How the run begins."""

    output_dir: Path
    resume: Path | None  # checkpoint directory; None: a fresh start, unless the paths hold a durable step
    durable: bool = False  # a durable step on the storage paths that is newer than `resume` comes first
    fresh: bool = True  # with neither, the run may begin with the model's weights
    clear: bool = False  # a fresh start removes the run that is there
    keeps_teacher: bool = False  # and leaves what a teacher gave for its rows
    paths: Sequence[StoragePath] = field(default=(), compare=False)  # of the run

    def held(self) -> tuple[Path, ...]:
        """The checkpoints of the run whose state lies on the storage paths, as they are now."""
        return () if self.clear else pinned(self.output_dir)

    @property
    def from_paths(self) -> bool:
        """Whether what the run goes on from lies on the storage paths, or some of it."""
        return self.durable or (self.resume is not None and (self.resume / MANIFEST).is_file())

    @property
    def stands_alone(self) -> bool:
        """Whether all that the run goes on from is in the directory `resume`."""
        return self.resume is not None and not self.from_paths


def checkpoints(output_dir: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints, oldest first."""
    if not output_dir.is_dir():
        return []
    found = [(re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in output_dir.iterdir() if path.is_dir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def newest_resumable(output_dir: Path) -> Path | None:
    for _, path in reversed(checkpoints(output_dir)):
        if (path / RUN_STATE).is_file():
            return path
    return None


def run_files(output_dir: Path) -> list[Path]:
    """Everything in `output_dir` that belongs to a run; other files there are nobody's business."""
    if not output_dir.is_dir():
        return []
    files = [output_dir / name for name in OWN_FILES if (output_dir / name).exists()]
    for pattern in (*MODEL_FILES, *TEMPORARY):
        files += sorted(output_dir.glob(pattern))
    files += [output_dir / name for name in (*identity.FILES, saved.FILES) if (output_dir / name).is_file()]
    for pattern in (identity.REFERENCES, identity.TEACHERS):
        files += sorted(output_dir.glob(pattern))
    return files + [path for _, path in checkpoints(output_dir)]


def manifests(output_dir: Path) -> list[tuple[int, Path]]:
    """Checkpoints whose state lies on the storage paths, oldest first."""
    return [(step, path) for step, path in checkpoints(output_dir) if (path / MANIFEST).is_file()]


def pinned(output_dir: Path) -> tuple[Path, ...]:
    """Those checkpoints, as they are now."""
    return tuple(path for _, path in manifests(output_dir))


def decide(config: Config, there: Sequence[Path] | None = None, others: Sequence[Path] = ()) -> Start:
    """Raises InputError where the run may not start. Leaves behind only the name of a checkpoint that lost it. `there`:
    the volumes of all processes; None: of this one. `others`: those that another number of processes has left."""
    output_dir = Path(config.output_dir)
    check_place(output_dir)
    check_sources(config, output_dir)
    adopt(output_dir)
    if not config.overwrite and (words := left.refusal(output_dir, config.paths)):
        raise InputError(words)
    asked = config.resume_from_checkpoint
    goes_on = not config.overwrite and asked in (None, True, "auto")
    if goes_on and asked and any(map(is_precious, run_files(output_dir))):
        if words := describe_missing_identity(output_dir, config.paths):
            raise InputError(f"resume_from_checkpoint: {words}")
    if goes_on and (outside := left_out(config, output_dir, others)):
        raise InputError(
            f"storage: the steps of the run in {output_dir} lie in {', '.join(map(str, outside))}, which this "
            "configuration leaves out; give the storage that the run had, as `spillway resume` does, or begin anew "
            f"with --overwrite (`spillway export --output_dir {output_dir} --to DIR` makes a checkpoint that goes on "
            "without storage)"
        )
    if goes_on and others and (pinning := pinned(output_dir)):
        raise InputError(
            f"storage: the state of {', '.join(map(str, pinning))} lies in {', '.join(map(str, others))}, which "
            "another number of processes would replace; `spillway export` makes checkpoints of them that stand alone. "
            "Once these directories are removed any number goes on from the last step"
        )
    on_paths = durable_volumes(config, output_dir, None if there is None else [*there, *others])
    resume = resume_point(config, output_dir, bool(on_paths))
    durable = bool(on_paths) and asked in (True, "auto")
    precious = [path for path in run_files(output_dir) if is_precious(path)]
    held = precious + on_paths
    unfinished = asked == "auto" and not any(holds_weights(path) for path in held)
    fresh = not held or config.overwrite or unfinished
    if resume is None and not durable and not fresh:
        go_on = on_paths or newest_resumable(output_dir)
        how = "`--resume_from_checkpoint true` goes on with it, " if go_on else ""
        raise InputError(
            f"output_dir: {output_dir} holds a run already ({held[0].name}); {how}`--overwrite` removes it, "
            "or name another directory"
        )
    if asked is True:  # with the teacher's rows alone the run begins, unless the paths hold a step after all
        fresh = not precious and has_teacher_begun(config, output_dir)
    clear = resume is None and bool(run_files(output_dir))
    keeps_teacher = config.objective_entry.has_teacher and not config.overwrite
    return Start(output_dir, resume, durable, fresh, clear, keeps_teacher, config.paths)


def durable_volumes(config: Config, output_dir: Path, there: Sequence[Path] | None = None) -> list[Path]:
    """The volumes in which this output_dir's run may have left a durable step; `there` as `decide` takes it."""
    known = load_identity(output_dir, config.overwrite, config.paths)
    if known is None or known.durability == "none":
        return []
    return volumes.present(config.paths) if there is None else list(there)


def left_out(config: Config, output_dir: Path, others: Sequence[Path]) -> list[Path]:
    """The volumes in which this output_dir's run may have left a durable step, where `config` names none of the run's
    storage any more. `others`: as `decide` takes them."""
    known = load_identity(output_dir, config.overwrite, config.paths)
    if known is None or known.durability == "none" or durable_volumes(config, output_dir):
        return []
    if others:
        return [] if config.paths else list(others)
    return volumes.of_run(read_previous_paths(output_dir), known.run)


def stands_alone(checkpoint: Path) -> bool:
    """True if the checkpoint holds all that a resume needs."""
    return (checkpoint / RUN_STATE).is_file() and not (checkpoint / MANIFEST).is_file()


def newest_alone(output_dir: Path) -> Path | None:
    """The newest checkpoint from which any number of processes goes on."""
    return next((path for _, path in reversed(checkpoints(output_dir)) if stands_alone(path)), None)


def is_precious(path: Path) -> bool:
    """Whether losing it would lose anything: a run that ended before its first step leaves nothing to keep."""
    if path.name == "config.yaml":
        return not path.is_file() or not path.read_text(encoding="utf-8", errors="replace").startswith(CONFIG_HEADER)
    if path.name == METRICS:
        return path.stat().st_size > 0
    return (
        path.name not in ("plan.json", METRICS + ASIDE)
        and not path.name.startswith(".")
        and path.parent.name != identity.FOLDER
    )


def holds_weights(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".safetensors"


def check_place(output_dir: Path) -> None:
    try:
        if output_dir.exists() and not output_dir.is_dir():
            raise InputError(f"output_dir: {output_dir} is a file; expects a directory")
        there = next(path for path in (output_dir, *output_dir.parents) if path.exists())
        if not there.is_dir():
            raise InputError(f"output_dir: {output_dir} cannot be made, {there} is a file")
        if not os.access(there, os.W_OK | os.X_OK):
            raise InputError(f"output_dir: {there} cannot be written (permissions, or a read-only file system)")
        try_to_write(output_dir)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"output_dir: {output_dir} cannot be made and written to ({reason}); name a directory that can"
        ) from None


def try_to_write(directory: Path) -> None:
    """Makes a file in it, and the folders that lead there, and removes them: permissions do not say it all, least of
    all to root."""
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            made.append(folder)
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=directory)
        os.close(handle)
        os.unlink(name)
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def check_sources(config: Config, output_dir: Path) -> None:
    """The run must not write over what it reads."""
    for key, value in (("model", config.model), ("teacher", config.teacher)):
        place = Path(value or os.devnull)
        if not place.is_dir():
            continue
        if place.resolve() == output_dir.resolve():
            raise InputError(f"output_dir: {output_dir} is the {key}'s own directory; name another")
        if config.overwrite and output_dir.resolve() in place.resolve().parents:
            raise InputError(f"overwrite: it would remove the {key} {place}, which lies in output_dir; name another")


def has_teacher_begun(config: Config, output_dir: Path) -> bool:
    """True if a run without a step has something to go on from: its teacher's logits."""
    return config.objective_entry.has_teacher and any(output_dir.glob(identity.TEACHERS))


def resume_point(config: Config, output_dir: Path, on_paths: bool) -> Path | None:
    """The checkpoint to go on from; `on_paths`: a durable step may be there besides."""
    asked = config.resume_from_checkpoint
    if asked is None:
        return None
    if asked in (True, "auto"):
        found = find_newest_checkpoint(config, output_dir, on_paths)
        if found is None and asked is True and not on_paths and not has_teacher_begun(config, output_dir):
            raise InputError(f"resume_from_checkpoint: {nothing_to_resume(output_dir, config.paths)}")
        return found
    path = Path(asked)
    if path.resolve() == output_dir.resolve() and (found := find_newest_checkpoint(config, output_dir, on_paths)):
        return found
    if not (path / RUN_STATE).is_file():
        what = f"has no {RUN_STATE}, so it cannot be resumed from" if path.is_dir() else "is no directory"
        raise InputError(f"resume_from_checkpoint: {path} {what}")
    foreign = path.resolve().parent != output_dir.resolve()
    if foreign and run_files(output_dir):
        raise InputError(
            f"resume_from_checkpoint: {path} belongs to another run than the one in output_dir {output_dir}; "
            "name an empty output_dir"
        )
    if foreign and (path / MANIFEST).is_file():
        raise InputError(
            f"resume_from_checkpoint: the state of {path} lies on the storage paths of the run in {path.parent}; "
            f"`spillway export --output_dir {path.parent} --checkpoint {path} --to DIR` makes one that stands alone"
        )
    return path


def find_newest_checkpoint(config: Config, output_dir: Path, on_paths: bool) -> Path | None:
    """The newest checkpoint. InputError if the run keeps its steps on volumes, none of which is there. A drive may only
    be unmounted, so the run goes on without it only from a checkpoint that is named."""
    checkpoint = newest_resumable(output_dir)
    if checkpoint is None or on_paths:
        return checkpoint
    known = load_identity(output_dir, config.overwrite, config.paths)
    durable = known is not None and known.durability != "none" and not known.stands_alone and bool(config.paths)
    if (durable or not stands_alone(checkpoint)) and (alone := newest_alone(output_dir)):
        raise InputError(
            f"resume_from_checkpoint: the steps of the run in {output_dir} lie on storage paths, and none of its "
            "volumes is there; mount them again, or go back to a checkpoint that stands alone: "
            f"--resume_from_checkpoint {alone}"
        )
    return checkpoint


def adopt(output_dir: Path) -> None:
    """Gives a checkpoint its name that a process was killed before it could give it: in an exchange of names by two
    renames the old one was there as .old-, the new one as .tmp-, and neither by its name."""
    if not output_dir.is_dir():
        return
    for old in output_dir.glob(".old-checkpoint-*"):
        final = old.with_name(old.name.removeprefix(".old-"))
        new = (output_dir / f".tmp-{final.name}", output_dir / ".tmp-saving" / final.name)
        found = next((path for path in (*new, old) if whole(path)), None)
        if found is not None and not os.path.lexists(final):
            os.replace(found, final)
            flush(output_dir)


def whole(checkpoint: Path) -> bool:
    """Whether all that a checkpoint consists of is there, as far as its files tell."""
    try:
        saved.check_files(checkpoint)
        weights = [path for pattern in saved.WEIGHTS for path in checkpoint.glob(pattern)]
        state = checkpoint / RUN_STATE.parent
        held = [path.is_file() for path in (checkpoint / RUN_STATE, state / "session.json")]
        return (
            bool(weights)
            and (checkpoint / "trainer_state.json").is_file()
            and (all(held) or not any(held))
            and all(path.is_file() for path in listed(checkpoint))
            and all(map(saved.complete, checkpoint.rglob("*.safetensors")))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def listed(checkpoint: Path) -> list[Path]:
    """The shards that an index names."""
    indices = checkpoint.glob(INDICES)
    maps = [read_json(path)["weight_map"] for path in indices]
    return [checkpoint / name for names in maps for name in set(names.values())]


def removed_files(start: Start) -> list[Path]:
    """The files of an earlier run that a start which clears removes."""
    stays = {start.output_dir / identity.RUN}
    if start.keeps_teacher:
        stays.update(start.output_dir.glob(identity.TEACHERS))
    return [path for path in run_files(start.output_dir) if path not in stays]


def prepare(start: Start, fresh: bool) -> list[str]:
    """Makes the directory ready for a run, a `fresh` one or one that goes on; returns what was removed, in words."""
    start.output_dir.mkdir(parents=True, exist_ok=True)
    left.forget(start.output_dir, start.paths)
    for pattern in TEMPORARY:
        for path in start.output_dir.glob(pattern):
            remove(path)
    if not (start.clear and fresh):
        return []
    before = removed_files(start)
    remove_lists(start.output_dir)
    hide([path for _, path in checkpoints(start.output_dir)])
    for path in before:
        remove(path)
    return [f"what an earlier run left in {start.output_dir}"] if before else []


def remove_lists(directory: Path) -> None:
    """Removes the list of digests, then the indices, each durably, before any file changes that they name: after a
    power cut neither names files of two models, and no list names an index that is gone."""
    for lists in ([directory / saved.FILES], [*directory.glob(INDICES)]):
        folders = {path.parent for path in lists if os.path.lexists(path)}
        for path in lists:
            remove(path)
        for folder in folders:
            flush(folder)


def hide(found: list[Path]) -> None:
    """Removes checkpoints, of which none is seen in part when the process or the machine ends before all is removed."""
    hidden = [path.with_name(f".tmp-{path.name}") for path in found]
    for path, to in zip(found, hidden, strict=True):
        remove(to)
        os.replace(path, to)
    if found:
        flush(found[0].parent)
    for path in hidden:
        remove(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
