"""output_dir/spillway: what a run needs to find its storage paths again, wherever the directory lies by then.

`run.json` is written before the volumes are, so that no volume is ever there whose run does not know it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spillway.base.documents import read_json
from spillway.base.files import flush, write_json
from spillway.errors import InputError, other_format

FORMAT = 1
FOLDER = "spillway"
RUN = Path(FOLDER, "run.json")
DESCRIPTION = Path(FOLDER, "description.json")  # as given to the engine
SETTINGS = Path(FOLDER, "settings.json")  # what the engine planned with
EXPERTS = Path(FOLDER, "experts.json")  # how often steps met each expert that comes on demand
SO_FAR = Path(FOLDER, "so_far.json")  # what summary.json will say, while the run goes on
TIMELINE = Path(FOLDER, "timeline.json.gz")  # the newest then
LATE = Path(FOLDER, "late.json")  # of several processes: who keeps the others waiting now
TRAINER_LOG = Path(FOLDER, "trainer_log.jsonl")  # of transformers' Trainer: the rows of its log, and what is done
TRAINER_LOG_ASIDE = Path(FOLDER, f"{TRAINER_LOG.name}.damaged")  # damaged lines of the log
ROLLOUTS = Path(FOLDER, "rollouts.json")  # of a GRPOTrainer: completions that several steps train on
LOG = Path(FOLDER, "log.txt")  # messages of a run whose terminal has gone
FILES = (RUN, DESCRIPTION, SETTINGS, EXPERTS, SO_FAR, TIMELINE, LATE, TRAINER_LOG, TRAINER_LOG_ASIDE, ROLLOUTS, LOG)
REFERENCES = str(Path(FOLDER, "reference-*.jsonl"))  # with objective dpo
TEACHERS = str(Path(FOLDER, "teacher-*.bin"))  # with objective distill
DIGEST = "digest"  # the key of the digest over the other entries of run.json
ALWAYS = ("run",)  # entries that every release has written
DURABILITIES = ("none", "checkpoint", "step")
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
    stands_alone: bool = False  # the run has given up its volumes: its checkpoints have all that it goes on from

    @property
    def several(self) -> bool:
        """The run is one of several processes now."""
        return len(self.processes) > 1

    def save(self, output_dir: Path) -> None:
        path = output_dir / RUN
        path.parent.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        hidden = [name for name in ("stands_alone", "line", "processes") if not content[name]]
        for name in [*hidden, *([] if self.shared else ["shared", "world", "before"])]:
            del content[name]
        write_json(path, {"format": FORMAT, **content, DIGEST: digest_entries(content)})
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
    """The identity in a directory; None if no run has begun. InputError names the first damaged entry."""
    path = output_dir / RUN
    if not path.is_file():
        return None
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"output_dir: {path} cannot be read: {error}; put back a copy of it") from None
    form = content.pop("format", None) if isinstance(content, dict) else None
    if is_count(form) and form != FORMAT:
        raise InputError(f"output_dir: {path} has {other_format(form, FORMAT)}")
    written = content.pop(DIGEST, None) if isinstance(content, dict) else None
    if wrong := describe_wrong_entry(content, form):
        raise InputError(f"output_dir: {path} cannot be read: {wrong}; it is damaged: put back a copy of it")
    if written not in (None, digest_entries(content)):
        raise InputError(
            f"output_dir: {path} is damaged: its entries are not those that the run has written; put it back from a "
            f"copy of {output_dir}, or remove its entry `{DIGEST}` to take it as it is"
        )
    return Identity(**as_written_now(content))


def digest_entries(content: dict[str, Any]) -> str:
    """The digest of the entries of run.json, which does not depend on their order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def is_list_of_places(value: Any) -> bool:
    return isinstance(value, list) and all(is_text(each) for each in value)


def is_process(value: Any) -> bool:
    """The entry of one process; earlier builds wrote no storage paths into it."""
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and all(map(is_count, value[1:3]))
        and all(map(is_list_of_places, value[3:]))
    )


def is_list_of_processes(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_process, value))


def is_list_of_hosts(value: Any) -> bool:
    """Hosts with their storage paths, as earlier builds wrote them."""
    return isinstance(value, list) and all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and is_list_of_places(each[1])
        for each in value
    )


def is_line(value: Any) -> bool:
    """The line that another number of processes takes over, or none."""
    if value is None:
        return True
    if not isinstance(value, dict) or not all(is_count(value.get(name)) for name in ("line", "world")):
        return False
    return is_list_of_hosts(value["places"]) if "places" in value else is_list_of_processes(value.get("processes"))


ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {  # entries of run.json: the check of each, and its sentence
    "run": (is_text, "the run's name"),
    "fixed": (lambda value: isinstance(value, dict), "a mapping"),
    "durability": (lambda value: value in DURABILITIES, f"one of {', '.join(DURABILITIES)}"),
    "stands_alone": (lambda value: isinstance(value, bool), "true or false"),
    "steps": (is_count, "a count"),
    "steps_per_epoch": (is_count, "a count"),
    "line": (is_count, "a number"),
    "shared": (lambda value: isinstance(value, bool), "true or false"),
    "world": (is_count, "a count"),
    "before": (is_line, "null, or line, world and processes"),
    "processes": (is_list_of_processes, "a list of host, number, count and storage paths"),
    "places": (is_list_of_hosts, "a list of hosts and storage paths"),
}


def describe_wrong_entry(content: Any, form: Any) -> str:
    """A sentence about the first invalid entry; empty without one. `form`: the format."""
    if not isinstance(content, dict):
        return "it holds no JSON object"
    if form != FORMAT:
        return "`format` is missing" if form is None else f"`format` is {json.dumps(form)[:80]}; expects {FORMAT}"
    if missing := [name for name in ALWAYS if name not in content]:
        return f"`{missing[0]}` is missing"
    for name, value in content.items():
        if name not in ENTRIES:
            return f"`{name}` is none of its entries"
        is_valid, words = ENTRIES[name]
        if not is_valid(value):
            return f"`{name}` is {json.dumps(value)[:80]}; expects {words}"
    return ""


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
