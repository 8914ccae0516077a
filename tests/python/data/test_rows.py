"""What a row becomes, from a file to labels: each rule of docs/reference/data.md, as a run reads it.

Details of each stage have files of their own: test_sources, test_encode, test_dataset, test_order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from needs import package
from small_configs import small_config
from spillway.config import resolve
from spillway.data import loading
from spillway.data.dataset import Dataset
from spillway.errors import InputError
from spillway.model.verify.equivalence import verify_equivalence

TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "He."}]


def with_bos(**options: Any) -> Any:
    """A tokenizer that begins every text with a token of its own, as those of Llama and Gemma do."""
    from tokenizers.processors import TemplateProcessing

    found = tiny.tokenizer(**options)
    found.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", found.bos_token_id)]
    )
    return found


class Read:
    """What was made of a dataset."""

    def __init__(self, path: Path, tokenizer: Any, key: str = "dataset", **keys: Any) -> None:
        self.tokenizer = tokenizer
        self.told: list[str] = []
        config = resolve({"model": "m", key: str(path), **keys}, {})
        self.rows: Dataset = loading.load(config, tokenizer, key, self.told.append)

    def texts(self, row: int) -> tuple[str, str]:
        """The whole row, and what of it carries loss."""
        batch = self.rows.batch(np.array([row]))
        ids, labels = batch.input_ids[0].tolist(), batch.labels[0].tolist()
        spoken = [token for token in labels if token != -100]
        return self.tokenizer.decode(ids), self.tokenizer.decode(spoken)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_text_is_the_tokenizers_own_encoding_and_one_end(place: Path) -> None:
    tiny.jsonl(place, [{"text": "The river"}, {"text": "The river<eos>"}])
    read = Read(place, with_bos())
    assert read.texts(0)[0] == read.texts(1)[0] == "<bos>The river<eos>"


@pytest.mark.parametrize("packing", [False, True])
def test_a_text_file_is_one_document_cut_into_pieces(tmp_path: Path, packing: bool) -> None:
    path = tmp_path / "book.txt"
    text = "\n\n".join(tiny.SENTENCES)
    path.write_text(text)
    read = Read(path, with_bos(), max_length=16, packing=packing)
    whole = "".join(read.texts(row)[0] for row in range(len(read.rows)))
    assert whole == f"<bos>{text}<eos>" and read.rows.longest == 16 and len(read.rows) > 5


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"prompt": "Who opens ", "completion": "He."}, "Who opens ", "He."),
        ({"question": "Who?", "answer": "He."}, "Who?\n", "He."),
        ({"instruction": "Answer.", "output": "He."}, "Answer.\n", "He."),
        ({"instruction": "Answer.", "input": "Who?", "output": "He."}, "Answer.\nWho?\n", "He."),
    ],
)
def test_prompts_are_encoded_with_what_follows_and_masked(
    place: Path, row: dict[str, str], prompt: str, answer: str
) -> None:
    tiny.jsonl(place, [row])
    read = Read(place, with_bos())
    whole, spoken = read.texts(0)
    assert whole == f"<bos>{prompt}{answer}<eos>" and spoken == f"{answer}<eos>"
    assert read.rows.tokens.tolist() == read.tokenizer(f"{prompt}{answer}<eos>")["input_ids"]
    assert Read(place, with_bos(), completion_only_loss=False).texts(0)[1] == whole


@pytest.mark.parametrize("template", [tiny.MARKED, tiny.PLAIN], ids=["markers", "prefixes"])
def test_messages_get_no_special_tokens_but_the_templates(place: Path, template: str) -> None:
    pairs = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "He."}]
    for row in ({"messages": TALK}, {"conversations": pairs}):
        tiny.jsonl(place, [row])
        read = Read(place, with_bos(chat_template=template))
        assert read.texts(0) == ("<bos>user: Who?<eos><bos>assistant: He.<eos>", "He.<eos>")


def test_a_prompt_that_is_no_prefix_is_told_with_its_row(place: Path) -> None:
    text, tokenizer = "The river", tiny.tokenizer()
    first = {cut: tokenizer(text[:cut])["input_ids"] for cut in range(1, len(text))}
    cut = next(cut for cut, ids in first.items() if tokenizer(text)["input_ids"][: len(ids)] != ids)
    tiny.jsonl(place, [{"prompt": "Q ", "completion": "A"}, {"prompt": text[:cut], "completion": text[cut:]}])
    read = Read(place, tokenizer)
    assert [f"{place}:2" in told and "not the first tokens" in told for told in read.told] == [True]


def test_rows_without_labels_are_dropped_counted_and_told(place: Path) -> None:
    long = {"prompt": " ".join(tiny.SENTENCES), "completion": "A"}
    tiny.jsonl(place, [{"prompt": "Q ", "completion": "A"}, long, long])
    read = Read(place, tiny.tokenizer(), max_length=32)
    assert (len(read.rows), read.rows.dropped) == (1, 2)
    assert read.told == ["dataset: 2 rows of rows.jsonl carry no loss and are left out"]


def test_cut_and_padded_to_the_longest_of_its_micro_batch(place: Path) -> None:
    tiny.jsonl(place, [{"text": "Who?"}, {"text": "He."}, *tiny.text_rows(3)])
    rows = Read(place, tiny.tokenizer(), max_length=24).rows
    batch = rows.batch(np.array([0, 4]))
    assert batch.input_ids.shape == (2, 24) and batch.lengths is not None
    first, second = batch.lengths.tolist()
    assert first < second == 24 and batch.tokens == first + second
    assert bool((batch.input_ids[0, first:] == tiny.tokenizer().pad_token_id).all())
    assert bool((batch.labels[0, first:] == -100).all())


def test_an_evaluation_packs_as_it_is_told(place: Path) -> None:
    tiny.jsonl(place, tiny.text_rows(5))
    keys = {"packing": True, "max_length": 32, "key": "eval_dataset"}
    assert Read(place, tiny.tokenizer(), **keys).rows.joints is not None
    apart = Read(place, tiny.tokenizer(), eval_packing=False, **keys).rows
    assert apart.joints is None and len(apart) == 5


def test_a_dataset_by_configuration_and_split(tmp_path: Path) -> None:
    package("datasets", "the package datasets is not installed: named datasets stay untried")
    place = tmp_path / "a dataset"
    place.mkdir()
    names = [(name, split) for name in ("one", "two") for split in ("train", "test", "held")]
    for name, split in names:
        tiny.jsonl(place / f"{name}-{split}.jsonl", [{"text": f"{name} {split}"}])
    configs = [
        {"config_name": name, "data_files": [
            {"split": split, "path": f"{name}-{split}.jsonl"} for split in ("train", "test", "held")]}
        for name in ("one", "two")
    ]  # fmt: skip
    (place / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    read = Read(place, tiny.tokenizer(), dataset_config="two", dataset_split="test")
    assert read.texts(0)[0] == "two test<eos>"
    keys = {"dataset_config": "one", "eval_dataset_split": "held"}
    assert Read(place, tiny.tokenizer(), key="eval_dataset", **keys).texts(0)[0] == "one held<eos>"


@pytest.mark.parametrize("kind", ["bloom", "mamba", "qwen3_5_text"])
def test_packing_is_refused_where_rows_cannot_be_kept_apart(kind: str) -> None:
    """Places that are counted from the sequence's start, and a state that runs on."""
    verify_equivalence(small_config(kind))
    with pytest.raises(InputError, match=f"^packing: {kind}.* the rows of a packed sequence"):
        verify_equivalence(small_config(kind), packing=True)
