"""Adapters on experts in the other ways in: transformers' Trainer, TRL's SFTTrainer with a LoraConfig, a Session with
transformers' own model, and one with experts of a module's own, each a linear layer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

import both_ways
import real_runs
import spillway
import tiny
from needs import package
from spillway.errors import InputError
from spillway.hf import StreamedTraining, Trainer
from test_lora_ways import NO_ZEROS, SEED, same_adapters
from test_own import VOCABULARY, Block, plain_step, saved, session, steps
from test_quantised_experts import rounded_as
from test_trainer import loaded, parts, same_rows

peft = package("peft", "LoRA is PEFT's")
package("accelerate", "transformers' Trainer needs accelerate")
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
RANKS = {"rank_pattern": {"experts.down_proj": 2}, "alpha_pattern": {"q_proj": 5}}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = real_runs.inputs(tmp_path_factory.mktemp("expert_ways"))
    both_ways.replace_model(directory / "model", "qwen3_moe")
    return directory


def asked(**more: Any) -> Any:
    options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "target_parameters": EXPERTS, **RANKS}
    return peft.LoraConfig(**{**options, "task_type": "CAUSAL_LM", **more})


def base(given: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32)


def adapted(given: Path) -> Any:
    model = base(given)
    torch.manual_seed(SEED)
    return peft.get_peft_model(model, asked())


def test_expert_adapters_under_the_trainer_equal_peft_in_memory(given: Path, tmp_path: Path) -> None:
    more = {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 3, **NO_ZEROS}
    plain = transformers.Trainer(model=adapted(given), **parts(given, tmp_path / "plain", **more))
    model = loaded(given, tmp_path / "storage", peft_config=asked())
    ours = Trainer(model=model, **parts(given, tmp_path / "ours", **more))
    for trainer in (plain, ours):
        trainer.train()
        trainer.save_model()
    ours.close()
    same_rows(ours, plain)
    same_adapters(tmp_path / "ours", tmp_path / "plain")
    ids = torch.arange(3, 20)[None]
    tuned = peft.PeftModel.from_pretrained(base(given), tmp_path / "ours")(ids).logits
    torch.testing.assert_close(tuned, plain.model(ids).logits, rtol=1e-4, atol=1e-5)


def test_sft_trainer_puts_the_adapters_of_a_peft_config_on_experts(given: Path, tmp_path: Path) -> None:
    trl = package("trl", "TRL is not installed: its SFTTrainer stays untried")
    datasets = package("datasets", "TRL needs datasets")

    class Streamed(StreamedTraining, trl.SFTTrainer):  # type: ignore[misc, name-defined]
        pass

    data = datasets.Dataset.from_list([{"text": row["text"]} for row in tiny.text_rows(14)])
    trainers = {}
    for name, kind, model in (("plain", trl.SFTTrainer, base(given)), ("ours", Streamed, loaded(given))):
        arguments = trl.SFTConfig(
            output_dir=str(tmp_path / name), per_device_train_batch_size=2, gradient_accumulation_steps=2,
            num_train_epochs=1, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none",
            max_length=48, use_cpu=True, bf16=False, disable_tqdm=True, gradient_checkpointing=False, **NO_ZEROS,
        )  # fmt: skip
        torch.manual_seed(SEED)  # the plain one draws its adapters when it is made
        trainers[name] = kind(
            model=model, args=arguments, train_dataset=data, processing_class=tiny.tokenizer(), peft_config=asked()
        )
        trainers[name].train()
        trainers[name].save_model()
    same_rows(trainers["ours"], trainers["plain"])
    same_adapters(tmp_path / "ours", tmp_path / "plain")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"use_dora": True}, "use_dora: adapters of lora_target_parameters"),
        ({"lora_bias": True}, "lora_bias=True is not taken: adapters are LoRA, rsLoRA or DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=.* is not taken: .*trains only adapters"),
        ({"init_lora_weights": "gaussian"}, "init_lora_weights='gaussian' is not taken: adapters start"),
        ({"target_modules": ".*q_proj"}, "target_modules='.*q_proj' is not taken: .*ends of their names"),
        ({"rank_pattern": {"o_proj": 2}}, "lora_rank_pattern: o_proj names no layer with an adapter"),
        ({"lora_dropout": 0.1}, "lora_dropout: it is 0.1"),
        (peft.PromptTuningConfig(), "PromptTuningConfig is not taken: expects peft.LoraConfig"),
    ],
)
def test_a_peft_config_with_more_than_adapters_is_refused(config: Any, said: str, given: Path) -> None:
    wanted = asked(**config) if isinstance(config, dict) else config
    with pytest.raises(InputError, match=said):
        loaded(given, peft_config=wanted)
    with pytest.raises(InputError, match=said):
        Trainer(model=loaded(given), peft_config=wanted)


def test_a_session_trains_adapters_on_experts_as_peft_does(given: Path, tmp_path: Path) -> None:
    plain = adapted(given)
    optimizer = torch.optim.AdamW(
        [p for p in plain.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0, eps=1e-4
    )
    keys = {
        "method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["q_proj"], "seed": SEED,
        "lora_target_parameters": EXPERTS, "lora_rank_pattern": RANKS["rank_pattern"],
        "lora_alpha_pattern": RANKS["alpha_pattern"], "model": str(given / "model"), "compute_dtype": "fp32",
        "profile": str(given / "profile.json"), "learning_rate": 1e-3, "lr_scheduler_type": "constant",
        "max_length": 24, "per_device_train_batch_size": 2, "adam_epsilon": 1e-4, "gradient_accumulation_steps": 2,
        "storage": [f"{tmp_path},capacity=64MiB"], "placement": "path",
    }  # fmt: skip
    with spillway.Session(**keys) as ours:
        for step in steps(5):
            expected = plain_step(plain, optimizer, step)
            assert ours.step(step)["loss"] == pytest.approx(expected, rel=1e-5)
        ours.save(tmp_path / "ours")
    plain.save_pretrained(tmp_path / "plain")
    same_adapters(tmp_path / "ours", tmp_path / "plain")


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.up(hidden)))


class Mixture(nn.Module):
    """Two of three experts for each token, one module each, as older code has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Block(width, 2)
        self.gate = nn.Linear(width, 3, bias=False)
        self.experts = nn.ModuleList([Expert(width) for _ in range(3)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.attention(hidden)
        flat = hidden.flatten(0, 1)
        shares, chosen = self.gate(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(flat[rows]) * shares[rows, place, None])
        return hidden + out.view_as(hidden)


class Model(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList([Mixture(width) for _ in range(depth)])
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        hidden = self.words(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden), None


@pytest.mark.parametrize("form", [None, "load_in_4bit"])
def test_adapters_on_experts_that_are_modules_equal_peft(form: str | None, tmp_path: Path) -> None:
    """Each expert a module with linear layers, of which some have another rank; on a path, in 4 bits too."""
    build, targets = partial(Model, 32, 3), ["up", "down", "experts.1.up"]
    blocks = spillway.Blocks(build, partial(Model, 32, 2), "layers", "words", "head")
    place = saved(build, tmp_path / "weights")
    model = build()
    model.load_state_dict(load_file(place / "model.safetensors"))
    if form is not None:
        round_linears(model)
    torch.manual_seed(9)
    ranks = {"rank_pattern": {"experts.1.up": 2, "layers.0.*down": 6}, "alpha_pattern": {"experts.2.down": 3}}
    plain = peft.get_peft_model(
        model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, use_rslora=True, **ranks)
    )
    optimizer = torch.optim.AdamW(
        [p for p in plain.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0, eps=1e-4
    )
    keys: dict[str, Any] = {
        "method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": targets, "seed": 9,
        "use_rslora": True, "lora_rank_pattern": ranks["rank_pattern"], "lora_alpha_pattern": ranks["alpha_pattern"],
        "storage": [f"{tmp_path},capacity=64MiB"], "placement": "path", **({form: True} if form else {}),
    }  # fmt: skip
    with session(blocks, place, **keys) as ours:
        for step in steps(5):
            assert ours.step(step)["loss"] == pytest.approx(plain_step(plain, optimizer, step), rel=1e-5)
        ours.save(tmp_path / "ours")
    plain.save_pretrained(tmp_path / "plain")
    same_adapters(tmp_path / "ours", tmp_path / "plain")
    assert any("experts.2.down.lora_A" in name for name in load_file(tmp_path / "ours" / "adapter_model.safetensors"))


def round_linears(model: nn.Module) -> None:
    """In place, to what NF4 makes of the linear layers inside the blocks."""
    with torch.no_grad():
        for name, module in model.get_submodule("layers").named_modules():
            if isinstance(module, nn.Linear) and not name.endswith("gate"):
                module.weight.copy_(rounded_as(module.weight, "nf4"))
