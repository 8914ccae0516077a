"""TRL's SFTTrainer on rows with images: over a streamed model as over transformers' own class in memory, whose vision
tower and projector are frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file

import native
import tiny
from both_ways import load as load_plain
from breadth import some
from image_models import image_directory
from needs import package
from spillway.data.images import load_processor
from spillway.errors import InputError
from spillway.hf import DPOTrainer, SFTTrainer, Trainer, load
from test_trainer import arguments
from test_trainer_durable import Fails

trl = package("trl", "the trainer for rows with images is TRL's")
datasets = package("datasets", "TRL needs datasets")

FROZEN = ("visual", "vision_tower", "multi_modal_projector")  # submodules of model.model
LOGGED = ("loss", "grad_norm", "num_tokens", "mean_token_accuracy", "entropy", "eval_loss")
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module", params=some(["gemma3", "qwen2_5_vl", "qwen3_vl", "llava"], ["gemma3", "qwen3_vl"]))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp(request.param), request.param)
    native.profile(place)
    return place


def image_rows(count: int) -> Any:
    """Rows of TRL's form: images in a column, beside messages of text. Every fifth pair of rows has no image."""
    generator = np.random.default_rng(5)
    rows = []
    for number in range(count):
        size = (40 + 8 * (number % 4), 64 - 4 * (number % 3), 3)
        images = [
            Image.fromarray(generator.integers(0, 255, size, dtype=np.uint8))
            for _ in range(0 if number // 2 % 5 == 2 else 1 + number % 3 // 2)
        ]
        turns = [
            {"role": "user", "content": f"{number}: what is it?"},
            {"role": "assistant", "content": tiny.SENTENCES[number % 8]},
        ]
        rows.append({"messages": turns, "images": images})
    turn = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features = datasets.Features({"messages": datasets.List(turn), "images": datasets.List(datasets.Image())})
    return datasets.Dataset.from_list(rows, features=features)


def as_prompts(rows: Any) -> Any:
    """The rows in TRL's other form, with the loss on the completion."""
    turns = [{"prompt": each[:1], "completion": each[1:]} for each in rows["messages"]]
    columns = datasets.Dataset.from_list(turns)
    return datasets.concatenate_datasets([columns, rows.select_columns("images")], axis=1)


def parts(given: Path, out: Path, count: int = 20, prompts: bool = False, **more: Any) -> dict[str, Any]:
    rows = as_prompts(image_rows(count)) if prompts else image_rows(count)
    asked = {
        "output_dir": str(out), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 2, "max_steps": 5, "learning_rate": 1e-3, "logging_steps": 1, "max_length": None,
        "save_strategy": "no", "report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True,
        "adam_epsilon": 1e-4, "gradient_checkpointing": False, **more,
    }  # fmt: skip
    return {
        "args": trl.SFTConfig(**asked),
        "train_dataset": rows,
        "eval_dataset": rows.select(range(3)) if "eval_strategy" in more else None,
        "processing_class": load_processor(given / "model"),
    }


def load_streamed(given: Path, storage: Path | None = None, **more: Any) -> Any:
    places: dict[str, Any] = {"placement": "dram"}
    if storage is not None:
        storage.mkdir(exist_ok=True)
        places = {"storage": f"{storage},capacity=256MiB", "placement": "path"}
    values = {"dtype": "float32", "profile": str(given / "profile.json"), "images": True, **places}
    return load(given / "model", **{**values, **more})


def freeze(model: Any) -> Any:
    for name, module in model.model.named_children():
        if name in FROZEN:
            module.requires_grad_(False)
    return model


def train_plain(given: Path, out: Path, **more: Any) -> Any:
    model = freeze(load_plain(given / "model"))
    trainer = trl.SFTTrainer(model=model, **parts(given, out, **more))
    trainer.train()
    trainer.save_model()
    return trainer


def train_streamed(given: Path, out: Path, storage: Path | None = None, device: str = "cpu", **more: Any) -> Any:
    trainer = SFTTrainer(model=load_streamed(given, storage, device=device), **parts(given, out, **more))
    trainer.train()
    trainer.save_model()
    trainer.close()
    return trainer


def read_log(trainer: Any) -> list[dict[str, float]]:
    return [{name: row[name] for name in LOGGED if name in row} for row in trainer.state.log_history]


def test_the_simulated_device_changes_no_bit(given: Path, tmp_path: Path) -> None:
    runs = {device: train_streamed(given, tmp_path / device, device=device) for device in ("cpu", "simulated")}
    assert read_log(runs["simulated"]) == read_log(runs["cpu"])
    found, expected = (load_weights(tmp_path / device) for device in ("simulated", "cpu"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("where", "prompts"), [("dram", False), ("path", False), ("dram", True)])
def test_steps_equal_trl_in_memory(given: Path, tmp_path: Path, where: str, prompts: bool) -> None:
    """Losses, gradient norms, evaluations and weights of five steps of two micro-batches. The tower is unchanged."""
    more = {"eval_strategy": "steps", "eval_steps": 5, "prompts": prompts}
    plain = train_plain(given, tmp_path / "plain", **more)
    ours = train_streamed(given, tmp_path / "ours", tmp_path / "storage" if where == "path" else None, **more)
    rows, expected = read_log(ours), read_log(plain)
    assert [row.keys() for row in rows] == [row.keys() for row in expected]
    assert rows == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in expected]
    assert sum("grad_norm" in row for row in rows) == 5 and any("eval_loss" in row for row in rows)
    found, other, began = (load_weights(place) for place in (tmp_path / "ours", tmp_path / "plain", given / "model"))
    assert found.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(found[name], value, **CLOSE, msg=name)
    frozen = [name for name in found if any(part in name for part in FROZEN)]
    assert frozen and all(torch.equal(found[name], began[name]) for name in frozen)
    assert any(not torch.equal(found[name], began[name]) for name in found)


TRAINED = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}


