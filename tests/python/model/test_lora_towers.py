"""Adapters beside a trained projector and vision tower: equal to PEFT with `modules_to_save`, saved in its files, and
resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import native
import real_runs
from both_ways import TOLERANCE, load, save
from breadth import some
from image_models import image_config, image_directory
from image_training import run_loop
from needs import package
from spillway.config import checks, resolve
from spillway.errors import InputError
from spillway.model.adapters.lora import ADAPTER
from spillway.model.batches.batch import Batch
from spillway.model.meta.text_tower import tower_name
from test_trained_towers import BOTH, PROJECTOR, SIZES, TOWER, WORDS, draw_steps, train_streamed

peft = package("peft", "LoRA is PEFT's")
SEED = 5  # native's
KEYS = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": ["q_proj"]}
LORA = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "8", "--lora_target_modules", "q_proj"]
PARTS = {
    "gemma3": {"projector": ["multi_modal_projector"], "both": ["multi_modal_projector", "vision_tower"]},
    "qwen2_5_vl": {"projector": ["merger"], "both": ["visual"]},
}
CASES = [(kind, part) for kind, parts in PARTS.items() for part in parts]


def train_by_peft(directory: Path, work: list[list[Batch]], modules: list[str]) -> tuple[list[float], list[float], Any]:
    """Losses, gradient norms and the model of a plain loop."""
    model = load(directory).train()
    text = rf"(?!{re.escape(tower_name(model) or '')}\.).*"
    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "exclude_modules": text}
    torch.manual_seed(SEED)
    adapted = peft.get_peft_model(model, peft.LoraConfig(modules_to_save=modules, **asked))
    learning = [(name, each) for name, each in adapted.named_parameters() if each.requires_grad]
    losses, norms = run_loop(adapted, learning, [each.dim() > 1 for _, each in learning], work)
    return losses, norms, adapted


@pytest.mark.parametrize(("kind", "part"), some(CASES, [("gemma3", "projector"), ("qwen2_5_vl", "both")]))
def test_steps_equal_peft_with_modules_to_save(kind: str, part: str, tmp_path: Path) -> None:
    """Losses, gradient norms, adapters and the trained parts, in a file that PEFT reads."""
    save(image_config(kind), tmp_path / "model", 7)
    work = draw_steps(kind, 6)
    losses, norms, notices = train_streamed(tmp_path, work, PROJECTOR if part == "projector" else BOTH, **KEYS)
    assert "trained" in notices[0]
    expected, expected_norms, plain = train_by_peft(tmp_path / "model", work, PARTS[kind][part])
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    assert norms == pytest.approx(expected_norms, rel=10 * TOLERANCE)
    plain.save_pretrained(tmp_path / "expected")
    ours, other = (load_file(tmp_path / name / ADAPTER) for name in ("saved", "expected"))
    assert ours.keys() == other.keys()
    for name, tensor in other.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    read = peft.PeftModel.from_pretrained(load(tmp_path / "model"), tmp_path / "saved").eval()
    batch = work[0][0]
    with torch.no_grad():
        logits = [model(input_ids=batch.input_ids, **(batch.images or {})).logits for model in (read, plain.eval())]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-3)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp("gemma3"), "gemma3")
    native.profile(place)
    return place


def test_killed_resumed_and_continued(given: Path, tmp_path: Path) -> None:
    """State and half of the weights lie on a path. A new run begins with the saved parts, too."""
    more = [*SIZES, *WORDS, *LORA]
    assert real_runs.here(given, tmp_path / "whole", *more, "--placement", "dram") == 0
    keys = [*more, *real_runs.on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    real_runs.kill_after("commit", real_runs.words(given, tmp_path / "out", *keys), calls=3)
    assert real_runs.here(given, tmp_path / "out", *keys) == 0
    ours, other = (load_file(tmp_path / name / ADAPTER) for name in ("out", "whole"))
    assert ours.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in ours.items())
    assert any("vision_tower" in name for name in ours) and any("projector" in name for name in ours)
    again = [*more, "--lora_adapter", str(tmp_path / "whole"), "--learning_rate", "0", "--placement", "dram"]
    assert real_runs.here(given, tmp_path / "again", *again) == 0
    same = load_file(tmp_path / "again" / ADAPTER)
    assert same.keys() == ours.keys() and all(torch.equal(value, ours[name]) for name, value in same.items())


@pytest.mark.parametrize("keys", [TOWER, PROJECTOR], ids=str)
def test_a_base_of_few_bits_is_refused(keys: dict[str, bool], tmp_path: Path) -> None:
    values = {"model": str(tmp_path), "dataset": "rows.jsonl", "device": "cpu", "method": "lora", **keys}
    with pytest.raises(InputError, match="freeze_.*: with load_in_4bit or load_in_8bit it has to stay true"):
        checks.check_method(resolve({}, {**values, "load_in_4bit": True}, "test"))
