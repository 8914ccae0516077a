"""`spillway verify` reads every used byte on a run's storage paths and in its checkpoints, and names damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spillway._engine import Damage, Verification
from spillway.base.counts import counted
from spillway.base.sizes import size
from spillway.config import Config
from spillway.errors import InputError
from spillway.output import directory, saved, volumes
from spillway.run.shards import unreached
from spillway.run.start_points import STATE
from spillway.run.stored import StoredRun, stored

Say = Callable[[str], None]


def verify(config: Config, say: Say) -> bool:
    """Verifies a run: its storage paths, its checkpoints and the model at the root of its `output_dir`. Says each
    damage in a line, then what was read. True: all of what was read is well."""
    run = stored(config)
    places = [path for _, path in directory.checkpoints(run.output_dir)] + [run.output_dir]
    places_with_digests, bare, unread = sort_by_digests(places)
    for words in unread:
        say(f"damaged: {words}")
    if not run.volumes() and not places_with_digests and not unread:
        raise InputError(
            f"storage: the run in {run.output_dir} keeps nothing on its storage paths, and none of its checkpoints has "
            f"digests ({saved.FILES}); nothing to verify"
        )
    well = [try_volumes(run, say)] if run.volumes() else [tell_missing_volumes(run, say)]
    well += [verify_files(place, say) for place in places_with_digests]
    if names := [place.name for place in bare if place != run.output_dir]:
        say(f"not verified: {', '.join(names)}, without digests ({saved.FILES})")
    return all(well) and not unread


def sort_by_digests(places: list[Path]) -> tuple[list[Path], list[Path], list[str]]:
    """The places that have a list of digests, those that have none, and a sentence about each list that cannot be
    read."""
    have: list[Path] = []
    bare: list[Path] = []
    unread: list[str] = []
    for place in places:
        try:
            (bare if saved.read_list(place) is None else have).append(place)
        except InputError as error:
            unread.append(str(error))
    return have, bare, unread


def tell_missing_volumes(run: StoredRun, say: Say) -> bool:
    """Names the checkpoints that need volumes of which none is there. True: none needs one."""
    if pinned := directory.pinned(run.output_dir):
        names, places = ", ".join(path.name for path in pinned), ", ".join(path.place for path in run.config.paths)
        say(
            f"damaged: the state of {names} lies on storage paths, and {places or 'no storage'} holds no volume of the "
            "run: mount the drives, or name the storage that the run had"
        )
    return not pinned


def verify_directory(place: Path, say: Say) -> bool:
    """Verifies a checkpoint, an export or a saved model in a directory of its own."""
    if saved.read_list(place) is None:
        raise InputError(
            f"output_dir: {place} holds no run, and no digests of its files (there is no {place / saved.FILES}): its "
            "bytes cannot be verified"
        )
    return verify_files(place, say)


def verify_files(place: Path, say: Say) -> bool:
    entries = saved.read_list(place) or {}
    changes = list(saved.find_changes(place))
    for change in changes:
        say(f"damaged: {place / change}")
    sampled = any("sampled" in entry for entry in entries.values())
    amount = size(sum(entry["bytes"] for entry in entries.values()))
    read = f"{amount} in {counted(len(entries), 'file')} of {place} read"
    how = ", larger files in samples (an older release saved them)" if sampled else ""
    say(f"{read}{how}: {counted(len(changes), 'damaged place') if changes else 'no damage'}.")
    if changes:
        say(f"A file that was changed on purpose: remove its entry from {place / saved.FILES}, or the list.")
    return not changes


def try_volumes(run: StoredRun, say: Say) -> bool:
    """`verify_volumes`, or False after words about a volume of the run that cannot be opened. InputError where none of
    them is the run's."""
    try:
        return verify_volumes(run, say)
    except InputError as error:
        places = [path.place for shard in run.shards for path in shard.config.paths]
        if not volumes.told_of(places, run.identity.run):
            raise
        say(f"not read: {error}")
        return False


def verify_volumes(run: StoredRun, say: Say) -> bool:
    """Verifies the volumes of all processes, and names those that cannot be read."""
    pinned = [str(path / STATE) for path in directory.pinned(run.output_dir)]
    several = run.identity.several
    well = True
    for shard in run.shards:
        if several and shard.missing:
            say(f"not read: {', '.join(unreached([shard]))}; verify it where it can be reached")
            continue
        with run.engine(shard, shard.port()) as engine:
            report = engine.verify(pinned)
        for damage in report.damage:
            say(line(damage))
        say((f"{shard}: " if several else "") + summary(report, len(shard.config.paths)))
        well = well and not report.damage
    return well


def line(damage: Damage) -> str:
    return f"damaged: {damage.what}: {damage.bytes} bytes on {damage.path}, {damage.file} at byte {damage.offset}"


def summary(report: Verification, paths: int) -> str:
    number = len(report.damage)
    result = f"{number} damaged place{'s' * (number != 1)}" if number else "no damage"
    step = "no durable step" if report.step is None else f"durable step {report.step}"
    return f"{size(report.bytes)} on {paths} path{'s' * (paths != 1)} read, {step}: {result}."
