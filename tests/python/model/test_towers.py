"""Multimodal checkpoints trained on text: the tower of text as plain PyTorch trains it in the library's own class, and
every other tensor as it was. For all types, killed and resumed, see scripts/sweep_models.py."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DataCollatorForLanguageModeling, PreTrainedModel, TrainingArguments

import real_runs
import tiny
from both_ways import compare, compare_adapters, replace_model, save, tensors
from breadth import some
from folders import REPOSITORY
from hf_models import random_ids
from needs import package
from small_configs import small_config
from spillway.cli import main
from spillway.model.meta.building import build
from spillway.model.source.source import auto_class

KINDS = {
    "gemma3": "other names in files, a tied head",
    "gemma4": "the table's padding row read where an image would be",
    "qwen3_5": "linear attention, a table of its own for the head",
    "qwen2_5_vl": "positions of time, height and width",
    "mistral3": "a projector with a norm",
    "llama4": "experts, apart in files",
    "qwen3_5_moe": "experts beside linear attention",
    "kimi_k25": "one tensor in files for three of another tower",
    "molmo2": "types of tokens asked for while it trains",
    "nemotron_h_omni": "a whole causal language model inside, whose head it is",
}
REPRESENTATIVES = ("gemma3", "llama4", "molmo2")
PROJECTIONS = {"kimi_k25": ["q_b_proj", "kv_b_proj"]}  # else q_proj and v_proj
KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)


def carried(directory: Path) -> set[str]:
    """Names of parameters that are not trained, as the model has them."""
    return set(build(AutoConfig.from_pretrained(directory), torch.float32).carried_names)


def loaded(directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    made: PreTrainedModel = auto_class(AutoConfig.from_pretrained(directory)).from_pretrained(directory, dtype=dtype)
    return made.eval()


def same_but_for_the_tower(ours: Path, began: Path) -> None:
    """Nothing outside of the tower of text has changed by a bit; something inside has."""
    apart, one, two = carried(began), loaded(ours), loaded(began)
    before = dict(two.named_parameters())
    changed = {name for name, value in one.named_parameters() if not torch.equal(value, before[name])}
    assert apart and changed and not changed & apart


@pytest.mark.parametrize("kind", some(KINDS, REPRESENTATIVES))
def test_equals_a_plain_loop_over_the_same_class(kind: str, tmp_path: Path) -> None:
    compare(small_config(kind), tmp_path)
    same_but_for_the_tower(tmp_path / "saved", tmp_path / "model")


@pytest.mark.parametrize("kind", some(KINDS, ("gemma3",)))
def test_adapters_of_the_tower_are_pefts(kind: str, tmp_path: Path) -> None:
    package("peft", "adapters are PEFT's")
    compare_adapters(small_config(kind), tmp_path, PROJECTIONS.get(kind, ["q_proj", "v_proj"]))
    names = tensors(tmp_path / "saved")
    assert names and all("language_model" in name for name in names)


@pytest.fixture(scope="module", params=some(KINDS, ("gemma3",)))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    real_runs.inputs(place)
    model = place / "model"
    replace_model(model, request.param)
    (model / "preprocessor_config.json").write_text('{"size": 28}')
    return place


@pytest.fixture(scope="module")
def whole(given: Path) -> Path:
    """Four steps without an interruption, in DRAM; a checkpoint after two."""
    assert run(given, given / "whole", "--placement", "dram", "--save_steps", "2") == 0
    return given / "whole"


def run(given: Path, out: Path, *more: str, verb: str = "train") -> int:
    words = ["--max_length", "32", "--max_steps", "4", "--lr_scheduler_type", "constant", *more]
    return real_runs.here(given, out, *words, verb=verb)


def test_what_is_saved_is_the_whole_checkpoint(given: Path, whole: Path) -> None:
    model = loaded(whole, torch.bfloat16)
    model.save_pretrained(given / "again")
    again, saved, began = tensors(given / "again"), tensors(whole), tensors(given / "model")
    assert saved.keys() == again.keys() == began.keys()
    tower = {name for name, value in saved.items() if value.dtype == torch.bfloat16}
    assert all(torch.equal(saved[name], began[name]) for name in saved.keys() - tower)  # fp32 in the checkpoint
    assert saved.keys() - tower and len(tower) > 10
    assert (whole / "preprocessor_config.json").read_text() == '{"size": 28}'
    found, expected = (json.loads((place / "config.json").read_text()) for place in (whole, given / "again"))
    assert found == expected
    generated = model.generate(random_ids(1, 4, 3, 3), max_new_tokens=3, do_sample=False)
    assert generated.shape == (1, 7)


def test_killed_resumed_under_a_budget_and_exported(given: Path, whole: Path, tmp_path: Path) -> None:
    keys = ["--max_length", "32", "--max_steps", "4", "--lr_scheduler_type", "constant", "--save_steps", "2"]
    keys += [*real_runs.on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    words = real_runs.words(given, tmp_path / "out", *keys)
    process = real_runs.apart("-c", KILLED, *words, env_more={"DIES_AFTER": "0.02"})
    _, error = process.communicate(timeout=300)
    assert process.returncode in (0, -14), error
    assert real_runs.here(given, tmp_path / "out", *keys, "--dram_budget", "4GiB") == 0
    same_files(tmp_path / "out", whole)
    assert main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "alone")]) == 0
    same_files(tmp_path / "alone", whole)


def test_adapters_of_the_tower_merge_to_the_bits_of_peft(given: Path, tmp_path: Path) -> None:
    peft = package("peft", "adapters are PEFT's")
    targets = PROJECTIONS.get(AutoConfig.from_pretrained(given / "model").model_type, ["q_proj", "v_proj"])
    adapted = [word for name in targets for word in ("--lora_target_modules", name)]
    out, merged = tmp_path / "out", tmp_path / "merged"
    assert run(given, out, "--method", "lora", "--lora_r", "4", "--learning_rate", "1e-2", *adapted) == 0
    assert main(["merge", str(out), "--to", str(merged)]) == 0
    assert (merged / "preprocessor_config.json").read_text() == '{"size": 28}'
    model = peft.PeftModel.from_pretrained(loaded(given / "model", torch.bfloat16), out).merge_and_unload()
    found = loaded(merged, torch.bfloat16).state_dict()
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    before = loaded(given / "model", torch.bfloat16).state_dict()
    changed = {name for name, value in before.items() if not torch.equal(found[name], value)}
    assert changed and all(name.removesuffix(".weight").endswith(tuple(targets)) for name in changed)


def working() -> list[str]:
    """Every multimodal type that the table of the reference says works."""
    pages = (REPOSITORY / "docs/reference/models.md").read_text()
    table = pages.partition("## Works on text")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("kind", some(working(), ("qwen3_vl",)))
def test_each_type_by_the_command_line(kind: str, tmp_path: Path) -> None:
    """In bf16, compared with plain PyTorch."""
    real_runs.inputs(tmp_path)
    replace_model(tmp_path / "model", kind)
    assert run(tmp_path, tmp_path / "out", "--compute_dtype", "bf16", "--learning_rate", "1e-4", verb="check") == 0
    assert run(tmp_path, tmp_path / "whole", "--placement", "dram") == 0
    if carried(tmp_path / "model"):  # some classes have no other tower by default
        same_but_for_the_tower(tmp_path / "whole", tmp_path / "model")


def test_several_files_are_written_once(
    given: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a large model has them: the engine's, and those of what is carried along."""
    monkeypatch.setattr("spillway.model.checkpoint.files.MAX_SHARD", 50_000)
    assert run(given, tmp_path / "out", "--placement", "dram") == 0
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    found = tensors(tmp_path / "out")
    assert index["weight_map"].keys() == found.keys()
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in found.values())
    assert set(index["weight_map"].values()) == {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    same_files(tmp_path / "out", whole)
    same_but_for_the_tower(tmp_path / "out", given / "model")


def test_gone_back_to_a_checkpoint(given: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    words = ["--save_steps", "2", "--placement", "dram"]
    assert run(given, tmp_path / "out", *words, "--resume_from_checkpoint", str(tmp_path / "out/checkpoint-2")) == 0
    same_files(tmp_path / "out", whole)


def same_files(ours: Path, other: Path) -> None:
    one, two = tensors(ours), tensors(other)
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) and value.dtype == two[name].dtype for name, value in one.items())


