"""Damaged files of every kind that a run reads, through the command: each error is a sentence."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pairs
import real_runs
import seeds
import tiny
from damaged_runs import as_case, find_unexplained
from damages import damages, damages_of_head
from real_runs import on_path, words
from spillway.model.source.tensor_files import Stored, copied, write_files

MOST = int(os.environ.get("SPILLWAY_DAMAGES", "0"))  # of each file in the nightly tests; 0: all
KEYS = ("--max_steps", "2", "--save_steps", "1")
HEAD = 1 << 16  # bytes of a volume
RunOf = Callable[[str], Path]

FILES: dict[str, tuple[list[str], str]] = {  # what a run is given: keys that name it, and the fuzzer's corpus
    "run.yaml": (["run.yaml"], ""),
    "train.jsonl": ([], ""),
    "profile.json": ([], "profile"),
    "template.jinja": (["--chat_template_path", "template.jinja"], ""),
    "model/config.json": ([], ""),
    "model/generation_config.json": ([], ""),
    "model/tokenizer.json": ([], ""),
    "model/tokenizer_config.json": ([], ""),
    "model/special_tokens_map.json": ([], ""),
    "model/model.safetensors": ([], "header"),
    "shards/model.safetensors.index.json": (["--model", "shards"], "index"),
    "shards/model-00001-of-00003.safetensors": (["--model", "shards"], "header"),
}
WAITED_FOR = ("model/tokenizer.json", "model/generation_config.json", "model/model.safetensors")  # as FIFOs, each time
AGAIN = ("resume", "--resume_from_checkpoint", "checkpoint-1")  # from the first checkpoint
ANEW = ("train", "--overwrite")
EXPORT = ("export", "--checkpoint", "checkpoint-1")
STORED: dict[str, tuple[str, str, list[tuple[str, ...]]]] = {  # what a run writes: which run, corpus, commands
    "spillway/run.json": ("paths", "", [("resume",), ("verify",), ("export",), ("doctor",), ANEW]),
    "spillway/lock.json": ("plain", "", [AGAIN, ("verify",), ANEW]),
    "spillway/settings.json": ("paths", "", [("report",), ("verify",), ("resume",)]),
    "spillway/description.json": ("paths", "description", [("report",), ("verify",), ("export",), ("resume",)]),
    "spillway/so_far.json": ("going on", "", [("report",), ("doctor",)]),
    "spillway/late.json": ("going on", "", [("report",), ("doctor",)]),
    "spillway/timeline.json.gz": ("going on", "", [("report",)]),
    "spillway/files.json": ("plain", "", [("verify",), ("resume",)]),
    "spillway/reference-train.jsonl": ("pairs", "", [AGAIN, ("verify",)]),
    "config.yaml": ("plain", "", [("resume",), ("verify",), ("report",), ANEW]),
    "metrics.jsonl": ("plain", "", [AGAIN, ("report",), ("doctor",), ANEW]),
    "plan.json": ("paths", "", [("report",), ("doctor",), ("verify",), ("resume",)]),
    "summary.json": ("plain", "", [("report",), ("doctor",), ("resume",)]),
    "timeline.json.gz": ("plain", "", [("report",)]),
    "adapter_config.json": ("adapters", "", [("resume",), ("verify",)]),
    "checkpoint-1/trainer_state.json": ("plain", "", [AGAIN, ("verify",), EXPORT]),
    "checkpoint-1/config.json": ("plain", "", [AGAIN, EXPORT]),
    "checkpoint-1/generation_config.json": ("plain", "", [AGAIN]),
    "checkpoint-1/adapter_config.json": ("adapters", "", [AGAIN, EXPORT]),
    "checkpoint-1/model.safetensors": ("plain", "header", [AGAIN, EXPORT]),
    "checkpoint-1/spillway/exp_avg.safetensors": ("plain", "header", [AGAIN, ("verify",)]),
    "checkpoint-1/spillway/run.json": ("plain", "", [AGAIN, EXPORT, ("verify",)]),
    "checkpoint-1/spillway/session.json": ("plain", "", [AGAIN, EXPORT, ("verify",)]),
    "checkpoint-1/spillway/files.json": ("plain", "", [AGAIN, EXPORT, ("verify",)]),
    "checkpoint-1/spillway/manifest.bin": ("paths", "records", [AGAIN, EXPORT, ("verify",)]),
    "checkpoint-1/spillway/wear.json": ("paths", "", [AGAIN, EXPORT]),
}
VOLUME_COMMANDS: list[tuple[str, ...]] = [("verify",), ("resume",), ("export",), AGAIN]


def split_model(model: Path, target: Path) -> None:
    """The same model in two files, and their index."""
    shutil.copytree(model, target)
    (target / "model.safetensors").unlink()
    stored = Stored(model)
    units = [copied(stored, name, name) for name in sorted(stored.names())]
    write_files(target, "model", 40_000, units)
    for sheet in target.glob(".*.digests"):
        sheet.unlink()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with all their files, a run's configuration, rows and a profile."""
    place = real_runs.inputs(tmp_path_factory.mktemp("inputs"))
    (place / "model" / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (place / "model" / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "do_sample": True}))
    (place / "template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    (place / "run.yaml").write_text("max_steps: 1\nseed: 3\nlearning_rate: 1e-4\nplacement: auto\n")
    tiny.jsonl(place / "pairs.jsonl", pairs.texts(11))
    split_model(place / "model", place / "shards")
    return place


@pytest.fixture(scope="module")
def run_of(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """The place of a finished run of a name, with its output_dir `out`, and a copy beside it, `whole`; made once."""
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("run") / "place"
            made[name].mkdir()
            make_run(inputs, made[name], name)
            shutil.copytree(made[name], made[name].with_name("whole"))
        return made[name]

    return run


def make_run(inputs: Path, place: Path, name: str) -> None:
    keys: dict[str, list[str]] = {
        "plain": [],
        "going on": [],
        "paths": on_path(place / "storage"),
        "adapters": ["--method", "lora"],
        "pairs": ["--dataset", str(inputs / "pairs.jsonl"), "--objective", "dpo", "--compute_dtype", "fp32"],
    }
    out = place / "out"
    assert real_runs.here(inputs, out, *KEYS, *keys[name]) == 0
    if name == "going on":
        shutil.copy(out / "summary.json", out / "spillway" / "so_far.json")
        shutil.copy(out / "timeline.json.gz", out / "spillway" / "timeline.json.gz")
        late = {"at": 1.0, "late": [{"rank": "rank 1", "words": "waits for path:0, 7 s"}]}
        (out / "spillway" / "late.json").write_text(json.dumps(late))
    elif name == "plain":
        lock = {"host": "elsewhere", "pid": 7, "since": "2026-01-01T00:00:00+00:00"}
        (out / "spillway" / "lock.json").write_text(json.dumps(lock))


def cases_of_input(given: Path, out: Path, name: str, chance: random.Random) -> list[dict[str, Any]]:
    keys, corpus = FILES[name]
    keys = [str(given / word) if (given / word).exists() else word for word in keys]
    command = words(given, out, *keys, *(() if name == "run.yaml" else ("--max_steps", "1")))
    return [as_case(name, given / name, each, command, out=out) for each in damages(given / name, chance, corpus)]


def command_of(told: tuple[str, ...], out: Path) -> list[str]:
    verb, *more = told
    if verb == "train":  # as the whole run was
        return [verb, str(out.parent.with_name("whole") / "out" / "config.yaml"), *more]
    more = [str(out / word) if word.startswith("checkpoint-") else word for word in more]
    return [verb, str(out), *more, *(["--to", str(out.parent / "exported")] if verb == "export" else [])]


def cases_of_run(place: Path, name: str, chance: random.Random) -> list[dict[str, Any]]:
    """A file of a checkpoint is damaged beside the list of digests, and without it."""
    _, corpus, commands = STORED[name]
    lists = (True, False) if name.startswith("checkpoint-") and not name.endswith("/files.json") else (True,)
    common = {"whole": place.with_name("whole"), "place": place}
    return [
        as_case(name, place / "out" / name, each, command_of(told, place / "out"), listed=listed, **common)
        for each in damages(place.with_name("whole") / "out" / name, chance, corpus)
        for told in commands
        for listed in lists
    ]


def cases_of_volume(place: Path, chance: random.Random) -> list[dict[str, Any]]:
    volume, common = place / "storage" / "spillway.volume", {"whole": place.with_name("whole"), "place": place}
    with open(place.with_name("whole") / "storage" / volume.name, "rb") as stream:
        head = stream.read(HEAD)
    return [
        as_case(volume.name, volume, each, command_of(told, place / "out"), head=True, **common)
        for each in damages_of_head(head, chance)
        for told in VOLUME_COMMANDS
    ]


def choose(cases: list[dict[str, Any]], most: int, chance: random.Random) -> list[dict[str, Any]]:
    return chance.sample(cases, min(most or len(cases), len(cases)))


@pytest.fixture
def given(inputs: Path, tmp_path: Path) -> Path:
    """A copy of the inputs, to be damaged."""
    return Path(shutil.copytree(inputs, tmp_path / "given"))


def test_damage_of_each_input_is_told_in_a_sentence(given: Path, tmp_path: Path) -> None:
    chance = seeds.instants("inputs")
    found = {name: cases_of_input(given, tmp_path / "out", name, chance) for name in FILES}
    cases = [case for each in found.values() for case in choose(each, 1, chance)]
    cases += [case for name in WAITED_FOR for case in found[name] if case["kind"] == "a FIFO"]
    assert find_unexplained(cases, tmp_path) == []


def test_damage_of_each_file_of_a_run_is_told_in_a_sentence(run_of: RunOf, tmp_path: Path) -> None:
    chance = seeds.instants("runs")
    cases = [case for name in STORED for case in choose(cases_of_run(run_of(STORED[name][0]), name, chance), 1, chance)]
    cases += choose(cases_of_volume(run_of("paths"), chance), 1, chance)
    assert find_unexplained(cases, tmp_path) == []


def test_configuration_nested_too_deep_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.yaml").write_text("model: " + "[" * 5000)
    assert real_runs.main(["train", str(tmp_path / "deep.yaml")]) == 2
    error = capsys.readouterr().err
    assert "deep.yaml" in error and "Traceback" not in error and error.count("\n") == 1, error


@pytest.mark.nightly
@pytest.mark.parametrize("name", FILES)
def test_every_damage_of_an_input_is_told_in_a_sentence(given: Path, tmp_path: Path, name: str) -> None:
    chance = seeds.instants(name)
    cases = choose(cases_of_input(given, tmp_path / "out", name, chance), MOST, chance)
    assert find_unexplained(cases, tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", STORED)
def test_every_damage_of_a_file_of_a_run_is_told_in_a_sentence(run_of: RunOf, tmp_path: Path, name: str) -> None:
    chance = seeds.instants(name)
    cases = choose(cases_of_run(run_of(STORED[name][0]), name, chance), MOST, chance)
    assert find_unexplained(cases, tmp_path) == []


@pytest.mark.nightly
def test_every_damage_of_a_volume_is_told_in_a_sentence(run_of: RunOf, tmp_path: Path) -> None:
    chance = seeds.instants("volume")
    assert find_unexplained(choose(cases_of_volume(run_of("paths"), chance), MOST, chance), tmp_path) == []
