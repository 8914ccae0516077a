"""Rows with images: the vision tower frozen, the rest as plain transformers trains it in the library's own class."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

import native
import real_runs
import tiny
from both_ways import CLIP, DECAY, EPSILON, RATE, TOLERANCE, compare_carried, compare_files, save, tensors
from breadth import some
from image_models import IMAGE, PROCESSORS, image_batch, image_config, image_directory
from image_training import train_with_images
from needs import package
from spillway.config import resolve
from spillway.data.images import load_processor
from spillway.errors import InputError
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.batches.microbatch import IGNORED
from spillway.run.train import load_work

FAMILIES = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "idefics3", "smolvlm")
STEPS = 10
SIZES = ["--max_length", "96", "--max_steps", "4", "--lr_scheduler_type", "constant", "--save_steps", "2"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_ten_steps_equal_plain_transformers(kind: str, tmp_path: Path) -> None:
    """Losses, gradient norms and weights. A row has two images, another is padded."""
    generator = torch.Generator().manual_seed(3)
    work = [[image_batch(kind, 2, 24, generator, padded=3), image_batch(kind, 1, 20, generator)] for _ in range(STEPS)]
    save(image_config(kind), tmp_path / "model", 7)
    shape = WorkShape(2, 2, 24, 0, 0, largest_images=work[0][0])
    settings = {"weight_decay": DECAY, "max_grad_norm": CLIP, "adam_epsilon": EPSILON}
    session = native.opened(tmp_path / "model", shape, **settings)
    try:
        assert any(words.startswith("images: the vision tower") for words in session.list_plan_notices())
        results = [session.step(step, RATE) for step in work]
        (tmp_path / "saved").mkdir()
        session.save_model(tmp_path / "saved")
    finally:
        session.close()
    losses, norms, plain = train_with_images(tmp_path / "model", work)
    assert [each.loss_sum / each.label_tokens for each in results] == pytest.approx(losses, rel=TOLERANCE)
    assert [each.grad_norm for each in results] == pytest.approx(norms, rel=10 * TOLERANCE)
    plain.save_pretrained(tmp_path / "expected")
    compare_files(tmp_path / "saved", tmp_path / "expected")
    compare_carried(tmp_path)


def test_images_change_the_result(tmp_path: Path) -> None:
    """Other pixels of the same rows give another loss: features reach the layers."""
    generator = torch.Generator().manual_seed(3)
    batch = image_batch("gemma3", 2, 24, generator)
    save(image_config("gemma3"), tmp_path / "model", 7)
    session = native.opened(tmp_path / "model", WorkShape(1, 2, 24, 2, 24, largest_images=batch))
    try:
        assert batch.images is not None
        pixels = batch.images["pixel_values"]
        assert session.evaluate([batch]) == session.evaluate([batch])
        other = Batch(batch.input_ids, batch.labels, None, batch.tokens, batch.lengths,
                      images={**batch.images, "pixel_values": -pixels})  # fmt: skip
        assert session.evaluate([batch])[0] != session.evaluate([other])[0]
    finally:
        session.close()


def test_features_after_the_last_layer_are_refused(tmp_path: Path) -> None:
    """Qwen3-VL adds features after its first layers, and this model has one."""
    batch = image_batch("qwen3_vl", 2, 24, torch.Generator().manual_seed(3))
    save(image_config("qwen3_vl", layers=1), tmp_path / "model", 7)
    with pytest.raises(InputError, match="images: .*qwen3_vl.* after its last layer.*rows of text alone"):
        native.opened(tmp_path / "model", WorkShape(1, 2, 24, 0, 0, largest_images=batch))


def test_more_than_a_sum_between_layers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = image_batch("qwen3_vl", 2, 24, torch.Generator().manual_seed(3))
    save(image_config("qwen3_vl"), tmp_path / "model", 7)
    monkeypatch.setattr(Qwen3VLTextModel, "_deepstack_process", lambda self, hidden, *_: hidden * 2 + 1)
    with pytest.raises(InputError, match="images: .*changes the hidden state between its layers"):
        native.opened(tmp_path / "model", WorkShape(1, 2, 24, 0, 0, largest_images=batch))


# ---- by the command line


@pytest.fixture(scope="module", params=some(PROCESSORS, ("gemma3", "qwen3_vl")))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp(request.param), request.param)
    native.profile(place)
    return place


@pytest.fixture(scope="module")
def whole(given: Path) -> Path:
    """Four steps without an interruption, in DRAM; a checkpoint after two."""
    assert run(given, given / "whole", "--placement", "dram") == 0
    return given / "whole"


def run(given: Path, out: Path, *more: str, verb: str = "train") -> int:
    return real_runs.here(given, out, *SIZES, *more, verb=verb)


def test_rows_are_those_of_trls_collator(given: Path) -> None:
    """Tokens and pixels of each row; its labels but for the tokens of images, which carry no loss here."""
    package("trl", "the collator for rows with images is TRL's")
    from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

    collate = DataCollatorForVisionLanguageModeling(load_processor(given / "model"))
    work = load_work(config_of(given, assistant_only_loss=False), lambda _: None)
    rows = [json.loads(line) for line in (given / "train.jsonl").read_text().splitlines()]
    checked = 0
    for number, row in enumerate(rows):
        images = [Image.open(given / name).convert("RGB") for name in row.get("images", [])]
        for message in row["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if "image" in part:
                    part["image"] = Image.open(given / part["image"]).convert("RGB")
        batch = work.train.batch(np.array([number]))
        if batch.images is None:
            continue
        expected = collate([{"messages": row["messages"], "images": images}])
        assert torch.equal(batch.input_ids, expected["input_ids"])
        assert torch.equal(batch.labels, expected["labels"].masked_fill(expected["input_ids"] == IMAGE, IGNORED))
        assert torch.equal(batch.images["pixel_values"], expected["pixel_values"])
        checked += 1
    assert checked == 9


def config_of(given: Path, **more: Any) -> Any:
    values = {"model": str(given / "model"), "dataset": str(given / "train.jsonl"), "max_length": 96,
              "output_dir": str(given / "none"), "per_device_train_batch_size": 2, "device": "cpu"}  # fmt: skip
    config = resolve({}, {**values, **more}, "test")
    return config.replaced(tokenizer=config.tokenizer or config.model)


def test_a_template_of_older_checkpoints_is_read(given: Path, tmp_path: Path) -> None:
    """From chat_template.json, beside a tokenizer that has none."""
    shutil.copytree(given, tmp_path / "given")
    template = tmp_path / "given/model/chat_template.jinja"
    content = {"chat_template": template.read_text()}
    template.with_suffix(".json").write_text(json.dumps(content))
    template.unlink()
    work = load_work(config_of(tmp_path / "given"), lambda _: None)
    assert work.train.fingerprint() == load_work(config_of(given), lambda _: None).train.fingerprint()


def test_answers_alone_carry_loss(given: Path) -> None:
    work = load_work(config_of(given), lambda _: None)
    tokenizer = work.tokenizer
    for row in range(len(work.train)):
        batch = work.train.batch(np.array([row]))
        labelled = batch.labels[batch.labels != IGNORED]
        assert tokenizer.decode(labelled) == tiny.SENTENCES[row % 8] + "<eos>"
        assert (batch.images is None) == (row % 4 == 3)


LORA = ["--method", "lora", "--lora_r", "4", "--lora_target_modules", "q_proj"]


@pytest.mark.parametrize("more", [[], pytest.param(LORA, marks=pytest.mark.nightly)])
def test_checked_against_plain_pytorch_by_the_command_line(given: Path, more: list[str], tmp_path: Path) -> None:
    if more:
        package("peft", "adapters are PEFT's")
    words = ["--compute_dtype", "fp32", "--weight_dtype", "fp32", "--placement", "dram", *more]
    assert run(given, tmp_path / "out", *words, verb="check") == 0


def test_killed_and_resumed_to_the_same_bits(given: Path, whole: Path, tmp_path: Path) -> None:
    keys = [*SIZES, *real_runs.on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    real_runs.kill_after("commit", real_runs.words(given, tmp_path / "out", *keys), calls=3)
    assert real_runs.here(given, tmp_path / "out", *keys) == 0
    ours, other = tensors(tmp_path / "out"), tensors(whole)
    assert ours.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in ours.items())
    began = tensors(given / "model")
    assert any(not torch.equal(value, began[name]) for name, value in ours.items())


def test_a_plan_counts_the_tokens_of_images(given: Path, capfd: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    work = load_work(config_of(given), notes.append)
    shape = work.shape
    assert shape.largest_images is not None and shape.largest_images.images is not None
    longest = max(int((work.train.batch(np.array([row])).input_ids == IMAGE).sum()) for row in range(len(work.train)))
    assert longest >= 8 and shape.length == work.train.longest > longest
    assert not any("not used" in note for note in notes)
    assert run(given, given / "none", verb="plan") == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "images: the vision tower and its projector are frozen" in said
    tokens = int((shape.largest_images.input_ids == IMAGE).sum())
    assert f"images: a micro-batch has up to {tokens} of their tokens" in said


def test_evaluation_rows_have_images(given: Path, tmp_path: Path) -> None:
    more = ["--eval_dataset", str(given / "train.jsonl"), "--eval_steps", "4", "--placement", "dram"]
    assert run(given, tmp_path / "out", *more) == 0
    assert any("eval_loss" in row for row in real_runs.metrics(tmp_path / "out"))


# ---- refusals


def ask(*content: Any, **columns: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": list(content)}, {"role": "assistant", "content": "A boat."}]
    return {"messages": turns, **columns}


TEXT = {"type": "text", "text": "What is it?"}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a message has a part of type 'video'": (ask({"type": "video", "video": "a.mp4"}, TEXT), []),
    "the column 'audio' holds something": (ask(TEXT, audio="a.wav"), []),
    "the columns hold 2 images; give one image for each": (ask({"type": "image"}, TEXT, images=["a", "b"]), []),
    "images/none.png cannot be read": (ask({"type": "image", "image": "images/none.png"}, TEXT), []),
    "is no file here; download it": (ask({"type": "image", "image": "https://example.org/a.png"}, TEXT), []),
    "packing joins rows of text alone": (ask({"type": "image", "image": "images/0.png"}, TEXT), ["--packing", "true"]),
    "more than max_length: 12": (ask({"type": "image", "image": "images/0.png"}, TEXT), ["--max_length", "12"]),
    "images stand in messages": ({"text": "What is it?", "images": ["images/0.png"]}, []),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refusals_name_the_row(given: Path, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    row, more = REFUSED[said]
    data = tiny.jsonl(given / "refused.jsonl", [row])
    kept = [word for word in SIZES if not (more[:1] == ["--max_length"] and word in ("--max_length", "96"))]
    assert real_runs.here(given, tmp_path / "out", *kept, *more, "--dataset", str(data)) == 2
    error = " ".join(capfd.readouterr().err.split())
    assert said in error and "refused.jsonl:1" in error
    assert not (tmp_path / "out").exists()


def test_an_image_that_changed_ends_the_run(given: Path) -> None:
    work = load_work(config_of(given), lambda _: None)
    place = given / "images/0.png"
    before = place.read_bytes()
    try:
        Image.fromarray(np.zeros((40, 64, 3), dtype=np.uint8)).save(place)
        with pytest.raises(InputError, match="train.jsonl:1: an image of the row has changed"):
            work.train.batch(np.array([0]))
    finally:
        place.write_bytes(before)


def test_the_fingerprint_of_rows_follows_their_pixels(given: Path) -> None:
    def fingerprint() -> str:
        return load_work(config_of(given), lambda _: None).train.fingerprint()

    place = given / "images/0.png"
    before, first = place.read_bytes(), fingerprint()
    assert fingerprint() == first
    try:
        Image.fromarray(np.zeros((40, 64, 3), dtype=np.uint8)).save(place)
        assert fingerprint() != first
    finally:
        place.write_bytes(before)


FORMS: dict[str, Callable[[Path], Any]] = {
    "a Pillow image": lambda path: Image.open(path),
    "bytes": lambda path: {"bytes": path.read_bytes(), "path": None},
}


@pytest.mark.parametrize("form", FORMS)
def test_images_of_datasets_and_files_are_the_same(given: Path, form: str) -> None:
    from spillway.data.files import Record
    from spillway.data.images import attach_images, open_image
    from spillway.data.turns import Messages

    row = {"messages": [], "images": [FORMS[form](given / "images/1.png")]}
    chat = attach_images(Record("row 1", row), Messages("row 1", [{"role": "user", "content": "What?"}]), None)
    assert chat.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "What?"}]
    found = np.asarray(open_image("row 1", chat.images[0]))
    assert np.array_equal(found, np.asarray(open_image("row 1", str(given / "images/1.png"))))