LORA, LSP = ["--method", "lora", "--lora_target_modules"], ["--method", "lsp", "--lsp_modules"]


@pytest.mark.parametrize("more", [[], pytest.param(LORA, marks=pytest.mark.nightly), LSP])
def test_checked_against_plain_pytorch_by_the_command_line(given: Path, more: list[str], tmp_path: Path) -> None:
    if "lora" in more:
        package("peft", "adapters are PEFT's")
    kind = json.loads((given / "model/config.json").read_text())["model_type"]
    modules = PROJECTIONS.get(kind, ["q_proj"])[:1] if more else []
    words = ["--compute_dtype", "fp32", "--placement", "dram", *more, *modules]
    assert real_runs.here(given, tmp_path / "out", "--max_length", "32", *words, verb="check") == 0


def test_patterns_see_the_names_of_the_checkpoint(given: Path, tmp_path: Path) -> None:
    """As its files have them; of two layers one learns."""
    names, others = tensors(given / "model"), "vision|visual"
    own = re.compile(r".*\.(layers|blocks)\.1\.")  # kimi_k25's are saved as blocks
    layer = min(found[0] for name in names if not re.search(others, name) and (found := own.match(name)))
    words = ["--placement", "dram", "--compute_dtype", "fp32", "--frozen", others]
    assert run(given, tmp_path / "out", *words, "--trainable", f"^{re.escape(layer)}") == 0
    saved = tensors(tmp_path / "out")
    changed = {name for name, value in saved.items() if not torch.equal(value, names[name])}
    assert changed and all(name.startswith(layer) for name in changed)