def test_a_trained_tower_equals_trl_in_memory(given: Path, tmp_path: Path) -> None:
    """Losses, gradient norms and weights of five steps. `load` says what is trained."""
    plain = trl.SFTTrainer(model=load_plain(given / "model"), **parts(given, tmp_path / "plain"))
    plain.train()
    plain.save_model()
    ours = SFTTrainer(load_streamed(given, tmp_path / "storage", **TRAINED), **parts(given, tmp_path / "ours"))
    ours.train()
    ours.save_model()
    ours.close()
    assert read_log(ours) == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in read_log(plain)]
    found, other, began = (load_weights(place) for place in (tmp_path / "ours", tmp_path / "plain", given / "model"))
    assert found.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(found[name], value, **CLOSE, msg=name)
    assert any(not torch.equal(found[name], began[name]) for name in found if "vision" in name or "visual" in name)


def test_a_tower_that_was_unfrozen_by_hand_is_refused(given: Path, tmp_path: Path) -> None:
    model = load_streamed(given)
    model.requires_grad_(True)
    with pytest.raises(InputError, match="requires a gradient, and it belongs to .*load the model with freeze_vision"):
        SFTTrainer(model, **parts(given, tmp_path / "out")).train()


def load_weights(place: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(place / "model.safetensors"))


def test_a_resume_from_a_checkpoint_has_the_same_bits(given: Path, tmp_path: Path) -> None:
    whole = train_streamed(given, tmp_path / "whole", save_strategy="steps", save_steps=2)
    second = SFTTrainer(load_streamed(given), **parts(given, tmp_path / "second"))
    second.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-2"))
    second.save_model()
    second.close()
    require_equal(load_weights(tmp_path / "second"), load_weights(tmp_path / "whole"))
    for row in (*whole.state.log_history, *second.state.log_history):
        row.pop("num_tokens", None)  # TRL counts from zero again
    assert read_log(second)[:5] == read_log(whole)[:5]


