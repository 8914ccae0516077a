"""Recorded completions in each form that rows have them, and TRL's GRPOTrainer in memory over the same records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tiny
from needs import package

GROUP = 4
MICRO_BATCH, ACCUMULATION = 4, 2
STEP = MICRO_BATCH * ACCUMULATION


def ids(groups: int, model: Any, group: int = GROUP) -> list[dict[str, Any]]:
    """Groups of tokens as a policy near `model` sampled them. Each fifth completion does not end, and one group has
    equal rewards."""
    drawn = random.Random(5)
    tokenizer = tiny.tokenizer()
    rows = []
    for number in range(groups):
        prompt = tokenizer(f"{number}: {tiny.SENTENCES[number % 8]}")["input_ids"][:12]
        completions = []
        for place in range(group):
            words = " ".join(drawn.sample(tiny.SENTENCES, 1 + place % 2))
            end = [] if (number * group + place) % 5 == 0 else [tokenizer.eos_token_id]
            completions.append(tokenizer(" " + words)["input_ids"][: drawn.randint(3, 30)] + end)
        rewards = [1.0] * group if number == 1 else [round(drawn.uniform(-1, 2), 3) for _ in range(group)]
        rows.append({"prompt_ids": prompt, "completion_ids": completions, "rewards": rewards})
    for row in rows:
        row["old_logprobs"] = [
            [value + drawn.gauss(0, 0.2) for value in log_probabilities(model, row["prompt_ids"], completion)]
            for completion in row["completion_ids"]
        ]
    return rows


def log_probabilities(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
    tokens = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        found = model(tokens).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return [float(row[token]) for row, token in zip(found, completion, strict=True)]


def in_memory(given: Path, out: Path, rows: list[dict[str, Any]], model: Any = None, **more: Any) -> Any:
    """TRL's, trained and saved in `out`. It scores and scales rewards itself; what it would generate is recorded."""
    trl, datasets = package("trl", "TRL is not installed"), package("datasets", "TRL needs datasets")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    by_prompt = {str(number): row for number, row in enumerate(rows)}

    def taken(prompts: list[str], name: str) -> list[Any]:
        seen: dict[str, int] = dict.fromkeys(by_prompt, 0)
        found = []
        for prompt in prompts:
            found.append(by_prompt[prompt][name][seen[prompt]])
            seen[prompt] += 1
        return found

    class Recorded(trl.GRPOTrainer):  # type: ignore[misc,name-defined]
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            found = super()._generate_and_score_completions(inputs)
            old = torch.zeros(found["completion_ids"].shape)
            for row, values in enumerate(taken([each["prompt"] for each in inputs], "old_logprobs")):
                old[row, : len(values)] = torch.tensor(values)
            return {**found, "old_per_token_logps": old}

    def roll_out(prompts: list[str], _: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [by_prompt[prompt]["prompt_ids"] for prompt in prompts],
            "completion_ids": taken(prompts, "completion_ids"),
            "logprobs": None,
        }

    with mock.patch("trl.trainer.grpo_trainer.shuffle_sequence_dict", lambda batch: batch):
        trainer = Recorded(
            model=model or AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32"),
            reward_funcs=lambda prompts, **_: taken(prompts, "rewards"),
            args=arguments(out, **more),
            train_dataset=datasets.Dataset.from_list([{"prompt": name} for name in by_prompt]),
            processing_class=AutoTokenizer.from_pretrained(given / "model"),
            rollout_func=roll_out,
        )
        trainer.train()
    trainer.save_model()
    return trainer


def arguments(out: Path, **more: Any) -> Any:
    import trl

    return trl.GRPOConfig(
        **{
            "output_dir": str(out), "per_device_train_batch_size": MICRO_BATCH, "num_generations": GROUP,
            "gradient_accumulation_steps": ACCUMULATION, "max_steps": 20, "learning_rate": 1e-3,
            "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "bf16": False,
            "disable_tqdm": True, "gradient_checkpointing": False, "shuffle_dataset": False, "adam_epsilon": 1e-4,
            **more,
        }
    )  # fmt: skip
