"""Iterable datasets train under the streamed Trainer and SFTTrainer as under the stock ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq

import real_runs
import test_sft_trainer
import test_trainer
import tiny
from breadth import some
from needs import package
from spillway.errors import InputError
from spillway.hf import SFTTrainer
from test_trainer import loaded, same_rows

package("accelerate", "transformers' Trainer needs accelerate")
datasets = package("datasets", "streams of rows need datasets")
trl = package("trl", "TRL is not installed: its SFTTrainer stays untried")
COUNT = 20


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("iterable"))


def generate_rows() -> Iterator[dict[str, Any]]:
    for row in test_trainer.rows(COUNT):
        yield {**row, "labels": row["input_ids"]}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return generate_rows()


def make_streams(place: Path) -> dict[str, Any]:
    """Streams by kind: a generator, PyTorch's class, an indexed dataset in shards, and files on disk."""
    whole = datasets.Dataset.from_list(list(generate_rows()))
    whole.to_json(place / "rows.jsonl")
    whole.to_parquet(place / "rows.parquet")
    files = {kind: str(place / f"rows.{ending}") for kind, ending in (("json", "jsonl"), ("parquet", "parquet"))}
    return {
        "generator": datasets.IterableDataset.from_generator(generate_rows),
        "torch": Stream(),
        "shards": whole.to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=5),
        **{
            kind: datasets.load_dataset(kind, data_files=file, split="train", streaming=True, cache_dir=place / kind)
            for kind, file in files.items()
        },
    }


def make_parts(inputs: Path, out: Path, data: Any, **more: Any) -> dict[str, Any]:
    steps = {"max_steps": 4, "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2, **more}
    return {
        "args": test_trainer.arguments(out, per_device_eval_batch_size=2, **steps),
        "train_dataset": data,
        "eval_dataset": data,
        "data_collator": DataCollatorForSeq2Seq(tiny.tokenizer()),
    }


@pytest.mark.parametrize("kind", some(("generator", "torch", "shards", "json", "parquet"), ("generator", "json")))
def test_stream_of_rows_trains_as_under_the_stock_trainer(inputs: Path, tmp_path: Path, kind: str) -> None:
    import transformers

    from spillway.hf import Trainer

    data = make_streams(tmp_path)[kind]
    model = AutoModelForCausalLM.from_pretrained(inputs / "model", dtype="float32")
    plain = transformers.Trainer(model=model, **make_parts(inputs, tmp_path / "plain", data))
    ours = Trainer(model=loaded(inputs, max_length=48), **make_parts(inputs, tmp_path / "ours", data))
    for trainer in (plain, ours):
        trainer.train()
    same_rows(ours, plain)
    ours.close()


def test_resume_skips_the_rows_of_finished_steps(inputs: Path, tmp_path: Path) -> None:
    from spillway.hf import Trainer

    data = datasets.IterableDataset.from_generator(generate_rows)
    saves = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "no"}
    whole, again = (
        Trainer(model=loaded(inputs, max_length=48), **make_parts(inputs, tmp_path / "out", data, **saves))
        for _ in range(2)
    )
    whole.train()
    whole.close()
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2") + "/")
    assert test_trainer.logged(again) == test_trainer.logged(whole)
    again.close()


def test_missing_length_is_asked_for(inputs: Path, tmp_path: Path) -> None:
    from spillway.hf import Trainer

    trainer = Trainer(model=loaded(inputs), **make_parts(inputs, tmp_path / "out", Stream()))
    with pytest.raises(InputError, match="train_dataset, which is iterated; say it: load"):
        trainer.train()


def make_sft_trainer(inputs: Path, out: Path, model: Any, kind: Any, **more: Any) -> Any:
    texts = datasets.Dataset.from_list(tiny.text_rows(COUNT)).to_iterable_dataset()
    settings = {"max_steps": 3, "eval_strategy": "no", "max_length": 48, **more}
    keywords = test_sft_trainer.parts(inputs, out, **settings)
    return kind(model=model, **{**keywords, "train_dataset": texts, "eval_dataset": None})


@pytest.mark.parametrize("more", some(({}, {"packing": True}), ({},)), ids=["padded", "packed"])
def test_stream_of_texts_trains_as_under_trl(inputs: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    """TRL cuts rows to the length of SFTConfig."""
    model = AutoModelForCausalLM.from_pretrained(inputs / "model", dtype="float32")
    plain = make_sft_trainer(inputs, tmp_path / "plain", model, trl.SFTTrainer, **more)
    ours = make_sft_trainer(inputs, tmp_path / "ours", loaded(inputs), SFTTrainer, **more)
    for trainer in (plain, ours):
        trainer.train()
    same_rows(ours, plain)
    ours.close()
