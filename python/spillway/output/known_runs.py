"""The run in an output_dir, by its own files and by its volumes, and contradictions between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spillway.base.documents import read_json
from spillway.config import Config, read_file, resolve
from spillway.config.values import StoragePath
from spillway.errors import InputError
from spillway.output import identity, volumes
from spillway.output.identity import Identity

PLAN = "plan.json"


def read_previous_config(output_dir: Path) -> Config | None:
    """The configuration in the run's config.yaml; None if it cannot be read."""
    before = output_dir / "config.yaml"
    try:
        return resolve(read_file(before), {}, str(before))
    except InputError:
        return None


def read_previous_paths(output_dir: Path) -> list[StoragePath]:
    """The storage paths in the run's config.yaml; none if it cannot be read."""
    before = read_previous_config(output_dir)
    return before.paths if before is not None else []


def load_identity(output_dir: Path, overwrite: bool = False, paths: Sequence[StoragePath] = ()) -> Identity | None:
    """The identity of the run; None if no run has begun. InputError if run.json is damaged, with the owners of the
    volumes on `paths`, by default on those of config.yaml. `overwrite`: a damaged identity counts as none."""
    try:
        return identity.load(output_dir)
    except InputError as error:
        if overwrite:
            return None
        owners = describe_volumes(paths or read_previous_paths(output_dir))
        raise InputError(f"{error}{owners and f'. {owners}'}") from None


def load_existing_run(
    given: str | None, overwrite: bool = False, paths: Sequence[StoragePath] = ()
) -> tuple[Identity | None, list[str]]:
    """The run in the `given` output_dir, and further places of its volumes. `load_identity` describes `overwrite` and
    `paths`."""
    output_dir = Path(given or os.devnull)
    known = None
    with suppress(OSError):  # open_run refuses an unreadable file
        known = load_identity(output_dir, overwrite, paths) if given else None
    if known is None or known.durability == "none":
        return known, []
    processes = [*known.processes, *(known.before["processes"] if known.before else [])]
    places = [place for *_, each in processes for place in each] or [
        path.place for path in read_previous_paths(output_dir)
    ]
    return known, list(dict.fromkeys(places))


def describe_volumes(paths: Sequence[StoragePath], other_than: str | None = None) -> str:
    """A sentence with the volumes in these places and the run of each, except the run `other_than`."""
    places = dict.fromkeys(path.place for path in paths)
    every = {each.file: each.superblock.run for place in places for each in volumes.list_volumes(place)}
    owners = {file: run for file, run in every.items() if run != other_than}
    return "; ".join(f"{file} belongs to the run {run!r}" for file, run in owners.items())


def describe_missing_identity(output_dir: Path, paths: Sequence[StoragePath]) -> str:
    """The refusal of a directory whose run.json is missing; empty if the file exists or no run needs it."""
    if (output_dir / identity.RUN).exists():
        return ""
    owners = describe_volumes(paths or read_previous_paths(output_dir))
    if not owners:
        return ""
    return (
        f"{output_dir / identity.RUN} is missing, and by it the run knows which volumes are its own; {owners}. Put "
        f"the file back, from a copy of {output_dir}: the steps on the storage paths need it"
    )


def describe_contradiction(output_dir: Path, paths: Sequence[StoragePath]) -> str:
    """A sentence with the contradiction between run.json and the volumes; empty if they agree."""
    if words := describe_missing_identity(output_dir, paths):
        return words
    known, paths = identity.load(output_dir), paths or read_previous_paths(output_dir)
    if known is None:
        return ""
    own = [str(each.file) for path in paths for each in volumes.told_of([path.place], known.run)]
    if not own and (owners := describe_volumes(paths, known.run)):
        return (
            f"{output_dir / identity.RUN} says that the run is {known.run!r}, and {owners}: the file is damaged or "
            "another run's, or the storage is. Put back what belongs together"
        )
    if own and known.durability == "none" and (planned := read_planned_durability(output_dir)) != "none":
        return (
            f"{output_dir / identity.RUN} says that no step of the run is durable (durability none), and "
            f"{output_dir / PLAN} says {planned}: one of them is damaged. {describe_volumes(paths)}. Put the file back "
            f"from a copy of {output_dir}"
        )
    return ""


def read_planned_durability(output_dir: Path) -> str:
    """The durability in plan.json; "none" where that cannot be read."""
    with suppress(OSError, ValueError, AttributeError):
        return str(read_json(output_dir / PLAN).get("durability", "none"))
    return "none"


def nothing_to_resume(output_dir: Path, paths: Sequence[StoragePath] = ()) -> str:
    """A sentence with the reason why nothing can be resumed. `paths`: the run's storage, by default of config.yaml."""
    return describe_contradiction(output_dir, paths) or (
        f"{output_dir} holds no checkpoint to resume from, and its storage paths hold no finished step"
    )
