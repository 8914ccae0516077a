"""Damaged files of every kind that a run reads, through the command: each error is a sentence."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import real_runs
import seeds
from real_runs import apart, words
from warm import NIGHTLY

LIMIT = 3000  # seconds
QUICK = int(os.environ.get("SPILLWAY_DAMAGES", "1"))  # of each file in `make test`
DEEP, DIGITS = 5000, 5000
VALUES: tuple[Any, ...] = (None, [], {}, "x", "", -1, 0, 1e300, 2**70, True, [[]], ["x"], {"x": 1})
BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda content, chance: b"",
    "cut": lambda content, chance: content[: chance.randrange(len(content))],
    "nul": lambda content, chance: spoil(content, chance, b"\0"),
    "no UTF-8": lambda content, chance: spoil(content, chance, b"\xff"),
    "bit": lambda content, chance: flip(content, chance),
    "bits": lambda content, chance: flip(flip(flip(content, chance), chance), chance),
    "zeros": lambda content, chance: bytes(len(content)),
    "deep list": lambda content, chance: b"[" * DEEP,
    "deep mapping": lambda content, chance: b'{"a":' * DEEP,
    "digits": lambda content, chance: b'{"a": ' + b"9" * DIGITS + b"}",
    "a word": lambda content, chance: b'"word"',
    "a list": lambda content, chance: b"[1, 2]",
    "null": lambda content, chance: b"null",
}


def spoil(content: bytes, chance: random.Random, byte: bytes) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + byte + content[place + 1 :]


def flip(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(min(len(content), 4096))
    return (
        spoil(content, random.Random(place), b"")
        if not content
        else (content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
    )


def damages(path: Path, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Names and contents: bytes of any file, and each top key of a JSON object with a value of another type."""
    content = path.read_bytes()
    for name, spoilt in BYTES.items():
        yield name, spoilt(content, chance)
    if path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", content[:8])
        for name, text in changed_keys(json.loads(content[8 : 8 + length]), chance):
            yield name, struct.pack("<Q", len(text)) + text + content[8 + length :]
        for text in (b"[" * DEEP, b'{"a":' * DEEP, b"null"):
            yield f"header {text[:5]!r}", struct.pack("<Q", len(text)) + text + content[8 + length :]
    elif path.suffix == ".json":
        yield from changed_keys(json.loads(content), chance)


def changed_keys(content: Any, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    for key in content if isinstance(content, dict) else ():
        yield f"without {key}", json.dumps({name: value for name, value in content.items() if name != key}).encode()
        for value in VALUES if NIGHTLY else chance.sample(VALUES, 2):
            yield f"{key}: {value!r}", json.dumps(content | {key: value}).encode()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with all its files, a run's configuration, rows and a profile."""
    place = real_runs.inputs(tmp_path_factory.mktemp("inputs"))
    (place / "model" / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (place / "model" / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "do_sample": True}))
    (place / "template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    (place / "run.yaml").write_text("max_steps: 1\nseed: 3\nlearning_rate: 1e-4\nplacement: auto\n")
    return place


FILES = {
    "run.yaml": ["run.yaml"],
    "train.jsonl": [],
    "profile.json": [],
    "template.jinja": ["--chat_template_path", "template.jinja"],
    "model/config.json": [],
    "model/generation_config.json": [],
    "model/tokenizer.json": [],
    "model/tokenizer_config.json": [],
    "model/special_tokens_map.json": [],
    "model/model.safetensors": [],
}
STORED = {
    "spillway/run.json": "resume",
    "config.yaml": "resume",
    "metrics.jsonl": "resume",
    "plan.json": "report",
    "summary.json": "report",
    "spillway/settings.json": "report",
    "spillway/description.json": "report",
    "timeline.json.gz": "report",
    "checkpoint-1/trainer_state.json": "resume",
    "checkpoint-1/config.json": "resume",
    "checkpoint-1/spillway/run.json": "resume",
}
SCRIPT = """
import contextlib, io, json, os, shutil, signal, sys
from pathlib import Path
from spillway.cli import main
told = []
for case in json.loads(Path(sys.argv[1]).read_text()):
    if case["fresh"]:
        shutil.rmtree(case["place"], ignore_errors=True)
        shutil.copytree(case["from"], case["place"])
    file = Path(case["file"])
    before = file.read_bytes()
    file.write_bytes(bytes.fromhex(case["content"]))
    shutil.rmtree(case["out"], ignore_errors=True)
    error = io.StringIO()
    signal.alarm(120)
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        code = main(case["words"])
    signal.alarm(0)
    file.write_bytes(before)
    told.append([case["name"], code, error.getvalue()])
    Path(sys.argv[2]).write_text(json.dumps(told))
"""


def unexplained(cases: list[dict[str, Any]], place: Path) -> list[tuple[str, int, str]]:
    """Damages that end without a sentence, by their exit codes and errors."""
    asked, told = place / "cases.json", place / "told.json"
    asked.write_text(json.dumps(cases))
    (place / "script.py").write_text(SCRIPT)
    process = apart(str(place / "script.py"), str(asked), str(told))
    _, error = process.communicate(timeout=LIMIT)
    outcomes = json.loads(told.read_text()) if told.exists() else []
    assert len(outcomes) == len(cases), (cases[len(outcomes)]["name"], process.returncode, error)
    return [
        (name, code, words[-300:])
        for name, code, words in outcomes
        if "shows where" in words or "Traceback" in words or code not in (0, 1, 2, 3)
    ]


@pytest.mark.parametrize("name", FILES)
def test_damaged_input_is_told_in_a_sentence(inputs: Path, tmp_path: Path, name: str) -> None:
    chance = seeds.instants(name)
    given = Path(shutil.copytree(inputs, tmp_path / "given"))
    file, out = given / name, tmp_path / "out"
    found = list(damages(file, chance))
    keys = [str(given / word) if (given / word).exists() else word for word in FILES[name]]
    command = words(given, out, *keys, *(() if name == "run.yaml" else ("--max_steps", "1")))
    common = {"file": str(file), "out": str(out), "words": command, "fresh": False}
    chosen = found if NIGHTLY else chance.sample(found, min(QUICK, len(found)))
    cases = [{"name": f"{name}: {how}", "content": content.hex(), **common} for how, content in chosen]
    assert unexplained(cases, tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", STORED)
def test_damaged_file_of_a_run_is_told_in_a_sentence(inputs: Path, tmp_path: Path, name: str) -> None:
    whole, place = tmp_path / "whole", tmp_path / "run"
    given = Path(shutil.copytree(inputs, tmp_path / "given"))
    assert real_runs.here(given, whole, "--max_steps", "2", "--save_steps", "1") == 0
    found = damages(whole / name, random.Random(name))
    more = ["--resume_from_checkpoint", str(place / "checkpoint-1")] if "checkpoint-1" in name else []
    common = {
        "file": str(place / name), "out": str(tmp_path / "none"), "words": [STORED[name], str(place), *more],
        "fresh": True, "from": str(whole), "place": str(place),
    }  # fmt: skip
    cases = [{"name": f"{name}: {how}", "content": content.hex(), **common} for how, content in found]
    assert unexplained(cases, tmp_path) == []
