"""The model that `load` returns can be called, generates and is saved through its Trainer. Other calls are refused."""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel, TrainerCallback, pipeline

import real_runs
import tiny
from needs import package
from spillway.errors import InputError
from spillway.hf import load
from spillway.integrations.keywords import translate
from test_trainer import loaded, logged, streamed

package("accelerate", "transformers' Trainer needs accelerate")
IDS = torch.tensor([[5, 6, 7, 8, 9]])
NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
PLAIN = ("cls", "pretrained_model_name_or_path")
ASKED = {"max_new_tokens": 4, "do_sample": False}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("loaded_model"))


class GenerationCallback(TrainerCallback):
    """Generates after the second step. In the middle of a step `generate` is refused."""

    def on_substep_end(self, args: Any, state: Any, control: Any, model: Any = None, **named: Any) -> None:
        with pytest.raises(InputError, match="in the middle of a step"):
            model.generate(IDS, **ASKED)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **named: Any) -> None:
        if state.global_step == 2:
            self.text = model.generate(IDS, **ASKED)
            model.save_pretrained(Path(args.output_dir) / "second")


def load_saved(place: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)


def test_model_generates_in_callbacks_metrics_and_after_training(inputs: Path, tmp_path: Path) -> None:
    callback, generated = GenerationCallback(), []
    ours = streamed(inputs, tmp_path / "ours", max_steps=3, learning_rate=0.03)
    ours.compute_metrics = lambda config: generated.append(ours.model.generate(IDS, **ASKED)) or {}
    ours.add_callback(callback)
    before = ours.model(IDS).logits  # logits of the loaded weights
    with torch.no_grad():
        torch.testing.assert_close(before, load_saved(inputs / "model")(IDS).logits, rtol=1e-4, atol=1e-5)
    ours.train()
    ours.evaluate()
    after = ours.model.generate(IDS, **ASKED)
    ours.model.save_pretrained(tmp_path / "saved")
    plain, second = load_saved(tmp_path / "saved"), load_saved(tmp_path / "ours" / "second")
    assert after.tolist() == plain.generate(IDS, **ASKED).tolist() == generated[0].tolist()
    assert callback.text.tolist() == second.generate(IDS, **ASKED).tolist()
    padded = torch.tensor([[0, 0, 5, 6, 7], [5, 6, 7, 8, 9]])
    both = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1] * 5]), "pad_token_id": 0, **ASKED}
    assert ours.model.generate(padded, **both).tolist() == plain.generate(padded, **both).tolist()
    our_pipeline = pipeline("text-generation", model=ours.model, tokenizer=tiny.tokenizer(), device="cpu")
    plain_pipeline = pipeline("text-generation", model=plain, tokenizer=tiny.tokenizer(), device="cpu")
    assert our_pipeline("the", **ASKED) == plain_pipeline("the", **ASKED)
    for call, words in (
        (lambda: ours.model.state_dict(), "trainer.save_model"),
        (lambda: ours.model(IDS, labels=IDS), "trainer.evaluate"),
        (lambda: ours.model(torch.ones(9, 99, dtype=torch.int64)), "max_length"),
        (lambda: ours.model.half(), "load.*dtype"),
        (lambda: ours.model.to("cuda"), "load.*device"),
        (lambda: ours.model.save_pretrained(tmp_path / "no", push_to_hub=True), "TrainingArguments"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert ours.model.to("cpu") is ours.model.cpu() is ours.model
    ours.close()
    with pytest.raises(InputError, match="it was closed"):
        ours.model.generate(IDS, **ASKED)


def test_generation_leaves_training_bit_identical(inputs: Path, tmp_path: Path) -> None:
    plain, ours = (streamed(inputs, tmp_path / name, max_steps=3) for name in ("plain", "ours"))
    ours.add_callback(GenerationCallback())
    for trainer in (plain, ours):
        trainer.train()
        trainer.close()
    assert logged(ours) == logged(plain)


def test_model_without_a_trainer_names_the_trainer_to_use(inputs: Path) -> None:
    model = loaded(inputs)
    plain = AutoModelForCausalLM.from_pretrained(inputs / "model")
    assert type(model).__name__ == type(plain).__name__ and type(model).__module__ == type(plain).__module__
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    for each in (model, copy.deepcopy(model)):
        for call in (lambda: each(IDS), lambda: each.generate(IDS, **ASKED), lambda: each.save_pretrained("x")):  # noqa: B023
            with pytest.raises(InputError, match="give it to spillway.hf.Trainer first"):
                call()


# ---- keywords of from_pretrained


def test_dtype_auto_is_that_of_the_checkpoint(inputs: Path) -> None:
    config = load(inputs / "model", dtype="auto", placement="dram").spillway_origin.config
    expected = {torch.float32: "fp32", torch.bfloat16: "bf16"}[load_saved(inputs / "model").config.dtype]
    assert config.compute_dtype == expected


@pytest.mark.parametrize(
    ("keywords", "keys"),
    [
        ({"torch_dtype": torch.float32}, {"dtype": torch.float32}),
        ({"torch_dtype": "auto", "dtype": "auto"}, {"dtype": "auto"}),
        ({"attn_implementation": "sdpa", "low_cpu_mem_usage": True, "trust_remote_code": False}, {}),
        ({"use_cache": False, "use_safetensors": True, "cache_dir": None, "token": None}, {}),
        ({"device_map": "auto"}, {}),
        ({"device_map": {"": 0}}, {"device": "cuda:0"}),
        ({"device_map": "cpu", "revision": "main"}, {"device": "cpu", "model_revision": "main"}),
        (
            {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                       bnb_4bit_compute_dtype="bfloat16")},
            {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "dtype": torch.bfloat16},
        ),
        ({"quantization_config": {"load_in_8bit": True}}, {"load_in_8bit": True}),
    ],
)  # fmt: skip
def test_keywords_of_from_pretrained_become_keys(keywords: dict[str, Any], keys: dict[str, Any]) -> None:
    assert translate(keywords) == keys


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"attn_implementation": "flash_attention_2"},
            'attn_implementation=.*flash_attention_2.* is not taken.*"sdpa"',
        ),
        ({"device_map": "balanced"}, "device_map.*`dram_budget`"),
        ({"device_map": {"model.layers.0": 0, "lm_head": "cpu"}}, "device_map"),
        ({"max_memory": {0: "8GiB"}}, "max_memory.*`gpu_memory`"),
        ({"trust_remote_code": True}, "trust_remote_code=True"),
        ({"cache_dir": "/tmp/x"}, "cache_dir.*HF_HUB_CACHE"),
        ({"token": "hf_x"}, "token.*HF_TOKEN"),
        ({"use_cache": True}, "use_cache=True"),
        ({"offload_folder": "x"}, "offload_folder.*`storage`"),
        ({"variant": "fp16"}, "variant"),
        ({"torch_dtype": "float32", "dtype": "bfloat16"}, "torch_dtype says 'float32', and dtype says 'bfloat16'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config of gptq.*load_in_4bit"),
        ({"dtype": "float8_e4m3fn"}, "dtype: float8"),
        ({"save_steps": 2}, "save_steps is not the model's; give it to TrainingArguments"),
        ({"eval_steps": 2}, "eval_steps is not the model's; give it to TrainingArguments"),
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type is not the model's; give it to TrainingArguments"),
        ({"save_whole_steps": 2}, "save_whole_steps is a key of `spillway train`; without durability"),
        ({"completion_only_loss": False}, "completion_only_loss is a key of `spillway train`; give the Trainer rows"),
    ],
)
def test_other_keywords_of_from_pretrained_are_refused_with_what_to_write(
    inputs: Path, keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        load(inputs / "model", **keywords)


def test_every_keyword_of_from_pretrained_is_taken_or_refused_by_name() -> None:
    """The keywords come from the signatures and sources of the installed library."""
    calls = [AutoModelForCausalLM.from_pretrained.__func__, PreTrainedModel.from_pretrained.__func__]
    keywords = {
        name
        for call in calls
        for name, kind in inspect.signature(call).parameters.items()
        if kind.kind in NAMED and name not in PLAIN
    }
    keywords |= {
        name for call in calls for name in re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(call))
    }
    keywords = {name for name in keywords if not name.startswith("_")}
    assert {"cache_dir", "variant", "device_map", "attn_implementation"} <= keywords
    for name in sorted(keywords - {"dtype", "torch_dtype", "revision"}):
        with pytest.raises(InputError, match=rf"{name}.* is not taken"):
            translate({name: "something"})


# ---- values of resume_from_checkpoint


@pytest.mark.parametrize("durable", [False, True])
def test_output_dir_stands_for_its_newest_checkpoint(inputs: Path, tmp_path: Path, durable: bool) -> None:
    out, more = tmp_path / "out", {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    (tmp_path / "storage").mkdir()

    def train_and_log(resume: Any, **keys: Any) -> Any:
        from spillway.hf import Trainer as Streamed
        from test_trainer import parts

        where = {"storage": tmp_path / "storage", "durability": "step"}
        trainer = Streamed(model=loaded(inputs, **(where if durable else {})), **parts(inputs, out, **more, **keys))
        trainer.train(resume_from_checkpoint=resume)
        trainer.close()
        return logged(trainer)

    uninterrupted = train_and_log(None)
    for resume in (str(out), f"{out}/", out, True, "auto"):
        assert train_and_log(resume) == uninterrupted, resume
    for wrong, words in ((tmp_path / "nowhere", "is no directory"), (tmp_path, "holds no checkpoint")):
        with pytest.raises(InputError, match=words):
            train_and_log(wrong)
