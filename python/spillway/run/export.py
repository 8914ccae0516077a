"""`spillway export`: a checkpoint that stands alone, from a run's directory and its storage paths."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from spillway.base.files import flush, replace_text, write_json
from spillway.config import Config
from spillway.errors import InputError
from spillway.model import hub
from spillway.output import directory, identity, left, saved
from spillway.output.checkpoints import flush_tree
from spillway.output.directory import MANIFEST, RUN_STATE, newest_resumable
from spillway.output.records import METRICS
from spillway.output.state import RunState
from spillway.output.trainer_state import trainer_state
from spillway.run.start_points import STATE, read_counts, write_counts
from spillway.run.stored import StoredRun, stored


def export(config: Config, checkpoint: Path | None, to: Path) -> int:
    """Writes `to`, which is there whole or not at all. `checkpoint`: that one; None: the newest durable step.

    Returns the step that it holds."""
    if to.exists():
        raise InputError(f"to: {to} exists already; name a directory that does not")
    run = stored(config)
    unsaved = None if checkpoint else left.found(run.output_dir, run.config.paths)
    checkpoint = checkpoint or unsaved or newest_alone(run)
    if checkpoint and checkpoint != unsaved and not (checkpoint / RUN_STATE).is_file():
        raise InputError(f"checkpoint: {checkpoint} has no {RUN_STATE}, so there is no state to export")
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_name(f".tmp-{to.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        step = fill(run, checkpoint, temporary)
        flush_tree(temporary)
        os.replace(temporary, to)
        flush(to.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return step


def newest_alone(run: StoredRun) -> Path | None:
    """The newest checkpoint, where nothing newer can lie on the paths."""
    newest = newest_resumable(run.output_dir)
    if not run.volumes():
        if newest is None:
            raise InputError(f"output_dir: {directory.nothing_to_resume(run.output_dir)}")
        return newest
    return None


def fill(run: StoredRun, checkpoint: Path | None, target: Path) -> int:
    if checkpoint and not (checkpoint / MANIFEST).is_file():
        saved.check(checkpoint)
        shutil.copytree(checkpoint, target)
        return int(read_counts(checkpoint / STATE)["calls"])
    target.mkdir()
    with run.engine() as engine:
        found = json.loads(engine.read_back(str(checkpoint / STATE) if checkpoint else None))
        if not found["found"]:
            raise InputError(f"storage: {directory.nothing_to_resume(run.output_dir)}")
        payload = json.loads(found["payload"])
        save(run, engine, payload, target)
    return int(payload["session"]["calls"])


def save(run: StoredRun, engine: Any, payload: dict[str, Any], target: Path) -> None:
    (target / STATE).mkdir(mode=0o700)
    engine.save_state(str(target / STATE), payload["session"]["steps"])
    if run.config.method == "lora":
        save_adapters(run, engine, target)
    else:
        save_weights(run, engine, target)
    save_beside(run.config, target)
    write_counts(target / STATE, payload["session"])
    save_position(run, payload["run"], target)
    for path in run.output_dir.glob(identity.REFERENCES):
        shutil.copyfile(path, target / identity.FOLDER / path.name)
    saved.record_files(target)


def save_position(run: StoredRun, moving: dict[str, Any], target: Path) -> None:
    """Where the run stood: as `spillway train` keeps it, or transformers' Trainer, or nobody does."""
    known = run.identity
    if "position" in moving:
        from spillway.output.position import Log, Position

        position = Position.of(moving["position"])
        position.write(target, Log(run.output_dir / identity.TRAINER_LOG).rows)
        replace_text(target / RUN_STATE, position.text() + "\n")
    elif "losses" in moving:
        state = RunState.of(moving, known.fixed)
        log = trainer_state(run.config, known.steps, known.steps_per_epoch, state, run.output_dir / METRICS)
        write_json(target / "trainer_state.json", log)
        state.save(target)


def save_weights(run: StoredRun, engine: Any, target: Path) -> None:
    """Saves the weights under the library's names."""
    from spillway.model import files
    from spillway.model.building import build
    from spillway.model.source import DTYPES, load_config

    source = hub.model_directory(run.config)
    meta_model = build(load_config(source), DTYPES[run.config.weight_dtype])
    files.load_buffers(meta_model, source)
    files.save_weights(meta_model, run.description(), engine, target, files.MAX_SHARD, source)


def save_adapters(run: StoredRun, engine: Any, target: Path) -> None:
    """Saves the adapters under PEFT's names; the base stays where it was."""
    from spillway.model.building import build
    from spillway.model.lora import adapters_of
    from spillway.model.source import DTYPES, load_config

    adapters = adapters_of(run.config)
    assert adapters is not None
    adapters.adapt(build(load_config(hub.model_directory(run.config)), DTYPES[run.config.weight_dtype]))
    adapters.save(engine, run.description(), run.config.model, target)
    adapters.save_weights(engine, run.description(), target / STATE)


def save_beside(config: Config, target: Path) -> None:
    """Configuration, generation configuration and tokenizer, from the model that the run began with. Adapters have a
    configuration of their own."""
    from spillway.data.loading import load_tokenizer
    from spillway.model.source import load_config, save_config

    source = hub.model_directory(config)
    if config.method != "lora":
        save_config(source, load_config(source), config.weight_dtype, target)
    load_tokenizer(config).save_pretrained(str(target))
