"""output_dir/spillway: what a run needs to find its storage paths again, wherever the directory lies by then.

`run.json` is written before the volumes are, so that no volume is ever there whose run does not know it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spillway.base.files import flush, write_json
from spillway.errors import InputError, other_format

FORMAT = 1
FOLDER = "spillway"
RUN = Path(FOLDER, "run.json")
DESCRIPTION = Path(FOLDER, "description.json")  # as given to the engine
SETTINGS = Path(FOLDER, "settings.json")  # what the engine planned with
SO_FAR = Path(FOLDER, "so_far.json")  # what summary.json will say, while the run goes on
TIMELINE = Path(FOLDER, "timeline.json.gz")  # the newest then
LATE = Path(FOLDER, "late.json")  # of several processes: who keeps the others waiting now
TRAINER_LOG = Path(FOLDER, "trainer_log.jsonl")  # of transformers' Trainer: the rows of its log, and what is done
LOG = Path(FOLDER, "log.txt")  # messages of a run whose terminal has gone
FILES = (RUN, DESCRIPTION, SETTINGS, SO_FAR, TIMELINE, LATE, TRAINER_LOG, LOG)
REFERENCES = str(Path(FOLDER, "reference-*.jsonl"))  # with objective dpo
MOST_BYTES = 256  # of an identity: what a volume's superblock has room for


@dataclass
class Identity:
    """Whose volumes these are, and what a resumed run must not change."""

    run: str  # written into every volume
    fixed: dict[str, Any] = field(default_factory=dict)  # RunState.fixed
    durability: str = "none"  # of the run's plan
    steps: int = 0  # of the whole run
    steps_per_epoch: int = 0
    line: int = 0  # of several processes: another number each time that the run begins anew or goes back
    shared: bool = False  # several processes have gone on with it; where not, the rest is not written
    world: int = 1  # processes that keep the line
    # The line of another number of processes that this one begins with ({"line", "world", "processes"}), as long as not
    # all of its volumes are gone.
    before: dict[str, Any] | None = None
    # by rank: host, local rank, processes there, storage paths; of one process that has never been one of several none
    processes: list[list[Any]] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """The run is one of several processes now."""
        return len(self.processes) > 1

    def save(self, output_dir: Path) -> None:
        path = output_dir / RUN
        path.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        hidden = [name for name in ("line", "processes") if not content[name]]
        for name in [*hidden, *([] if self.shared else ["shared", "world", "before"])]:
            del content[name]
        write_json(path, {"format": FORMAT, **content})
        for folder in (path.parent, output_dir, output_dir.parent):
            flush(folder)

    @contextmanager
    def claim(self, output_dir: Path) -> Iterator[None]:
        """Written, if nothing is there yet, while the volumes are made; gone again when they could not be."""
        if (output_dir / RUN).exists():
            yield
            return
        made = [folder for folder in (output_dir / FOLDER, output_dir, *output_dir.parents) if not folder.exists()]
        self.save(output_dir)
        try:
            yield
        except BaseException:
            (output_dir / RUN).unlink(missing_ok=True)
            for folder in made:
                with suppress(OSError):
                    os.rmdir(folder)
            raise


def new(output_dir: Path) -> Identity:
    """No two runs have the same, even if one begins in a directory that another has moved away from."""
    mark = " " + secrets.token_hex(4)
    name = str(output_dir.absolute()).encode("utf-8", "replace")[-(MOST_BYTES - len(mark)) :]
    return Identity(name.decode("utf-8", "ignore") + mark)


def load(output_dir: Path) -> Identity | None:
    """None where no run has begun."""
    path = output_dir / RUN
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.pop("format")
        if found != FORMAT:
            raise InputError(f"output_dir: {path} has {other_format(found, FORMAT)}")
        return Identity(**as_written_now(content))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"output_dir: {path} cannot be read: {error!r}") from None


def as_written_now(content: dict[str, Any]) -> dict[str, Any]:
    """Earlier builds wrote hosts and storage paths as a list of its own, `places`."""
    processes = with_places(content.get("processes", []), content.pop("places", []))
    if (before := content.get("before")) and "places" in before:
        before["processes"] = with_places([], before.pop("places"))
    return {"world": max(1, len(processes)), **content, "processes": processes}


def with_places(processes: list[list[Any]], places: list[list[Any]]) -> list[list[Any]]:
    known = processes or [[host, 0, 1] for host, _ in places]
    paths = [where for _, where in places] if len(places) == len(known) else [[]] * len(known)
    return [[*process[:3], *(process[3:] or [where])] for process, where in zip(known, paths, strict=True)]
