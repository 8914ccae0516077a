"""`spillway export`: a checkpoint that stands alone, from a run's directory and its storage paths."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway._engine import Description, Engine
from spillway.base.files import replace_text, write_json
from spillway.config import Config
from spillway.errors import InputError
from spillway.model.source import hub
from spillway.output import base_files, identity, left, saved
from spillway.output.base_files import BASE
from spillway.output.checkpoints import write_directory
from spillway.output.directory import MANIFEST, RUN_STATE, newest_resumable
from spillway.output.known_runs import nothing_to_resume
from spillway.output.records import METRICS
from spillway.output.state import RunState
from spillway.output.trainer_state import trainer_state
from spillway.run.shards import Exchange, Shard, unreached
from spillway.run.start_points import STATE, read_counts, write_counts
from spillway.run.stored import StoredRun, stored

if TYPE_CHECKING:
    from spillway.model.checkpoint.ties import Built

Saves = Callable[[Any, bool], None]  # of an engine, and whether it is the one that writes


def export(config: Config, checkpoint: Path | None, to: Path) -> int:
    """Writes `to`, which is there whole or not at all. `checkpoint`: that one; None: the newest durable step.

    Returns the step that it holds."""
    if to.exists():
        raise InputError(f"to: {to} exists already; name a directory that does not")
    run = stored(config)
    unsaved = None if checkpoint or run.identity.several else left.found(run.output_dir, run.config.paths)
    checkpoint = checkpoint or unsaved or newest_alone(run)
    if checkpoint and checkpoint != unsaved and not (checkpoint / RUN_STATE).is_file():
        raise InputError(f"checkpoint: {checkpoint} has no {RUN_STATE}, so there is no state to export")
    steps: list[int] = []
    write_directory(to, lambda place: steps.append(fill(run, checkpoint, place)))
    return steps[0]


def newest_alone(run: StoredRun) -> Path | None:
    """The newest checkpoint, where nothing newer can lie on the paths."""
    newest = newest_resumable(run.output_dir)
    if not run.volumes():
        if newest is None:
            raise InputError(f"output_dir: {nothing_to_resume(run.output_dir, run.config.paths)}")
        return newest
    return None


def fill(run: StoredRun, checkpoint: Path | None, target: Path) -> int:
    """Fills the empty directory `target`. Returns the step."""
    if run.config.method == "lora":
        base_files.check(run.identity.fixed.get(BASE), hub.model_directory(run.config))
    if checkpoint and not (checkpoint / MANIFEST).is_file():
        saved.check_files(checkpoint)
        shutil.copytree(checkpoint, target, dirs_exist_ok=True)
        for change in saved.find_changes(target):
            raise InputError(f"checkpoint: {checkpoint} is damaged: {change}. Name another with --checkpoint")
        return int(read_counts(checkpoint / STATE)["calls"])
    shards = run.shards
    require_all(run, shards)
    (target / STATE).mkdir(mode=0o700)
    saved_by = saving_adapters(run, target) if run.config.method == "lora" else saving_weights(run, target)
    ports = [shard.port() for shard in shards]
    with ExitStack() as stack:
        engines = [stack.enter_context(run.engine(shard, port)) for shard, port in zip(shards, ports, strict=True)]
        last = {"at_most": last_of_all(run, shards, engines)} if len(shards) > 1 else {}

        def read(number: int) -> dict[str, Any]:
            engine = engines[number]
            answer = engine.read_back(str(checkpoint / STATE) if checkpoint else None, **last)
            if not answer.has_step:
                raise InputError(f"storage: {nothing_to_resume(run.output_dir, run.config.paths)}")
            payload: dict[str, Any] = json.loads(answer.payload)
            engine.save_state(str(target / STATE), payload["session"]["steps"])
            saved_by(engine, number == 0)
            return payload

        payload = Exchange(ports).run([partial(read, number) for number in range(len(engines))])[0]
    save_rest(run, payload, target)
    return int(payload["session"]["calls"])


def require_all(run: StoredRun, shards: Sequence[Shard]) -> None:
    """InputError where a part of a run of several processes cannot be read from here."""
    if len(shards) > 1 and (words := unreached(shards)):
        newest = newest_resumable(run.output_dir)
        alone = f"; {newest} stands alone: --checkpoint {newest}" if newest else ""
        raise InputError(
            f"storage: the newest step of the run lies in {len(shards)} parts, and {'; '.join(words)}; export it where "
            f"all of them can be reached, or mount them, and name them with --storage (DIR-{{rank}}){alone}"
        )


def last_of_all(run: StoredRun, shards: Sequence[Shard], engines: Sequence[Engine]) -> int:
    """The last step that is durable on every shard."""
    steps = [engine.durable_step() for engine in engines]
    apart = [str(shard) for shard, each in zip(shards, steps, strict=True) if each.line != run.identity.line]
    newest = min(int(each.step) for each in steps)
    if apart or newest < 0:
        where = f" ({', '.join(apart)} of another beginning)" if apart else ""
        raise InputError(f"storage: {nothing_to_resume(run.output_dir, run.config.paths)}{where}")
    return newest


def save_rest(run: StoredRun, payload: dict[str, Any], target: Path) -> None:
    save_beside(run, target)
    write_counts(target / STATE, payload["session"])
    save_position(run, payload["run"], target)
    for path in (*run.output_dir.glob(identity.REFERENCES), *run.output_dir.glob(str(identity.ROLLOUTS))):
        shutil.copyfile(path, target / identity.FOLDER / path.name)
    saved.record_files(target)


def save_position(run: StoredRun, moving: dict[str, Any], target: Path) -> None:
    """Saves the run's position: as `spillway train` keeps it, or transformers' Trainer, or nobody does."""
    known = run.identity
    if "position" in moving:
        from spillway.output.position import Log, Position

        position = Position.of(moving["position"])
        position.write(target, Log(run.output_dir / identity.TRAINER_LOG).until(position))
        replace_text(target / RUN_STATE, position.text() + "\n")
    elif "losses" in moving:
        state = RunState.of(moving, known.fixed)
        log = trainer_state(run.config, known.steps, known.steps_per_epoch, state, run.output_dir / METRICS)
        write_json(target / "trainer_state.json", log)
        state.save(target)


def saving_weights(run: StoredRun, target: Path) -> Saves:
    """Saves the weights under the library's names."""
    from spillway.model.checkpoint import files

    source = hub.model_directory(run.config)
    meta_model = build_run_model(run).meta_model
    held = {tensor.name for block in run.description().blocks for tensor in block.tensors}
    if meta_model.carried_names & held:
        meta_model.take_tower()
    if files.reads_base(meta_model, source):
        base_files.check(run.identity.fixed.get(BASE), source)
    files.load_buffers(meta_model, source)

    def saves(engine: Engine, writes: bool) -> None:
        by = files.save_weights if writes else files.give_weights
        by(meta_model, run.description(), engine, target, files.MAX_SHARD, begins_with(run.config))

    return saves