def test_durable_steps_go_on_after_a_failure(given: Path, tmp_path: Path) -> None:
    def train(name: str, resume: Any, fails: Any = None) -> Any:
        model = load_streamed(given, tmp_path / f"{name}-storage", durability="step")
        trainer = SFTTrainer(model, **parts(given, tmp_path / name))
        try:
            if fails is not None:
                trainer.add_callback(fails)
            trainer.train(resume_from_checkpoint=resume)
            trainer.save_model()
        finally:
            trainer.close()

    train("whole", "auto")
    with pytest.raises(RuntimeError, match="as a test asked"):
        train("parts", "auto", Fails("on_step_end", 3))
    train("parts", True)
    require_equal(load_weights(tmp_path / "parts"), load_weights(tmp_path / "whole"))


def require_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_transformers_trainer_takes_a_collator_of_ones_own(given: Path, tmp_path: Path) -> None:
    """Losses, gradient norms, and what compute_metrics makes of the logits of an evaluation."""
    processor = load_processor(given / "model")
    rows = [row for row in image_rows(9) if row["images"]]

    def measure(prediction: Any) -> dict[str, float]:
        logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        return {"spread": float(np.abs(logits).mean())}

    logs = []
    for kind, model in ((transformers.Trainer, freeze(load_plain(given / "model"))), (Trainer, load_streamed(given))):
        args = arguments(tmp_path / "out", remove_unused_columns=False, gradient_accumulation_steps=2, max_steps=3,
                         adam_epsilon=1e-4, eval_strategy="steps", eval_steps=3)  # fmt: skip
        collator = trl.trainer.sft_trainer.DataCollatorForVisionLanguageModeling(processor)
        trainer = kind(model=model, args=args, train_dataset=rows, eval_dataset=rows[:1], data_collator=collator,
                       compute_metrics=measure)  # fmt: skip
        trainer.train()
        names = ("loss", "grad_norm", "eval_loss", "eval_spread")
        logs.append([{name: row[name] for name in names if name in row} for row in trainer.state.log_history])
    assert logs[1] == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in logs[0]]
    assert any("eval_spread" in row for row in logs[1]) and sum("grad_norm" in row for row in logs[1]) == 3


def test_adapters_train_on_images(given: Path, tmp_path: Path) -> None:
    """The first loss is that of the base, and later losses fall."""
    peft = package("peft", "adapters are PEFT's")
    streamed = load_streamed(given, method="lora", lora_r=4, lora_target_modules=["q_proj", "v_proj"])
    ours = SFTTrainer(streamed, **parts(given, tmp_path / "ours", learning_rate=1e-2))
    targets = r".*language_model.*\.(q_proj|v_proj)"
    config = peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
    model = load_plain(given / "model")
    plain = trl.SFTTrainer(model, peft_config=config, **parts(given, tmp_path / "plain", learning_rate=1e-2))
    for trainer in (ours, plain):
        trainer.train()
        trainer.save_model()
    ours.close()
    rows, expected = ([row["loss"] for row in each.state.log_history if "loss" in row] for each in (ours, plain))
    assert rows[0] == pytest.approx(expected[0], rel=1e-5) and rows[-1] < rows[0]
    files = [load_file(tmp_path / way / "adapter_model.safetensors") for way in ("ours", "plain")]
    assert files[0].keys() == files[1].keys() and any(bool(value.any()) for value in files[0].values())


def test_iterated_rows_train_after_a_look_at_the_first(given: Path, tmp_path: Path) -> None:
    """The losses are those of indexed rows in the same order."""
    losses = []
    for iterates in (False, True):
        given_parts = parts(given, tmp_path / "out", max_length=96, max_steps=2, train_sampling_strategy="sequential")
        if iterates:
            given_parts["train_dataset"] = given_parts["train_dataset"].to_iterable_dataset()
        trainer = SFTTrainer(load_streamed(given, images=10, max_length=96), **given_parts)
        trainer.train()
        trainer.close()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[0] == losses[1] and len(losses[0]) == 2


