"""TRL's own scripts sft.py and dpo.py with two lines changed, at both ends of the versions that are supported."""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pairs
import real_runs
import tiny
import warm
from needs import needs, package

ROOT = Path(__file__).parents[2]
LIMIT = 400  # seconds that a script may take at most
TRAINERS = {"sft": "SFTTrainer", "dpo": "DPOTrainer"}
LOGGED = ("loss", "grad_norm", "eval_loss", "rewards/margins", "rewards/accuracies", "eval_rewards/margins")
ARGUMENTS = """--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --num_train_epochs 2 --learning_rate 1e-3
--logging_steps 1 --max_length 64 --eval_strategy epoch --save_strategy epoch --report_to none --use_cpu true
--bf16 false --disable_tqdm true --dataset_num_proc 1 --adam_epsilon 1e-6""".split()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("scripts"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    for name, rows in (("sft", tiny.text_rows(11)), ("dpo", pairs.messages(11))):
        (place / name).mkdir()
        tiny.jsonl(place / name / "train.jsonl", rows)
        tiny.jsonl(place / name / "test.jsonl", rows[:3])
    return place


def lowest() -> str:
    """The lowest version of TRL that pyproject.toml allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["trl"]
    parts = re.fullmatch(r"trl>=([0-9.]+)", extras[0])[1].split(".")  # type: ignore[index]
    return ".".join([*parts, "0", "0"][:3])


def installed() -> Path:
    return Path(package("trl", "TRL is not installed: its scripts stay untried").__file__).parent


@pytest.fixture(scope="module")
def lowest_trl() -> Path:
    """Its package, fetched once into the build folder."""
    place = ROOT / "build" / f"trl-{lowest()}"
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), f"trl=={lowest()}"]
    fetched = (place / "trl").is_dir() or subprocess.run([sys.executable, *command]).returncode == 0
    needs("trl", fetched, f"TRL {lowest()} cannot be fetched")
    return place / "trl"


def changed(text: str, kind: str, storage: Path) -> str:
    """Another trainer, and the model by `load`."""
    trainer = TRAINERS[kind]
    imported = f"from trl import {trainer}, "
    assert text.count(imported) == 1
    text = text.replace(imported, f"from spillway.hf import {trainer}, load; from trl import ")
    loading = f'load(model_args.model_name_or_path, storage="{storage}", placement="path", dtype=model_args.dtype)'
    if f"trainer = {trainer}(\n        model=model_args.model_name_or_path," in text:  # since TRL 1.1
        return text.replace("model=model_args.model_name_or_path,", f"model={loading},")
    before = r"model = AutoModelForCausalLM\.from_pretrained\(\s*model_args\.model_name_or_path,[^()]*\)"
    assert len(re.findall(before, text)) == 1
    return re.sub(before, lambda _: f"model = {loading}", text)


def script(package_directory: Path, kind: str, place: Path, streamed: bool) -> Path:
    plain = (package_directory / "scripts" / f"{kind}.py").read_text()
    text = changed(plain, kind, place / "storage") if streamed else plain
    new = [line for line in difflib.ndiff(plain.splitlines(), text.splitlines()) if line.startswith("+ ")]
    assert len(new) == (2 if streamed else 0)
    path = place / f"{kind}_{'streamed' if streamed else 'plain'}.py"
    path.write_text(text)
    return path


def losses(given: Path, place: Path, trl: Path, kind: str, streamed: bool, cold: bool) -> list[dict[str, Any]]:
    """What the script logged; `cold`: by an interpreter that finds this TRL first."""
    out = place / ("streamed" if streamed else "plain")
    path = script(trl, kind, place, streamed)
    words = ["--model_name_or_path", given / "model", "--dataset_name", given / kind, "--output_dir", out, *ARGUMENTS]
    first = os.pathsep.join(filter(None, (str(trl.parent), os.environ.get("PYTHONPATH"))))
    more = {"PYTHONPATH": first, "HF_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
    process = warm.python(path, *words, env=more if cold else {}, cold=cold)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error[-3000:]
    log = json.loads((real_runs.last_checkpoint(out) / "trainer_state.json").read_text())["log_history"]
    return [{name: row[name] for name in LOGGED if name in row} for row in log]


def same_before_and_after(given: Path, place: Path, trl: Path, kind: str, cold: bool) -> None:
    (place / "storage").mkdir()
    before, after = (losses(given, place, trl, kind, streamed, cold) for streamed in (False, True))
    assert len(before) == len(after) == 8
    for one, other in zip(after, before, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


def test_dpo_before_and_after(given: Path, tmp_path: Path) -> None:
    same_before_and_after(given, tmp_path, installed(), "dpo", cold=False)


@pytest.mark.nightly
def test_sft_before_and_after(given: Path, tmp_path: Path) -> None:
    same_before_and_after(given, tmp_path, installed(), "sft", cold=True)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_at_the_lowest_version(given: Path, lowest_trl: Path, tmp_path: Path, kind: str) -> None:
    same_before_and_after(given, tmp_path, lowest_trl, kind, cold=True)
