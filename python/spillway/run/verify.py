"""`spillway verify`: reads every byte that counts on a run's storage paths and names what is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from spillway.base.sizes import size
from spillway.config import Config
from spillway.errors import InputError
from spillway.output import directory
from spillway.run.shards import unreached
from spillway.run.start_points import STATE
from spillway.run.stored import stored

Say = Callable[[str], None]


def verify(config: Config, say: Say) -> bool:
    """Says each damage in a line, then what was read, and of several processes what could not be. Whether all of what
    was read is well."""
    run = stored(config)
    if not run.volumes():
        raise InputError(f"storage: the run in {run.output_dir} keeps nothing on its storage paths; nothing to verify")
    pinned = [str(path / STATE) for path in directory.pinned(run.output_dir)]
    several = run.identity.several
    well = True
    for shard in run.shards:
        if several and shard.missing:
            say(f"not read: {', '.join(unreached([shard]))}; verify it where it can be reached")
            continue
        with run.engine(shard, shard.port()) as engine:
            found = json.loads(engine.verify(pinned))
        for damage in found["damage"]:
            say(line(damage))
        say((f"{shard}: " if several else "") + summary(found, len(shard.config.paths)))
        well = well and not found["damage"]
    return well


def line(damage: dict[str, Any]) -> str:
    where = f"{damage['path']}, {damage['file']} at byte {damage['offset']}"
    return f"damaged: {damage['what']}: {damage['bytes']} bytes on {where}"


def summary(found: dict[str, Any], paths: int) -> str:
    number = len(found["damage"])
    result = f"{number} damaged place{'s' * (number != 1)}" if number else "no damage"
    step = "no durable step" if found["step"] is None else f"durable step {found['step']}"
    return f"{size(found['bytes'])} on {paths} path{'s' * (paths != 1)} read, {step}: {result}."
