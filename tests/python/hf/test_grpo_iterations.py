"""TRL's GRPOTrainer with `num_iterations`, `steps_per_generation` and `eval_dataset` over a streamed model: equal to
itself in memory, and resumed between the steps that train on completions of the same generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rollouts
from breadth import some
from durable_trainers import SAVES, expect_resumed_bits
from needs import package
from spillway.base.documents import read_json
from spillway.errors import InputError
from spillway.integrations import reused_completions
from test_grpo import close, same_weights
from test_grpo_trainer import STEPS, Watched, given, in_memory, storage_keys, streamed
from test_trainer_durable import Fails

__all__ = ["given"]  # a fixture

REUSED = {"num_iterations": 2, "learning_rate": 5e-2}
PARTS = {"steps_per_generation": 2 * rollouts.ACCUMULATION, "learning_rate": 5e-2}
BOTH = {**PARTS, **REUSED}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 4}


def logged(trainer: Any, name: str) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if name in row]


def same_log(ours: Any, plain: Any) -> None:
    """All figures of steps and evaluations, but for those of time."""
    for name in ("loss", "eval_loss"):
        found, expected = logged(ours, name), logged(plain, name)
        assert len(found) == len(expected) > 0
        for one, row in zip(found, expected, strict=True):
            other = {key: value for key, value in row.items() if value is not None}
            assert one.keys() == other.keys()
            timed = {key for key in other if key.endswith(("_time", "_runtime", "_per_second"))}
            for key in other.keys() - timed:
                assert close(one[key], other[key]), (one["step"], key, one[key], other[key])


def test_iterations_and_evaluations_equal_trl_in_memory(given: Path, tmp_path: Path) -> None:
    """Old log-probabilities are those of the step that sampled; an evaluation samples completions of its own."""
    more = {**REUSED, **EVALUATED}
    ours, theirs = Watched(), Watched()
    plain = in_memory(given, tmp_path / "plain", more, theirs)
    trainer = streamed(given, tmp_path / "ours", more, ours, dtype="float32", **storage_keys(tmp_path / "storage"))
    trainer.train()
    trainer.save_model()
    assert ours.tokens == theirs.tokens
    assert len(ours.tokens) == STEPS // 2 * rollouts.STEP + 2 * 3 * rollouts.GROUP
    same_log(trainer, plain)
    same_weights(*(tmp_path / way / "model.safetensors" for way in ("ours", "plain")))
    reused = logged(plain, "loss")[1::2]
    assert all("reward" not in row for row in reused) and any(row["clip_ratio/region_mean"] > 0 for row in reused)


CASES: dict[str, dict[str, Any]] = {
    "parts": PARTS,
    "both": {"generation_batch_size": 2 * rollouts.STEP, **REUSED},
    "grpo": {**PARTS, "loss_type": "grpo", "mask_truncated_completions": True},
    "three parts": {**PARTS, "steps_per_generation": 3 * rollouts.ACCUMULATION, "loss_type": "bnpo"},
}


@pytest.mark.parametrize("case", some(list(CASES), ["parts", "both"]))
def test_steps_of_one_generation_equal_trl_in_memory(given: Path, tmp_path: Path, case: str) -> None:
    """Steps after the first compare with the log-probabilities of the weights that sampled."""
    more = {**CASES[case], **EVALUATED}
    ours, theirs = Watched(), Watched()
    plain = in_memory(given, tmp_path / "plain", more, theirs)
    trainer = streamed(given, tmp_path / "ours", more, ours, dtype="float32", **storage_keys(tmp_path / "storage"))
    trainer.train()
    trainer.save_model()
    assert ours.tokens == theirs.tokens
    same_log(trainer, plain)
    same_weights(*(tmp_path / way / "model.safetensors" for way in ("ours", "plain")))
    rows = logged(plain, "loss")
    assert "reward" in rows[0] and "reward" not in rows[1]
    assert any(row["clip_ratio/region_mean"] > 0 for row in rows)


@pytest.mark.parametrize("reuse", [REUSED, PARTS], ids=["iterations", "parts"])
def test_adapters_keep_the_reference_of_a_generation(given: Path, tmp_path: Path, reuse: dict[str, Any]) -> None:
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **asked))
    more = {**reuse, **EVALUATED, "beta": 0.04, "loss_type": "grpo"}
    plain = in_memory(given, tmp_path / "plain", more, Watched(), model=adapted)
    keys = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": asked["target_modules"]}
    trainer = streamed(given, tmp_path / "ours", more, Watched(), dtype="float32", lora_dropout=0.0, **keys)
    trainer.train()
    trainer.save_model()
    same_log(trainer, plain)
    same_weights(*(tmp_path / way / "adapter_model.safetensors" for way in ("ours", "plain")))
    assert any(row["kl"] > 1e-4 for row in logged(plain, "loss"))


# With PARTS an epoch has four steps, of which the first process makes the last one, or goes on inside the next.
REUSES = [(3, REUSED), (4, REUSED), (5, REUSED), (5, PARTS), (6, PARTS), (6, BOTH), (7, BOTH)]


@pytest.mark.parametrize(("step", "reuse"), some(REUSES, [(5, REUSED), (6, PARTS), (7, BOTH)]))
def test_durable_steps_go_on_inside_a_generation(given: Path, tmp_path: Path, step: int, reuse: dict[str, Any]) -> None:
    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        return streamed(given, out, {**SAVES, **reuse, **EVALUATED, "max_steps": 8}, **keys)

    expect_resumed_bits(tmp_path, open_trainer, step)


def test_a_checkpoint_has_the_completions_with_it(given: Path, tmp_path: Path) -> None:
    more = {**REUSED, "save_strategy": "steps", "save_steps": 3}
    whole = streamed(given, tmp_path / "whole", more, dtype="float32")
    whole.train()
    whole.save_model()
    cut = streamed(given, tmp_path / "cut", more, dtype="float32")
    cut.add_callback(Fails("on_step_end", 4))
    with pytest.raises(RuntimeError, match="as a test asked"):
        cut.train()
    cut.close()
    own, kept = (place / "spillway" / "rollouts.json" for place in (tmp_path / "cut", tmp_path / "cut/checkpoint-3"))
    assert read_json(kept)["step"] == 2
    own.unlink()
    resumed = streamed(given, tmp_path / "cut", more, dtype="float32")
    resumed.train(resume_from_checkpoint=True)
    resumed.save_model()
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    resumed.close()
    own.unlink()
    kept.write_text(json.dumps({"format": 1, "step": 0, "batches": []}))
    refused = streamed(given, tmp_path / "cut", more, dtype="float32")
    with pytest.raises(InputError, match="num_iterations: step 4 trains on the completions of step 3"):
        refused.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-3"))


BATCH = {"tokens": 2, "input_ids": [[1, 2]], "labels": [[-100, 2]], "lengths": None, "reference": None, "old": [-0.5],
         "advantages": [1.0]}  # fmt: skip


def write_batch(path: Path, **more: Any) -> Path:
    path.write_text(json.dumps({"format": 1, "step": 2, "batches": [BATCH | more]}))
    return path


def test_damaged_completions_count_as_none(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    stored = reused_completions.read(write_batch(path))
    assert stored is not None and stored.batches[0].labels.tolist() == [[-100, 2]]
    damages: list[dict[str, Any]] = [
        {"tokens": float("inf")}, {"input_ids": [[2**70]]}, {"labels": [{}]}, {"advantages": [[1], [1, 2]]},
        {"old": "none"},
    ]  # fmt: skip
    for damaged in damages:
        assert reused_completions.read(write_batch(path, **damaged)) is None, damaged
