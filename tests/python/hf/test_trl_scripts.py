"""TRL's own scripts with two lines changed: sft.py and dpo.py over versions of TRL and transformers that are supported,
reward.py and grpo.py with the lowest and the installed TRL, and kto.py, which the lowest has among its experiments.

By default with those that are installed; `make trl-versions`, and `make nightly`, try all of VERSIONS, for which they
fetch packages into the build folder. What is found of each is in docs/how-to/trainer.md.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pairs
import real_runs
import tiny
import warm
from folders import REPOSITORY
from needs import needs, package
from test_kto import messages
from test_reward import save_classifier

LIMIT = 1200  # seconds that a script may take at most
TRAINERS = {
    "sft": "SFTTrainer",
    "dpo": "DPOTrainer",
    "kto": "KTOTrainer",
    "reward": "RewardTrainer",
    "grpo": "GRPOTrainer",
}
LOGGED = ("loss", "grad_norm", "num_tokens", "mean_token_accuracy", "rewards/margins", "rewards/accuracies")
LOGGED += ("kl", "logps/chosen", "min_reward", "max_reward", "accuracy", "margin")
LOGGED += ("reward", "reward_std", "completions/mean_length", "clip_ratio/region_mean")
LOGGED += tuple(f"eval_{name}" for name in LOGGED)
ARGUMENTS = """--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --num_train_epochs 2 --learning_rate 1e-3
--logging_steps 1 --eval_strategy epoch --save_strategy epoch --report_to none --use_cpu true --bf16 false
--disable_tqdm true --adam_epsilon 1e-6""".split()
ROWS = ["--max_length", "64", "--dataset_num_proc", "1"]
MORE = {
    "reward": ["--max_length", "256", "--dataset_num_proc", "1"],  # of which longer rows are left out
    "grpo": ["--num_generations", "2", "--max_completion_length", "12", "--reward_funcs", "rewards.reward_fives"],
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("scripts"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    save_classifier(place / "classifier", place / "model")
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "classifier"))
    rows_of = {"sft": tiny.text_rows(11), "dpo": pairs.messages(11), "kto": messages(11), "reward": pairs.messages(11)}
    rows_of["grpo"] = [{"prompt": row["prompt"]} for row in pairs.texts(7)]
    for name, rows in rows_of.items():
        (place / name).mkdir()
        tiny.jsonl(place / name / "train.jsonl", rows)
        tiny.jsonl(place / name / "test.jsonl", rows[:3])
    return place


def lowest(package: str) -> str:
    """The lowest version that pyproject.toml allows."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    allowed = [*project["dependencies"], *project["optional-dependencies"]["trl"]]
    (found,) = (Requirement(words).specifier for words in allowed if Requirement(words).name == package)
    (least,) = (each.version for each in found if each.operator == ">=")
    return ".".join([*least.split("."), "0", "0"][:3])


INSTALLED = "installed"
VERSIONS = {  # of TRL some between whose defaults, scripts or interfaces are others
    "trl": [lowest("trl"), "1.7.0", "1.9.0", INSTALLED],
    "transformers": [lowest("transformers"), INSTALLED],
}
LOWEST = (VERSIONS["trl"][0], INSTALLED)
OTHERS = [found for found in product(*VERSIONS.values()) if found != (INSTALLED, INSTALLED)]
WITH_SCRIPTS = [*product(OTHERS, ("sft", "dpo")), (LOWEST, "reward"), (LOWEST, "grpo")]


def installed() -> Path:
    return Path(package("trl", "TRL is not installed: its scripts stay untried").__file__).parent


def fetched(wanted: str) -> list[Path]:
    """Directories that hold this package, and what it asks for and is installed in another version; fetched once."""
    place = REPOSITORY / "build" / "versions" / re.sub("[^a-z0-9.]+", "-", wanted)
    if not (found := held(place, wanted)):
        command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), wanted]
        done = subprocess.run([sys.executable, *command]).returncode == 0
        needs("trl", done, f"{wanted} cannot be fetched")
        found = held(place, wanted)
    return [place, *(path for words in found[0].requires or () if missing(words) for path in fetched(words))]


def held(place: Path, wanted: str) -> list[Distribution]:
    name = canonicalize_name(Requirement(wanted).name)
    return [each for each in distributions(path=[str(place)]) if canonicalize_name(each.name) == name]


def missing(words: str) -> bool:
    """Whether nothing is installed that will do."""
    wanted = Requirement(words)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return False
    try:
        return not wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:
        return True


def changed(text: str, kind: str, storage: Path) -> str:
    """Another trainer, and the model by `load`."""
    trainer = TRAINERS[kind]
    imported = f"from trl import {trainer}, "
    assert text.count(imported) == 1
    text = text.replace(imported, f"from spillway.hf import {trainer}, load; from trl import ")
    more = ", num_labels=1" if kind == "reward" else ""
    where = f'storage="{storage}", placement="path"'
    loading = f"load(model_args.model_name_or_path, {where}, dtype=model_args.dtype{more})"
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


def losses(given: Path, place: Path, trl: Path, kind: str, streamed: bool, first: list[Path] | None) -> list[Any]:
    """What the script logged. `first`: where its interpreter looks for packages before all else; None: it is one that
    has those that are installed."""
    out = place / ("streamed" if streamed else "plain")
    path = script(trl, kind, place, streamed)
    model = given / ("classifier" if kind == "reward" else "model")
    words = ["--model_name_or_path", model, "--dataset_name", given / kind, "--output_dir", out, *ARGUMENTS]
    words += MORE.get(kind, ROWS)
    places = os.pathsep.join(filter(None, (*map(str, first or []), os.environ.get("PYTHONPATH"))))
    more = {"HF_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": places} if places else {})}
    process = warm.python(path, *words, env={} if first is None else more, cold=first is not None)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error[-3000:]
    log = json.loads((real_runs.last_checkpoint(out) / "trainer_state.json").read_text())["log_history"]
    return [{name: row[name] for name in LOGGED if name in row} for row in log]


def same_before_and_after(given: Path, place: Path, trl: Path, kind: str, first: list[Path] | None) -> None:
    (place / "storage").mkdir()
    before, after = (losses(given, place, trl, kind, streamed, first) for streamed in (False, True))
    assert len(before) == len(after) == 8
    for one, other in zip(after, before, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


def test_dpo_before_and_after(given: Path, tmp_path: Path) -> None:
    same_before_and_after(given, tmp_path, installed(), "dpo", None)


@pytest.mark.nightly
def test_sft_before_and_after(given: Path, tmp_path: Path) -> None:
    same_before_and_after(given, tmp_path, installed(), "sft", [])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["kto", "reward", "grpo"])
def test_answers_and_rewards_before_and_after(given: Path, tmp_path: Path, kind: str) -> None:
    same_before_and_after(given, tmp_path, installed(), kind, [])


@pytest.mark.nightly
@pytest.mark.parametrize(("trl", "transformers", "kind"), [(*each, kind) for each, kind in WITH_SCRIPTS])
def test_at_other_versions(given: Path, tmp_path: Path, trl: str, transformers: str, kind: str) -> None:
    wanted = {"trl": trl, "transformers": transformers}
    words = [f"{name}=={version}" for name, version in wanted.items() if version != INSTALLED]
    first = [path for each in words for path in fetched(each)]
    same_before_and_after(given, tmp_path, installed() if trl == INSTALLED else first[0] / "trl", kind, first)
