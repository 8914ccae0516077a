"""A loop of somebody's own over rows with images: `spillway.Session` beside the loop in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import native
import spillway
import tiny
from both_ways import load, save
from breadth import some
from image_models import image_batch, image_config
from image_training import choose_learning
from spillway.errors import InputError
from spillway.model.batches.batch import Batch

STEPS = 5
SIZES = {"max_length": 24, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0}


def as_inputs(batch: Batch) -> dict[str, Any]:
    """What a processor and a collator make."""
    assert batch.images is not None and batch.lengths is not None
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    return {"input_ids": batch.input_ids, "labels": batch.labels, "attention_mask": mask, **batch.images}


def draw_steps(kind: str) -> list[list[dict[str, Any]]]:
    """Two micro-batches each; a row has two images, another is padded."""
    draw = torch.Generator().manual_seed(3)
    return [
        [as_inputs(image_batch(kind, 2, 24, draw, padded=3)), as_inputs(image_batch(kind, 1, 20, draw))]
        for _ in range(STEPS)
    ]


def open_session(place: Path, images: Any, **more: Any) -> spillway.Session:
    native.profile(place)
    keys = {"placement": "dram", "compute_dtype": "fp32", "weight_dtype": "fp32", "learning_rate": 1e-3,
            "device": "cpu", "lr_scheduler_type": "constant", "weight_decay": 0.0, "adam_epsilon": 1e-4,
            "max_steps": STEPS, "profile": str(place / "profile.json"), **SIZES, **more}  # fmt: skip
    return spillway.Session(images=images, model=str(place / "model"), **keys)


def train_plain(model: Any, steps: list[list[dict[str, Any]]], trains_tower: bool) -> list[float]:
    learning = [parameter for _, parameter in choose_learning(model, lambda name: trains_tower)]
    optimizer = torch.optim.AdamW(learning, lr=1e-3, weight_decay=0.0, eps=1e-4)
    losses = []
    for step in steps:
        count = sum(int((each["labels"][:, 1:] != -100).sum()) for each in step)
        total = 0.0
        for each in step:
            named = {name: value for name, value in each.items() if name != "labels"}
            logits = model(**named, use_cache=False).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, each["labels"][:, 1:].flatten(), reduction="sum") / count
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


TRAINED = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}


@pytest.mark.parametrize("keys", [{}, TRAINED], ids=["frozen", "trained"])
@pytest.mark.parametrize("kind", some(("gemma3", "qwen2_5_vl", "qwen3_vl", "llava"), ("gemma3", "qwen2_5_vl")))
def test_a_loop_with_images_equals_plain_pytorch(kind: str, keys: dict[str, bool], tmp_path: Path) -> None:
    """With the vision tower frozen, and trained."""
    save(image_config(kind), tmp_path / "model", 7)
    steps = draw_steps(kind)
    with open_session(tmp_path, steps[0][0], **keys) as session:
        losses = [session.step(step)["loss"] for step in steps]
        session.save(tmp_path / "saved")
    plain = load(tmp_path / "model").train()
    assert losses == pytest.approx(train_plain(plain, steps, bool(keys)), rel=1e-5)
    saved = dict(load(tmp_path / "saved").named_parameters())
    for name, value in plain.named_parameters():
        torch.testing.assert_close(saved[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_a_saved_session_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    save(image_config("gemma3"), tmp_path / "model", 7)
    steps = draw_steps("gemma3")
    with open_session(tmp_path, steps[0][0]) as whole:
        losses = [whole.step(step)["loss"] for step in steps]
    more = {"output_dir": str(tmp_path / "out")}
    with open_session(tmp_path, steps[0][0], **more) as first:
        for step in steps[:2]:
            first.step(step)
        first.save()
    with open_session(tmp_path, steps[0][0], **more, resume_from_checkpoint=True) as second:
        assert [second.step(step)["loss"] for step in steps[2:]] == losses[2:]


def test_refusals_say_what_to_give(tmp_path: Path) -> None:
    save(image_config("gemma3"), tmp_path / "model", 7)
    draw = torch.Generator().manual_seed(3)
    one, two = (as_inputs(image_batch("gemma3", rows, 24, draw)) for rows in (1, 2))
    text = {name: one[name] for name in ("input_ids", "labels")}
    with pytest.raises(InputError, match="images: the batch has no pixels"):
        open_session(tmp_path, text)
    with (
        open_session(tmp_path, one) as session,
        pytest.raises(InputError, match=r"bytes of pixels was not planned for"),
    ):
        session.step([two])
    with (
        open_session(tmp_path, None) as session,
        pytest.raises(InputError, match=r"give `images` for rows with images"),
    ):
        session.step([one])
    with pytest.raises(InputError, match="images: packing joins rows of text alone"):
        open_session(tmp_path, one, packing=True)
    tiny.model_directory(tmp_path / "text/model")
    native.profile(tmp_path / "text")
    with pytest.raises(InputError, match="images: a model of type .* is trained on text alone"):
        open_session(tmp_path / "text", one, init="random")
