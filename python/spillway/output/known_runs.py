"""The run that an output_dir holds, as its own files and the volumes on its storage paths tell of it; and what they
contradict each other in."""

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


def config_before(output_dir: Path) -> Config | None:
    """The configuration in the run's config.yaml; None where it cannot be read."""
    before = output_dir / "config.yaml"
    try:
        return resolve(read_file(before), {}, str(before))
    except InputError:
        return None


def paths_before(output_dir: Path) -> list[StoragePath]:
    """The storage paths in the run's config.yaml; none where it cannot be read."""
    before = config_before(output_dir)
    return before.paths if before is not None else []


def load_identity(output_dir: Path, overwrite: bool = False, paths: Sequence[StoragePath] = ()) -> Identity | None:
    """The identity of the run; None where none has begun. InputError where run.json is damaged, with the owners of the
    volumes on `paths`, else on those of the run's config.yaml. `overwrite`: what is damaged is given up."""
    try:
        return identity.load(output_dir)
    except InputError as error:
        if overwrite:
            return None
        owners = describe_volumes(paths or paths_before(output_dir))
        raise InputError(f"{error}{owners and f'. {owners}'}") from None


def known_run(
    given: str | None, overwrite: bool = False, paths: Sequence[StoragePath] = ()
) -> tuple[Identity | None, list[str]]:
    """The run in the `given` output_dir, and where its volumes may be besides the paths of a process. `overwrite`,
    `paths`: as `load_identity` takes them."""
    output_dir = Path(given or os.devnull)
    known = None
    with suppress(OSError):  # what cannot be read is refused where the run's directory is opened
        known = load_identity(output_dir, overwrite, paths) if given else None
    if known is None or known.durability == "none":
        return known, []
    processes = [*known.processes, *(known.before["processes"] if known.before else [])]
    places = [place for *_, each in processes for place in each] or [path.place for path in paths_before(output_dir)]
    return known, list(dict.fromkeys(places))


def describe_volumes(paths: Sequence[StoragePath], other_than: str | None = None) -> str:
    """The volumes in these places, each with the run that it belongs to; `other_than`: none of this run."""
    places = dict.fromkeys(path.place for path in paths)
    owners = {
        each["file"]: each["run"] for place in places for each in volumes.list_all(place) if each["run"] != other_than
    }
    return "; ".join(f"{file} belongs to the run {run!r}" for file, run in owners.items())


def describe_missing_identity(output_dir: Path, paths: Sequence[StoragePath]) -> str:
    """Why nothing goes on in a directory whose run.json is gone, in words; empty: it is there, or nobody misses it."""
    if (output_dir / identity.RUN).exists():
        return ""
    owners = describe_volumes(paths or paths_before(output_dir))
    if not owners:
        return ""
    return (
        f"{output_dir / identity.RUN} is missing, and by it the run knows which volumes are its own; {owners}. Put "
        f"the file back, from a copy of {output_dir}: the steps on the storage paths need it"
    )


def describe_contradiction(output_dir: Path, paths: Sequence[StoragePath]) -> str:
    """The contradiction between run.json and the volumes on the storage paths, in words; empty where they agree."""
    if words := describe_missing_identity(output_dir, paths):
        return words
    known, paths = identity.load(output_dir), paths or paths_before(output_dir)
    if known is None:
        return ""
    own = [str(each["file"]) for path in paths for each in volumes.told_of([path.place], known.run)]
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
    """Why there is nothing, in words. `paths`: the run's storage; where there is none, as its config.yaml names it."""
    return describe_contradiction(output_dir, paths) or (
        f"{output_dir} holds no checkpoint to resume from, and its storage paths hold no finished step"
    )