def test_what_is_carried_along_cannot_learn(given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    apart = min(carried(given / "model"))
    assert run(given, tmp_path / "out", "--trainable", f"^{re.escape(apart)}$") == 2
    said = capfd.readouterr().err
    assert "trainable:" in said and "matches only what belongs to other modalities than text" in said
    assert not (tmp_path / "out").exists()


ROWS: dict[str, dict[str, Any]] = {
    "the column 'video' holds something": {"text": "What is it?", "video": "boat.mp4"},
    "a message has a part of type 'audio'": {
        "messages": [{"role": "user", "content": [{"type": "audio", "url": "a"}, {"type": "text", "text": "b"}]}]
    },
}


@pytest.mark.parametrize("said", ROWS)
def test_videos_and_audio_are_refused_by_name(
    given: Path, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tiny.jsonl(tmp_path / "rows.jsonl", [ROWS[said], ROWS[said]])
    assert run(given, tmp_path / "out", "--dataset", str(data)) == 2
    error = capfd.readouterr().err
    assert f"{data}:1: {said}" in error and "a multimodal model is trained on" in error
    assert not (tmp_path / "out").exists()


def test_a_placeholder_is_refused_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    real_runs.inputs(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).unlink()
    config = small_config("gemma3", vocab_size=len(tiny.tokenizer()))
    config.image_token_id = tiny.tokenizer().convert_tokens_to_ids("q")
    save(config, tmp_path / "model", 7)
    assert run(tmp_path, tmp_path / "out") == 2
    assert f"the token 'q' ({config.image_token_id}) stands for an image" in capfd.readouterr().err


def test_a_checkpoint_without_the_other_tensors_is_refused(
    given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(given / "model", tmp_path / "model")
    held = load_file(tmp_path / "model/model.safetensors")
    gone = next(name for name in held if re.search(r"(vision|visual).*weight$", name))  # no buffer
    held.pop(gone)
    save_file(held, tmp_path / "model/model.safetensors", {"format": "pt"})
    assert run(given, tmp_path / "out", "--model", str(tmp_path / "model"), "--placement", "dram") == 2
    assert "is missing; it is not trained, but every checkpoint is to hold it" in capfd.readouterr().err


def test_random_weights_are_refused(given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """There would be none of the other towers."""
    assert run(given, tmp_path / "out", "--init", "random", "--placement", "dram") == 2
    assert "init: random draws the tower of text alone" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_transformers_trainer_over_a_streamed_tower(given: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer, load

    tokenizer = tiny.tokenizer()
    rows = [dict(tokenizer(row["text"], truncation=True, max_length=32)) for row in tiny.text_rows(6)]
    values: dict[str, Any] = {"per_device_train_batch_size": 2, "max_steps": 2, "save_strategy": "no"}
    values |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "learning_rate": 1e-3}
    model = load(given / "model", dtype="float32", placement="dram", profile=str(given / "profile.json"))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(tmp_path / "out"), **values),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    trainer.close()
    same_but_for_the_tower(tmp_path / "saved", given / "model")