def begins_with(config: Config) -> Path:
    """The checkpoint whose untrained tensors a save carries along; a missing path if weights were drawn."""
    source = hub.model_directory(config)
    return source if config.init == "pretrained" else source / "none"


def build_run_model(run: StoredRun) -> Built:
    """The model of a run, without weights."""
    from spillway.model.checkpoint.ties import build_as_stored
    from spillway.model.source.source import DTYPES

    return build_as_stored(load_trained_config(run), begins_with(run.config), DTYPES[run.config.weight_dtype])


def load_trained_config(run: StoredRun) -> Any:
    """The configuration of the model that a run has trained, with its head."""
    from spillway.model.source.labels import load_run_config
    from spillway.model.source.source import load_config

    source = hub.model_directory(run.config)
    if run.config.objective_entry.is_labelled:
        return load_run_config(run.config, source)
    return load_config(source, *find_labels(run.description()))


def find_labels(description: Description) -> tuple[int, str]:
    """The labels of the head that a run has trained (0: it predicts tokens), and the kind of its class."""
    from spillway.model.meta.score_head import HEAD
    from spillway.model.source.source import OF_ROWS, OF_TOKENS

    shapes = {tensor.name: tensor.shape for block in description.blocks for tensor in block.tensors}
    rows, _ = shapes.get(f"{HEAD}.weight", (0, 0))
    return rows, OF_TOKENS if f"{HEAD}.bias" in shapes else OF_ROWS


def saving_adapters(run: StoredRun, target: Path) -> Saves:
    """Saves the adapters under PEFT's names; the base stays where it was."""
    from spillway.model.adapters.lora import adapters_of
    from spillway.model.meta.building import build
    from spillway.model.source.source import DTYPES

    adapters = adapters_of(run.config)
    assert adapters is not None
    adapters.adapt(build(load_trained_config(run), DTYPES[run.config.weight_dtype]))

    def saves(engine: Engine, writes: bool) -> None:
        if writes:
            adapters.save(engine, run.description(), run.config.model, target)
        else:
            adapters.give(engine, run.description())
        adapters.save_weights(engine, run.description(), target / STATE, writes)

    return saves


def save_beside(run: StoredRun, target: Path) -> None:
    """Configuration, generation configuration and tokenizer, from the model that the run began with. Adapters have a
    configuration of their own."""
    from spillway.data.loading import load_tokenizer, padding_of
    from spillway.model.source.source import is_classifier, save_config
    from spillway.output.padding import name_padding

    config, tokenizer = run.config, load_tokenizer(run.config)
    if config.method != "lora":
        model_config = build_run_model(run).config
        save_config(hub.model_directory(config), model_config, config.weight_dtype, target)
        if is_classifier(model_config):
            name_padding(target / "config.json", padding_of(tokenizer))
    tokenizer.save_pretrained(str(target))
