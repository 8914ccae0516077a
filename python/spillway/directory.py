"""The rules of `output_dir`: what counts as a run, when it is refused, and what is cleared before a new start.

`decide` only looks; `prepare` writes, and is called when everything else has been found to be in order.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from spillway.config import CONFIG_HEADER, Config
from spillway.errors import InputError
from spillway.records import METRICS, keep_rows_until

RESULTS = ("summary.json", "timeline.json.gz", "loss.png")  # written when a run ends
OWN_FILES = ("config.yaml", "plan.json", METRICS, *RESULTS)
MODEL_FILES = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
TEMPORARY = (".tmp-*", ".old-*")
RUN_STATE = Path("spillway", "run.json")  # its presence makes a checkpoint one to resume from


@dataclass(frozen=True)
class Start:
    """How the run begins."""

    output_dir: Path
    resume: Path | None  # checkpoint directory; None: a fresh start
    clear: bool  # remove the run that is there


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
    return files + [path for _, path in checkpoints(output_dir)]


def decide(config: Config) -> Start:
    """Raises InputError where the run may not start. Writes nothing."""
    output_dir = Path(config.output_dir)
    check_place(output_dir)
    check_sources(config, output_dir)
    resume = resume_point(config, output_dir)
    held = [path for path in run_files(output_dir) if is_precious(path)]
    unfinished = config.resume_from_checkpoint == "auto" and not any(holds_weights(path) for path in held)
    if resume is None and held and not (config.overwrite or unfinished):
        go_on = "`--resume_from_checkpoint true` goes on with it, " if newest_resumable(output_dir) else ""
        raise InputError(
            f"output_dir: {output_dir} holds a run already ({held[0].name}); {go_on}`--overwrite` removes it, "
            "or name another directory"
        )
    return Start(output_dir, resume, clear=resume is None and bool(run_files(output_dir)))


def is_precious(path: Path) -> bool:
    """Whether losing it would lose anything: a run that ended before its first step leaves nothing to keep."""
    if path.name == "config.yaml":
        return not path.read_text(encoding="utf-8", errors="replace").startswith(CONFIG_HEADER)
    if path.name == METRICS:
        return path.stat().st_size > 0
    return path.name != "plan.json" and not path.name.startswith(".")


def holds_weights(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".safetensors"


def check_place(output_dir: Path) -> None:
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"output_dir: {output_dir} is a file; expects a directory")
    there = next(path for path in (output_dir, *output_dir.parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"output_dir: {output_dir} cannot be made, {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"output_dir: {there} cannot be written (permissions, or a read-only file system)")


def check_sources(config: Config, output_dir: Path) -> None:
    """The run must not write over what it reads."""
    model = Path(config.model)
    if not model.is_dir():
        return
    if model.resolve() == output_dir.resolve():
        raise InputError(f"output_dir: {output_dir} is the model's own directory; name another")
    if config.overwrite and output_dir.resolve() in model.resolve().parents:
        raise InputError(f"overwrite: it would remove the model {model}, which lies in output_dir; name another")


def resume_point(config: Config, output_dir: Path) -> Path | None:
    asked = config.resume_from_checkpoint
    if asked is None:
        return None
    if asked in (True, "auto"):
        found = newest_resumable(output_dir)
        if found is None and asked is True:
            raise InputError(f"resume_from_checkpoint: {output_dir} holds no checkpoint to resume from")
        return found
    path = Path(asked)
    if not (path / RUN_STATE).is_file():
        what = f"has no {RUN_STATE}, so it cannot be resumed from" if path.is_dir() else "is no directory"
        raise InputError(f"resume_from_checkpoint: {path} {what}")
    foreign = path.resolve().parent != output_dir.resolve()
    if foreign and run_files(output_dir):
        raise InputError(
            f"resume_from_checkpoint: {path} belongs to another run than the one in output_dir {output_dir}; "
            "name an empty output_dir"
        )
    return path


def prepare(start: Start, step: int) -> list[str]:
    """Makes the directory ready for the steps after `step`; returns what was removed, in words."""
    start.output_dir.mkdir(parents=True, exist_ok=True)
    for pattern in TEMPORARY:
        for path in start.output_dir.glob(pattern):
            remove(path)
    if start.clear:
        for path in run_files(start.output_dir):
            remove(path)
        return [f"what an earlier run left in {start.output_dir}"]
    return go_back(start.output_dir, step) if start.resume is not None else []


def go_back(output_dir: Path, step: int) -> list[str]:
    """Removes what the run made after `step`: it will be made again, perhaps differently."""
    removed = []
    for number, path in checkpoints(output_dir):
        if number > step:
            remove(path)
            removed.append(path.name)
    if rows := keep_rows_until(output_dir / METRICS, step):
        removed.append(f"{rows} rows of {METRICS} after step {step}")
    if removed:
        for pattern in (*MODEL_FILES, *RESULTS):
            for path in output_dir.glob(pattern):
                remove(path)
    return removed


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
