"""`spillway merge` of adapters beside a trained vision tower and projector: the bits of PEFT's merge, in a model that
transformers loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import native
import real_runs
from both_ways import save, tensors
from breadth import some
from image_models import PROCESSORS, image_config, image_directory
from needs import package
from spillway.cli import main
from test_lora_towers import LORA
from test_merge import IN_MEMORY, STREAMED, run_limited
from test_towers import loaded
from test_trained_towers import SIZES, WORDS, is_projector

peft = package("peft", "LoRA is PEFT's")
PARTS = {"both": WORDS, "projector": WORDS[2:], "tower": WORDS[:2]}
CASES = [(kind, part) for kind in PROCESSORS for part in PARTS]
CHOSEN = [("gemma3", "both"), ("qwen2_5_vl", "projector"), ("qwen3_vl", "both"), ("llava", "tower")]


@pytest.mark.parametrize(("kind", "part"), some(CASES, CHOSEN))
def test_a_trained_tower_merges_to_the_bits_of_peft(kind: str, part: str, tmp_path: Path) -> None:
    given, out, merged = image_directory(tmp_path, kind), tmp_path / "out", tmp_path / "merged"
    native.profile(given)
    words = [*SIZES, *PARTS[part], *LORA, "--learning_rate", "1e-2", "--placement", "dram"]
    assert real_runs.here(given, out, *words) == 0
    assert main(["merge", str(out), "--to", str(merged)]) == 0
    model = peft.PeftModel.from_pretrained(loaded(given / "model", torch.bfloat16), out).merge_and_unload()
    found = loaded(merged, torch.bfloat16).state_dict()
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    before, after = tensors(given / "model"), tensors(merged)
    assert after.keys() == before.keys()
    changed = {name for name, value in before.items() if not torch.equal(after[name], value.to(after[name].dtype))}
    assert any(map(is_projector, changed)) == (part != "tower")
    apart = [name for name in changed if ("vision" in name or "visual" in name) and not is_projector(name)]
    assert bool(apart) == (part != "projector")


def save_large(given: Path, base: Path) -> int:
    """A model whose text is small and whose tower is large, with a tokenizer. Returns its bytes."""
    config = image_config("gemma3")
    for name, value in {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 16}.items():
        setattr(config.vision_config, name, value)
    save(config, base, 7)
    for path in (given / "model").glob("tokenizer*"):
        shutil.copyfile(path, base / path.name)
    return (base / "model.safetensors").stat().st_size


def save_by_peft(base: Path, directory: Path) -> Path:
    """Adapters beside a tower that PEFT has trained, as its user leaves them."""
    torch.manual_seed(3)
    whole = ["vision_tower", "multi_modal_projector"]
    asked = peft.LoraConfig(r=4, target_modules=["q_proj"], exclude_modules=".*vision.*", modules_to_save=whole)
    model = peft.get_peft_model(loaded(base), asked)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)
    return directory


def test_a_trained_tower_is_merged_in_a_part_of_its_memory(tmp_path: Path) -> None:
    """In a process that may take a quarter of the model's bytes besides, where merging in memory does not fit."""
    given, base, to, warm = image_directory(tmp_path, "gemma3"), *(tmp_path / name for name in ("base", "to", "warm"))
    free = save_large(given, base) // 4
    adapters = save_by_peft(base, tmp_path / "adapters")
    small = tmp_path / "small"
    shutil.copytree(given / "model", small)
    shutil.copytree(save_by_peft(small, tmp_path / "small-adapters"), warm)
    code, said = run_limited(STREAMED, warm, free, "merge", adapters, "--to", to)
    assert code == 0, said
    expected = peft.PeftModel.from_pretrained(loaded(base), adapters).merge_and_unload().state_dict()
    found = loaded(to).state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], value) for name, value in expected.items())
    in_memory = IN_MEMORY.replace("AutoModelForCausalLM", "AutoModelForImageTextToText")
    code, said = run_limited(in_memory, warm, free, base, adapters)
    assert code == 1 and "allocate memory" in said, said
