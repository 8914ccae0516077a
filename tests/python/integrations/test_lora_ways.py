"""Adapters in the other ways in: under transformers' Trainer and TRL's, and in a module of one's own in a Session."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import real_runs
import spillway
import tiny
from breadth import some
from needs import package
from spillway.errors import InputError
from spillway.hf import StreamedTraining, Trainer
from spillway.model.adapters.lora import ADAPTER, ADAPTER_CONFIG
from test_own import VOCABULARY, Mixed, plain_step, saved, session, steps
from test_trainer import StopAfter, loaded, logged, parts, same_rows

peft = package("peft", "LoRA is PEFT's")
package("accelerate", "transformers' Trainer needs accelerate")
ASKED = {
    "method": "lora",
    "lora_r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "lora_target_modules": ["q_proj", "up_proj"],
}
SEED = 42  # of TrainingArguments
NO_ZEROS = {"adam_epsilon": 1e-4}  # Adam divides by the root of what may be zero but for rounding


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("lora_ways"))


def asked(**more: Any) -> Any:
    return peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, **more)


def in_memory(given: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(SEED)
    return peft.get_peft_model(model, asked(target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM"))


def same_adapters(ours: Path, plain: Path) -> None:
    one, other = load_file(ours / ADAPTER), load_file(plain / ADAPTER)
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert one[name].dtype == tensor.dtype
        assert float((one[name] - tensor).abs().max()) <= 1e-5 * float(tensor.abs().max()), name


@pytest.mark.parametrize("where", some(["dram", "path"], ["path"]))
def test_under_the_trainer_equal_to_peft_in_memory(given: Path, tmp_path: Path, where: str) -> None:
    """Two epochs with accumulation, remainders, decay, clipping and evaluations."""
    more = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4, **NO_ZEROS}
    plain = transformers.Trainer(model=in_memory(given), **parts(given, tmp_path / "plain", **more))
    ours = Trainer(
        model=loaded(given, tmp_path / "storage" if where == "path" else None, **ASKED),
        **parts(given, tmp_path / "ours", **more),
    )
    for trainer in (plain, ours):
        trainer.train()
        trainer.save_model()
    ours.close()
    same_rows(ours, plain)
    same_adapters(tmp_path / "ours", tmp_path / "plain")
    for place in ("ours", "ours/checkpoint-4"):
        expected = {path.name for path in (tmp_path / place.replace("ours", "plain")).iterdir() if path.is_file()}
        found = {path.name for path in (tmp_path / place).iterdir() if path.is_file()}
        assert expected - found <= {"optimizer.pt", "README.md"} and found <= expected
    base = AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32)
    ids = torch.arange(3, 20)[None]
    tuned = peft.PeftModel.from_pretrained(base, tmp_path / "ours")(ids).logits
    torch.testing.assert_close(tuned, plain.model(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("only_model", [False, True], ids=["with state", "adapters alone"])
def test_the_trainer_resumes_adapters(given: Path, tmp_path: Path, only_model: bool) -> None:
    """Bit by bit with the state; from the adapters alone as the stock Trainer does, whose moments begin anew, too."""
    more = {"save_strategy": "steps", "save_steps": 3, "save_only_model": only_model, **NO_ZEROS}

    def twice(make: Any, out: Path) -> Any:
        first = make(out)
        first.add_callback(StopAfter(5))
        first.train()
        if make is streamed:
            first.close()
        second = make(out)
        second.train(resume_from_checkpoint=str(out / "checkpoint-3"))
        second.save_model()
        return second

    def streamed(out: Path) -> Trainer:
        return Trainer(model=loaded(given, tmp_path / f"{out.name}-storage", **ASKED), **parts(given, out, **more))

    def stock(out: Path) -> transformers.Trainer:
        return transformers.Trainer(model=in_memory(given), **parts(given, out, **more))

    ours = twice(streamed, tmp_path / "ours")
    if only_model:
        same_rows(ours, twice(stock, tmp_path / "plain"))
        same_adapters(tmp_path / "ours", tmp_path / "plain")
        return
    ours.close()
    whole = streamed(tmp_path / "whole")
    whole.train()
    whole.save_model()
    whole.close()
    assert logged(ours) == logged(whole)
    assert (tmp_path / "ours" / ADAPTER).read_bytes() == (tmp_path / "whole" / ADAPTER).read_bytes()


def test_the_best_adapters_come_back(given: Path, tmp_path: Path) -> None:
    more = {
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.3,
        "load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True,
    }  # fmt: skip
    ours = Trainer(model=loaded(given, **ASKED), **parts(given, tmp_path / "ours", **more))
    ours.train()
    ours.save_model()
    best = Path(ours.state.best_model_checkpoint)
    assert ours.state.best_global_step < ours.state.global_step
    assert (tmp_path / "ours" / ADAPTER).read_bytes() == (best / ADAPTER).read_bytes()


def test_under_trls_sft_trainer(given: Path, tmp_path: Path) -> None:
    trl = package("trl", "TRL is not installed: its SFTTrainer stays untried")
    datasets = package("datasets", "TRL needs datasets")

    class Streamed(StreamedTraining, trl.SFTTrainer):  # type: ignore[misc, name-defined]
        pass

    data = datasets.Dataset.from_list([{"text": row["text"]} for row in tiny.text_rows(14)])

    def arguments_of(name: str) -> Any:
        return trl.SFTConfig(
            output_dir=str(tmp_path / name), per_device_train_batch_size=2, gradient_accumulation_steps=2,
            num_train_epochs=1, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none",
            max_length=48, use_cpu=True, bf16=False, disable_tqdm=True, gradient_checkpointing=False, **NO_ZEROS,
        )  # fmt: skip

    with pytest.raises(InputError, match="peft_config: load.. was called with method='lora'; leave one"):
        Streamed(
            model=loaded(given, **ASKED), args=arguments_of("no"), train_dataset=data,
            processing_class=tiny.tokenizer(), peft_config=asked(),
        )  # fmt: skip
    trainers = {}
    for name, kind, model in (
        ("plain", trl.SFTTrainer, in_memory(given)), ("ours", Streamed, loaded(given, **ASKED)),
    ):  # fmt: skip
        trainers[name] = kind(
            model=model, args=arguments_of(name), train_dataset=data, processing_class=tiny.tokenizer()
        )
        trainers[name].train()
        trainers[name].save_model()
    same_rows(trainers["ours"], trainers["plain"])
    same_adapters(tmp_path / "ours", tmp_path / "plain")


def test_what_is_refused(given: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lora_r: it is for method lora"):
        loaded(given, lora_r=4)
    with pytest.raises(InputError, match="frozen: with method lora"):
        loaded(given, **ASKED, frozen="mlp")
    with pytest.raises(InputError, match=r"model: it was given to PEFT; .*method=\"lora\""):
        Trainer(model=peft.get_peft_model(loaded(given), asked()), **parts(given, tmp_path / "out"))
    changed = loaded(given, **ASKED)
    changed.model.embed_tokens.requires_grad_(True)
    with pytest.raises(InputError, match="requires_grad of model.embed_tokens.weight was changed"):
        Trainer(model=changed, **parts(given, tmp_path / "out")).train()
    more = {"save_strategy": "steps", "save_steps": 1, "save_only_model": True, "max_steps": 1}
    transformers.Trainer(model=in_memory(given), **parts(given, tmp_path / "plain", **more)).train()
    other = Trainer(model=loaded(given, **{**ASKED, "lora_r": 2}), **parts(given, tmp_path / "out"))
    with pytest.raises(InputError, match=r"lora_r, lora_target_modules: .* has \[4, 16\] for .*lora_A"):
        other.train(resume_from_checkpoint=str(tmp_path / "plain/checkpoint-1"))


@pytest.mark.parametrize("where", some(["dram", "path"], ["path"]))
def test_in_a_module_of_ones_own(tmp_path: Path, where: str) -> None:
    """Five steps beside PEFT around the same module in a plain loop; its files are read by PEFT."""
    build, targets = partial(Mixed, 32, 5), ["mixed", "up"]
    blocks = spillway.Blocks(build, partial(Mixed, 16, 2), "body.blocks", "body.words", "head")
    place = saved(build, tmp_path / "weights")
    base = build()
    base.load_state_dict(load_file(place / "model.safetensors"))
    torch.manual_seed(9)
    plain = peft.get_peft_model(base, asked(target_modules=targets))
    optimizer = torch.optim.AdamW(
        [p for p in plain.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0, eps=1e-4
    )
    (tmp_path / "storage").mkdir()
    more = {"storage": [f"{tmp_path / 'storage'},capacity=64MiB"], "placement": "path"} if where == "path" else {}
    keys = {**ASKED, "lora_target_modules": targets, "seed": 9, **more}
    with session(blocks, place, **keys) as ours:
        for step in steps(5):
            assert ours.step(step)["loss"] == pytest.approx(plain_step(plain, optimizer, step), rel=1e-5)
        ours.save(tmp_path / "ours")
    plain.save_pretrained(tmp_path / "plain")
    same_adapters(tmp_path / "ours", tmp_path / "plain")
    again = build()
    again.load_state_dict(load_file(place / "model.safetensors"))
    tuned = peft.PeftModel.from_pretrained(again, tmp_path / "ours")
    ids = torch.randint(0, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(tuned(ids)[0], plain(ids)[0], rtol=1e-4, atol=1e-5)
    assert (tmp_path / "ours" / ADAPTER_CONFIG).is_file()
    with pytest.raises(InputError, match="lora_target_modules: "):
        session(blocks, place, **{**keys, "lora_target_modules": []})
