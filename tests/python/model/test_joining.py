"""Micro-batches that share their passes (`pass_tokens`)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import real_runs
from real_runs import here
from spillway.config.objectives import OBJECTIVES
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.batches.joining import join, join_shape, joining_notice
from spillway.model.batches.microbatch import IGNORED
from spillway.output.records import rows

STEPS = ("--max_steps", "3", "--logging_steps", "1", "--compute_dtype", "bf16")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("joining"))


def model(**more: Any) -> Any:
    return SimpleNamespace(**{"routers": None, "spaces": {}, "config": None} | more)


def config(**more: Any) -> Any:
    named = {"objective": "sft", "virtual_ranks": 1, "pass_tokens": "auto", "device": "cuda:0", **more}
    entry = OBJECTIVES[named["objective"]]
    return SimpleNamespace(**named, ranks=SimpleNamespace(world=1), objective_entry=entry)


@pytest.mark.parametrize(
    "micro_batches, batch, length, tokens, expected",
    [
        (16, 1, 2048, "auto", (1, 16)),
        (16, 4, 2048, "auto", (4, 16)),
        (5, 1, 8192, "auto", (2, 3)),
        (16, 1, 65536, "auto", (16, 1)),
        (16, 1, 2048, 8192, (4, 4)),
        (16, 1, 2048, 0, (16, 1)),
        (1, 4, 2048, "auto", (1, 4)),
    ],
)
def test_passes_take_up_to_pass_tokens(
    micro_batches: int, batch: int, length: int, tokens: Any, expected: tuple[int, int]
) -> None:
    shape = join_shape(WorkShape(micro_batches, batch, length, 0, 0), config(pass_tokens=tokens), model())
    assert (shape.micro_batches, shape.batch) == expected
    assert shape.joined * batch == shape.batch and shape.micro_batches * shape.joined >= micro_batches
    assert bool(joining_notice(shape)) == (shape.joined > 1)


@pytest.mark.parametrize(
    "given, of_model",
    [
        ({"objective": "dpo"}, {}),
        ({"objective": "orpo"}, {}),
        ({"objective": "kto"}, {}),
        ({"virtual_ranks": 2}, {}),
        ({"device": "cpu"}, {}),
        ({}, {"routers": object()}),
        ({}, {"spaces": {1: object()}}),
    ],
)
def test_micro_batches_stay_apart_where_their_number_is_part_of_the_loss(
    given: dict[str, Any], of_model: dict[str, Any]
) -> None:
    shape = WorkShape(16, 1, 2048, 0, 0)
    assert join_shape(shape, config(**given), model(**of_model)) == shape


def test_micro_batches_with_images_stay_apart() -> None:
    ids = torch.zeros(1, 2048, dtype=torch.int64)
    shape = WorkShape(16, 1, 2048, 0, 0, largest_images=Batch(ids, ids, None, 2048))
    assert join_shape(shape, config(), model()) is shape


def test_rows_of_a_joined_micro_batch_are_padded_to_the_longest() -> None:
    short, long = torch.arange(6).view(2, 3), torch.arange(5).view(1, 5)
    batches = [
        Batch(short, short, None, 5, torch.tensor([3, 2])),
        Batch(long, long, None, 5),
        Batch(long, long, None, 5),
    ]
    both, rest = join(batches, 2)
    assert both.input_ids.tolist() == [[0, 1, 2, 0, 0], [3, 4, 5, 0, 0], [0, 1, 2, 3, 4]]
    assert both.labels[0].tolist() == [0, 1, 2, IGNORED, IGNORED]
    assert both.lengths is not None and both.lengths.tolist() == [3, 2, 5] and both.tokens == 10
    assert rest is batches[2]
    (equal,) = join(batches[1:], 2)
    assert equal.lengths is None and equal.input_ids.shape == (2, 5)


def test_a_joined_run_has_the_bits_of_one_with_a_larger_batch(inputs: Path, tmp_path: Path) -> None:
    one = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4")
    four = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1")
    assert here(inputs, tmp_path / "joined", *STEPS, *one, "--pass_tokens", "4096") == 0
    assert here(inputs, tmp_path / "larger", *STEPS, *four) == 0
    assert here(inputs, tmp_path / "apart", *STEPS, *one) == 0
    model, larger = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("joined", "larger"))
    assert model == larger
    joined, apart = ([row["loss"] for row in rows(tmp_path / name / "metrics.jsonl")] for name in ("joined", "apart"))
    assert joined == pytest.approx(apart, rel=2e-3)
    assert json.loads((tmp_path / "joined" / "plan.json").read_text()) != {}


def test_a_resume_keeps_pass_tokens(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4", "--save_steps", "1")
    assert here(inputs, tmp_path / "run", *STEPS, *one, "--pass_tokens", "4096") == 0
    capsys.readouterr()
    more = ("--max_steps", "4", "--resume_from_checkpoint", str(tmp_path / "run" / "checkpoint-3"))
    assert here(inputs, tmp_path / "run", *STEPS[2:], *one, "--pass_tokens", "0", *more) == 2
    assert "pass_tokens: the run was started with 4096, a resume cannot change it to 0" in capsys.readouterr().err