# ---- refusals


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp("one"), "gemma3")
    native.profile(place)
    return place


def test_a_model_loaded_for_text_refuses_images(one: Path, tmp_path: Path) -> None:
    trainer = SFTTrainer(load_streamed(one, images=None, max_length=96), **parts(one, tmp_path / "out"))
    with pytest.raises(InputError, match=r"give `images` for rows with images: load\(\.\.\., images=True\)"):
        trainer.train()


def test_more_pixels_than_planned_are_refused(one: Path, tmp_path: Path) -> None:
    """The first rows have one image, a later row two."""
    trainer = SFTTrainer(load_streamed(one, images=2, max_length=96), **parts(one, tmp_path / "out"))
    with pytest.raises(InputError, match=r"images: a batch with \d+ bytes of pixels was not planned for"):
        trainer.train()
    trainer.close()


def test_calls_of_the_model_take_text_alone(one: Path, tmp_path: Path) -> None:
    trainer = SFTTrainer(load_streamed(one), **parts(one, tmp_path / "out"))
    batch = trainer.data_collator([image_rows(1)[0]])
    batch.pop("labels")
    with pytest.raises(InputError, match="pixel_values: the model gives logits of text alone"):
        trainer.model(**batch)


def test_rows_without_images_at_the_beginning_are_refused(one: Path, tmp_path: Path) -> None:
    given_parts = parts(one, tmp_path / "out")
    given_parts["train_dataset"] = given_parts["train_dataset"].select([4, 5, 0, 1])
    trainer = SFTTrainer(load_streamed(one, images=2, max_length=96), **given_parts)
    with pytest.raises(InputError, match="images: none of the first 2 rows of train_dataset has images"):
        trainer.train()


def test_iterated_rows_need_a_number(one: Path, tmp_path: Path) -> None:
    given_parts = parts(one, tmp_path / "out")
    given_parts["train_dataset"] = given_parts["train_dataset"].to_iterable_dataset()
    trainer = SFTTrainer(load_streamed(one), **given_parts)
    with pytest.raises(InputError, match="images: train_dataset, which|images: train_dataset is iterated"):
        trainer.train()


@pytest.mark.parametrize(("more", "said"), [
    ({"images": "yes"}, "expects True, or a number of rows to look at"),
    ({"images": 0}, "expects True, or a number of rows to look at"),
])  # fmt: skip
def test_other_values_are_refused(one: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_streamed(one, **more)


def test_models_of_text_are_refused(tmp_path: Path) -> None:
    tiny.model_directory(tmp_path / "model")
    with pytest.raises(InputError, match="images: a model of type .* is trained on text alone"):
        load(tmp_path / "model", images=True, placement="dram", init="random")


def test_trainers_of_pairs_refuse_images(one: Path, tmp_path: Path) -> None:
    pairs = [{"prompt": "What?", "chosen": "A boat.", "rejected": "A car."}] * 4
    args = trl.DPOConfig(output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, report_to="none")
    tokenizer = load_processor(one / "model").tokenizer
    with pytest.raises(InputError, match="images: rows with images are for Trainer and SFTTrainer"):
        DPOTrainer(load_streamed(one), args=args, train_dataset=datasets.Dataset.from_list(pairs),
                   processing_class=tokenizer)  # fmt: skip


def test_videos_are_refused(one: Path, tmp_path: Path) -> None:
    """By transformers' Trainer with a collator of one's own."""

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        ids = torch.ones(len(rows), 8, dtype=torch.int64)
        return {"input_ids": ids, "labels": ids, "pixel_values_videos": torch.zeros(len(rows), 3)}

    args = arguments(tmp_path / "out", remove_unused_columns=False)
    trainer = Trainer(load_streamed(one), args=args, train_dataset=[{"a": 1}] * 4, data_collator=collate)
    with pytest.raises(InputError, match="batch: pixel_values_videos is nothing the stream computes with"):
        trainer.train()
