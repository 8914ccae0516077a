"""`spillway merge`: the adapters of a run, or of a directory that PEFT saved, and their base as one model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.config import Config, resolve
from spillway.data.loading import load_tokenizer, padding_of
from spillway.errors import InputError
from spillway.model.adapters import merging
from spillway.model.adapters.lora import ADAPTER, ADAPTER_CONFIG
from spillway.model.checkpoint import files
from spillway.model.checkpoint.ties import build_as_stored
from spillway.model.source import hub
from spillway.model.source.labels import load_run_config
from spillway.model.source.source import DTYPES, is_classifier, load_config, save_config, text_config
from spillway.output import base_files, left, saved
from spillway.output.base_files import BASE
from spillway.output.checkpoints import write_directory
from spillway.output.directory import checkpoints
from spillway.output.known_runs import nothing_to_resume
from spillway.output.padding import name_padding
from spillway.run.export import fill
from spillway.run.stored import StoredRun, stored

Tell = Callable[[str], None]
BITS = {"load_in_4bit": "4", "load_in_8bit": "8"}


@dataclass(frozen=True)
class Wanted:
    """The merge to make, and the form of its result."""

    config: Config  # names the base and the tokenizer
    adapters: Path  # a run's output_dir, or a directory that PEFT saved
    to: Path
    is_run: bool
    weight_dtype: str | None = None  # None: that of the run, or of the base
    checkpoint: Path | None = None  # None: the newest durable step


def merge(wanted: Wanted, tell: Tell) -> Path:
    """Writes `to`, which is there whole or not at all. Returns the directory of the base."""
    to = wanted.to
    if os.path.lexists(to) and not (to.is_dir() and not any(to.iterdir())):
        raise InputError(f"to: {to} exists already; name an empty directory, or one that does not exist")
    run = open_run(wanted)
    base = hub.model_directory(wanted.config)
    if run is not None:
        base_files.check(run.identity.fixed.get(BASE), base)
    hub.fetch_weights(wanted.config, tell)
    if (words := describe_rounding(wanted.config, base)) and wanted.is_run:
        tell(words)
    scratch = to.with_name(f".tmp-{to.name}-adapters")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        adapters = wanted.adapters if run is None else find_adapters(run, wanted, scratch)
        write_directory(to, lambda place: write_merged(wanted, adapters, base, place, tell))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return base


def open_run(wanted: Wanted) -> StoredRun | None:
    """The run whose adapters are merged; None: it is a directory of PEFT's."""
    if not wanted.is_run:
        return None
    if wanted.config.method != "lora":
        raise InputError(
            f"merge: {wanted.adapters} is a run with `method: {wanted.config.method}`, which has no adapters: its "
            "weights are whole already. `spillway export` writes them"
        )
    return stored(wanted.config)


def find_adapters(run: StoredRun, wanted: Wanted, scratch: Path) -> Path:
    """The directory with the adapters of the named checkpoint, or of the newest durable step, which storage paths may
    hold."""
    if wanted.checkpoint is not None:
        return check_found(wanted.checkpoint)
    if run.volumes():
        scratch.mkdir(parents=True)
        fill(run, left.found(run.output_dir, run.config.paths), scratch)
        return scratch
    places = [*(path for _, path in reversed(checkpoints(run.output_dir))), run.output_dir]
    folder = next((place for place in places if (place / ADAPTER).is_file()), None)
    if folder is None:
        raise InputError(f"output_dir: {nothing_to_resume(run.output_dir, run.config.paths)}")
    return check_found(folder)


def check_found(directory: Path) -> Path:
    for name in (ADAPTER, ADAPTER_CONFIG):
        saved.check_files(directory, Path(name), "merge")
    return directory


def write_merged(wanted: Wanted, adapters: Path, base: Path, target: Path, tell: Tell) -> None:
    adapter_config = merging.load_adapter_config(adapters)
    head = merging.find_head(adapters, adapter_config)
    is_labelled = wanted.is_run and wanted.config.objective_entry.is_labelled
    model_config = load_run_config(wanted.config, base) if is_labelled else load_config(base, *head)
    weight_dtype = wanted.weight_dtype or (wanted.config.weight_dtype if wanted.is_run else find_dtype(model_config))
    built = build_as_stored(model_config, base, DTYPES[weight_dtype])
    if size := merging.find_vocabulary(built.meta_model, adapter_config, adapters):
        text_config(built.config).vocab_size = size
        built = build_as_stored(built.config, base, DTYPES[weight_dtype])
    units = merging.list_merged(built.meta_model, adapter_config, adapters, base)
    files.write_files(target, "model", files.MAX_SHARD, units)
    save_config(base, built.config, weight_dtype, target)
    save_tokenizer(wanted.config, target, tell)
    if wanted.is_run and is_classifier(built.config):
        name_padding(target / "config.json", padding_of(load_tokenizer(wanted.config)))
    saved.record_files(target)


def find_dtype(model_config: Any) -> str:
    """The type of the base, as its configuration says; fp32 where it does not, as transformers reads it."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    return names.get(getattr(model_config, "dtype", None) or DTYPES["fp32"], "fp32")


def save_tokenizer(config: Config, target: Path, tell: Tell) -> None:
    place = hub.tokenizer_directory(config)
    if hub.has_tokenizer(place):
        load_tokenizer(config).save_pretrained(str(target))
    else:
        tell(f"{place} has no tokenizer, so the merged model has none; --tokenizer names one")


def describe_rounding(config: Config, base: Path) -> str:
    """The notice of a base that the run kept rounded; empty without one."""
    bits = next((bits for key, bits in BITS.items() if getattr(config, key)), None)
    if bits is None:
        return ""
    return (
        f"the adapters were trained over a base rounded to {bits} bits, and are merged into the unrounded weights of "
        f"{base}: the merged model differs from the trained one by that rounding"
    )


def describe_adapters(directory: Path, given: dict[str, Any]) -> Config:
    """The configuration that a directory of PEFT's stands for: its base, and its tokenizer or the base's."""
    adapter_config = merging.load_adapter_config(directory)
    base = given.get("model") or adapter_config.base_model_name_or_path
    if not base:
        raise InputError(f"model: {directory / ADAPTER_CONFIG} names no base; name it with --model")
    values = {"model": str(base), **({"tokenizer": str(directory)} if hub.has_tokenizer(directory) else {}), **given}
    if adapter_config.revision and "model" not in given:
        values.setdefault("model_revision", adapter_config.revision)
    return hub.resolve_commits(resolve({}, values), only=("model", "tokenizer"))
