"""Runs that would end in their last save, or in their first long row, are refused before their first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
from both_ways import save
from needs import package
from small_configs import small_config
from spillway.config.resolve import unknown_key
from spillway.errors import InputError

KINDS_OF_TABLES = ["gpt2", "opt", "gptj", "ctrl", "roberta"]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return real_runs.inputs(tmp_path / "given")


def read_refusal(inputs: Path, out: Path, capfd: pytest.CaptureFixture[str], *more: str, verb: str = "train") -> str:
    """The message of a refusal with exit code 2, which leaves nothing of the run."""
    capfd.readouterr()
    assert real_runs.here(inputs, out, *more, verb=verb) == 2
    assert not out.exists()
    return " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("verb", ["train", "plan"])
@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"eos_token_id": 2, "num_return_sequences": 4}, "num_return_sequences"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"cache_implementation": "none of these"}, "cache_implementation"),
        ({"early_stopping": "perhaps"}, "early_stopping"),
    ],
)
def test_generation_config_that_cannot_be_saved_is_refused(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], content: dict[str, Any], key: str, verb: str
) -> None:
    (inputs / "model" / "generation_config.json").write_text(json.dumps(content))
    error = read_refusal(inputs, tmp_path / "out", capfd, verb=verb)
    assert str(inputs / "model" / "generation_config.json") in error and key in error


def test_generation_config_that_transformers_saves_with_a_warning_is_kept(inputs: Path, tmp_path: Path) -> None:
    content = {"temperature": 0.7, "do_sample": False, "eos_token_id": 2}
    (inputs / "model" / "generation_config.json").write_text(json.dumps(content))
    assert real_runs.here(inputs, tmp_path / "out", "--max_steps", "1") == 0
    saved = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert saved["temperature"] == 0.7 and saved["eos_token_id"] == 2


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_tokenizer_that_cannot_be_saved_is_refused(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    from transformers import PreTrainedTokenizerFast

    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("Object of type AddedToken is not JSON serializable")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
    error = read_refusal(inputs, tmp_path / "out", capfd, verb=verb)
    assert f"tokenizer: {inputs / 'model'}: a save would fail" in error and "AddedToken" in error


def test_weights_survive_a_save_that_fails_in_the_files_beside_them(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer can be saved when the run begins, and cannot when it ends."""
    from transformers import PreTrainedTokenizerFast

    save_pretrained, calls = PreTrainedTokenizerFast.save_pretrained, iter([True])

    def fail_later(*positional: Any, **more: Any) -> Any:
        if next(calls, False):
            return save_pretrained(*positional, **more)
        raise TypeError("no tokenizer today")

    assert real_runs.here(inputs, tmp_path / "whole", "--max_steps", "2") == 0
    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail_later)
    out = tmp_path / "out"
    assert real_runs.here(inputs, out, "--max_steps", "2") == 1
    error = " ".join(capfd.readouterr().err.split())
    assert f"the weights of step 2 alone are saved in {out}" in error
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert (out / "config.json").is_file()


