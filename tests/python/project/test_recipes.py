"""Every file of recipes/ as it stands there, but for a small model, its data, the sandbox's places, and a simulated
device instead of a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import distilled
import pairs
import tiny
from folders import REPOSITORY
from needs import package
from real_runs import apart, inputs
from spillway.config.keys import KEYS
from spillway.config.objectives import OBJECTIVES
from spillway.output.records import rows

sys.path.insert(0, str(REPOSITORY / "bench"))
import machines  # noqa: E402

RECIPES = REPOSITORY / "recipes"
SIMULATED = ("--device", "simulated", "--gpu_memory", "512MiB", "--dram_budget", "4GiB")
DATA = {
    **dict.fromkeys(("dpo", "orpo", "cpo", "reward"), "pairs.jsonl"),
    "kto": "judged.jsonl",
    "grpo": "rollouts.jsonl",
    "text-classification": "reviews.jsonl",
    "token-classification": "entities.jsonl",
}
FILES = sorted(RECIPES.glob("*.yaml"))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = inputs(tmp_path_factory.mktemp("given"))
    tiny.jsonl(place / "pairs.jsonl", pairs.texts(9))
    distilled.make_teacher(place / "teacher")
    group = {"prompt_ids": [5, 6], "completion_ids": [[7], [8]], "rewards": [0, 1], "old_logprobs": [[-5], [-6]]}
    tiny.jsonl(place / "rollouts.jsonl", [group] * 8)
    labels = ["negative", 1, "positive"]
    tiny.jsonl(place / "reviews.jsonl", [{**row, "label": labels[i % 3]} for i, row in enumerate(tiny.text_rows(23))])
    tags = ["O", "B-PER", 2, "I-LOC", -100]
    texts = [row["text"].split() for row in tiny.text_rows(23)]
    entities = [{"tokens": words, "ner_tags": [tags[i % 5] for i in range(len(words))]} for words in texts]
    tiny.jsonl(place / "entities.jsonl", entities)
    tiny.jsonl(place / "judged.jsonl", pairs.answers(33))
    return place


def list_storage(content: dict[str, Any]) -> list[str]:
    """Storage paths of a recipe; none where everything fits in memory."""
    storage = content.get("storage", [])
    return storage if isinstance(storage, list) else [storage]


def command(given: Path, place: Path, recipe: Path, *more: str) -> list[str]:
    content = yaml.safe_load(recipe.read_text())
    asked = list_storage(content)
    data = DATA.get(content.get("objective"), "train.jsonl")
    storage = []
    for number, words in enumerate(asked):
        (place / f"drive{number}").mkdir(exist_ok=True)
        options = ",".join(["", "capacity=512MiB", *words.split(",")[1:]])
        storage += ["--storage", f"{place / f'drive{number}'}{options}"]
    device = SIMULATED if content.get("device") == "cuda" else ()
    teacher = ["--teacher", str(given / "teacher")] if "teacher" in content else []
    return [
        "train", str(recipe), "--model", str(given / "model"), "--dataset", str(given / data),
        "--output_dir", str(place / "run"), "--profile", str(given / "profile.json"),
        *storage, *teacher, *device, *more,
    ]  # fmt: skip


def test_the_folder_has_what_its_readme_lists() -> None:
    page = (RECIPES / "README.md").read_text()
    assert len(FILES) == 17
    for path in RECIPES.iterdir():
        assert path.name == "README.md" or f"]({path.name})" in page, path


def test_every_objective_has_a_recipe() -> None:
    named = {yaml.safe_load(path.read_text()).get("objective", "sft") for path in FILES}
    assert named == set(OBJECTIVES)


@pytest.mark.parametrize("recipe", FILES, ids=lambda path: path.stem)
def test_a_recipe_trains(given: Path, tmp_path: Path, recipe: Path) -> None:
    content = yaml.safe_load(recipe.read_text())
    assert content.keys() <= KEYS.keys()
    if content.get("method") == "lora":
        package("peft", "adapters")
    paths = len(list_storage(content))
    keys = ("--placement", "path", "--max_steps", "2") if paths else ("--max_steps", "2")
    process = apart("-m", "spillway", *command(given, tmp_path, recipe, *keys))
    out, errors = process.communicate()
    assert process.returncode == 0, out + errors
    run = tmp_path / "run"
    assert len(list(rows(run / "metrics.jsonl"))) == 2
    plan = json.loads((run / "plan.json").read_text())
    assert len([tier for tier in plan["tiers"] if tier["name"].startswith("path:")]) == paths
    assert plan["durability"] == ("step" if paths else "none")
    assert "device" not in content or any(tier["name"] == "device" for tier in plan["tiers"])
    weights = "adapter_model.safetensors" if content.get("method") == "lora" else "model.safetensors"
    assert (run / weights).is_file()


def test_qlora_recipe_has_the_keys_of_its_planned_step() -> None:
    """docs/how-to/gpu.md has the time of machines.json for this recipe."""
    content = yaml.safe_load((RECIPES / "qlora-24gib.yaml").read_text())
    planned = machines.ROWS | machines.METHODS["QLoRA"]
    assert {key: content[key] for key in planned} == planned
    assert content["gpu_memory"] == "24GiB" and content["model"] == "Qwen/Qwen2.5-7B"
    assert not content.keys() & {"dram_budget", "storage", "placement", "pass_tokens", "token_tile"}
    assert KEYS["lora_dropout"].default_text.startswith(f"{content['lora_dropout']};"), "the value of the plan"


@pytest.mark.nightly
def test_the_loop_starts_a_killed_run_again(given: Path, tmp_path: Path) -> None:
    """By `spillway` as the recipe's loop finds it."""
    words = command(given, tmp_path, RECIPES / "supervised.yaml", "--placement", "path", "--max_steps", "60")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "WAIT": "0",
                   "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # fmt: skip
    with open(tmp_path / "log", "w+") as log:
        loop = subprocess.Popen(
            ["sh", str(RECIPES / "keep-training.sh"), *words[1:]], env=environment, stdout=log, stderr=log, text=True
        )
        metrics = tmp_path / "run" / "metrics.jsonl"
        while loop.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        (child,) = Path(f"/proc/{loop.pid}/task/{loop.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert loop.wait() == 0, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert "spillway ended with 137, starting it again" in said and "going on after step" in said
    assert [row["step"] for row in rows(metrics)] == list(range(1, 61))


def test_the_loop_ends_where_trying_again_changes_nothing(given: Path, tmp_path: Path) -> None:
    for code in (0, 2, 3, 130, 143):
        (tmp_path / "spillway").write_text(f"#!/bin/sh\necho once\nexit {code}\n")
        (tmp_path / "spillway").chmod(0o755)
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        found = subprocess.run(["sh", str(RECIPES / "keep-training.sh")], env=path, capture_output=True, text=True)
        assert (found.returncode, found.stdout) == (code, "once\n")


def test_the_unit_and_the_loop_stop_for_the_same_codes() -> None:
    unit = (RECIPES / "spillway.service").read_text()
    (line,) = (line for line in unit.splitlines() if line.startswith("RestartPreventExitStatus="))
    codes = line.partition("=")[2].split()
    assert f"0 | {' | '.join(codes)})" in (RECIPES / "keep-training.sh").read_text()