def test_trainer_refuses_files_that_it_could_not_save(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation configuration when the model is loaded, or changed since then; a tokenizer that is handed in."""
    package("accelerate", "transformers' Trainer needs accelerate")
    from test_trainer import loaded, streamed

    path = inputs / "model" / "generation_config.json"
    path.write_text(json.dumps({"num_return_sequences": 4}))
    with pytest.raises(InputError, match="generation_config.json.*num_return_sequences"):
        loaded(inputs)
    path.unlink()
    trainer = streamed(inputs, tmp_path / "out", max_steps=1)
    trainer.model.generation_config.num_return_sequences = 4
    with pytest.raises(InputError, match="generation_config: a save would fail.*num_return_sequences"):
        trainer.train()
    trainer.model.generation_config.num_return_sequences = 1

    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("no tokenizer today")

    trainer.processing_class = tiny.tokenizer()
    monkeypatch.setattr(type(trainer.processing_class), "save_pretrained", fail)
    with pytest.raises(InputError, match="processing_class: a save would fail.*no tokenizer today"):
        trainer.train()
    assert not list((tmp_path / "out").glob("*"))
    monkeypatch.undo()
    trainer.train()
    monkeypatch.setattr(type(trainer.processing_class), "save_pretrained", fail)
    with pytest.raises(TypeError):
        trainer.save_model()
    trainer.close()
    (weights,) = (tmp_path / "out").glob("weights-of-step-1/model.safetensors")
    assert weights.stat().st_size and (weights.parent / "config.json").is_file()


def write_model_with_positions(inputs: Path, kind: str, count: int) -> None:
    """Replaces the model by one of this type, with positions for about `count` tokens."""
    for name in ("config.json", "model.safetensors"):
        (inputs / "model" / name).unlink()
    config = small_config(kind, vocab_size=len(tiny.tokenizer()))
    key = next(name for name in ("n_positions", "max_position_embeddings") if name in config.to_dict())
    setattr(config, key, count)
    save(config, inputs / "model", 7)


@pytest.mark.parametrize("verb", ["train", "plan"])
@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_rows_beyond_the_positions_of_a_model_are_refused(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, verb: str
) -> None:
    write_model_with_positions(inputs, kind, 40)
    tiny.jsonl(inputs / "train.jsonl", [{"text": " ".join(tiny.SENTENCES)}, *tiny.text_rows(3)])
    limit = 39 if kind == "roberta" else 40  # the first row of RoBERTa's table is for padding
    error = read_refusal(inputs, tmp_path / "out", capfd, "--max_length", "64", verb=verb)
    assert "max_length: there is a row of 64 tokens" in error and f"positions for {limit}" in error
    assert ": 40 in its config.json" in error and f"--max_length {limit}" in error
    if verb == "train":
        assert real_runs.here(inputs, tmp_path / "out", "--max_length", str(limit), "--max_steps", "1") == 0


def test_max_length_beyond_the_positions_is_allowed_with_short_rows(inputs: Path, tmp_path: Path) -> None:
    """The key is a bound on rows, and its default is longer than many tables."""
    write_model_with_positions(inputs, "gpt2", 40)
    tiny.jsonl(inputs / "train.jsonl", [{"text": "A row."}] * 5)
    assert real_runs.here(inputs, tmp_path / "out", "--max_length", "1024", "--max_steps", "1") == 0


def test_held_out_rows_beyond_the_positions_of_a_model_are_refused(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_model_with_positions(inputs, "gpt2", 40)
    tiny.jsonl(inputs / "train.jsonl", [{"text": "A row."}] * 5)
    tiny.jsonl(inputs / "held_out.jsonl", [{"text": " ".join(tiny.SENTENCES)}])
    error = read_refusal(inputs, tmp_path / "out", capfd, "--eval_dataset", str(inputs / "held_out.jsonl"))
    assert "positions for 40" in error


def test_quantised_weights_are_refused_with_every_method(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = inputs / "model" / "config.json"
    config = json.loads(path.read_text())
    for settings, name in (
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, fp4"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
    ):
        path.write_text(json.dumps({**config, "quantization_config": settings}))
        for method in ("full", "lora"):
            error = read_refusal(inputs, tmp_path / "out", capfd, "--method", method)
            assert f"quantised ({name})" in error and "unquantised release" in error and "load_in_4bit" in error
            assert "full fine-tuning" not in error


def list_fields_of_trainers() -> set[str]:
    from dataclasses import fields

    from peft import LoraConfig
    from transformers import TrainingArguments
    from trl import DPOConfig, SFTConfig

    return {field.name for each in (TrainingArguments, SFTConfig, DPOConfig, LoraConfig) for field in fields(each)}


def test_keys_of_other_trainers_get_no_spelling_suggestion() -> None:
    from spillway.config.aliases import ALIASES
    from spillway.config.keys import KEYS

    package("peft", "its LoraConfig is walked")
    package("trl", "its configurations are walked")
    for name in list_fields_of_trainers() - KEYS.keys() - set(ALIASES):
        assert "did you mean" not in unknown_key(name), unknown_key(name)
    for name, words in (("use_qalora", "are LoRA"), ("modules_to_save", "trainable"), ("loftq_config", "PEFT")):
        assert words in unknown_key(name) and "PEFT" in unknown_key(name)
    assert "lora_target_parameters" in unknown_key("target_parameters")
    assert "lora_rank_pattern" in unknown_key("rank_pattern")
    assert "did you mean 'learning_rate'" in unknown_key("learning_rte")
