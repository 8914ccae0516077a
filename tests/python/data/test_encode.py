"""What a row becomes: end tokens, masks of prompts, conversations."""

from pathlib import Path
from typing import Any

import pytest

import tiny
from spillway.data import chat
from spillway.data.columns import Messages, Pair, Text
from spillway.data.encode import Encoded, Encoder
from spillway.errors import InputError


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.tokenizer()


def labelled_text(tokenizer: Any, row: Encoded) -> str:
    return str(tokenizer.decode([token for token, loss in zip(row.ids, row.labelled, strict=True) if loss]))


def test_text_gets_one_end_token(tokenizer: Any) -> None:
    plain, ended = Encoder(tokenizer).encode([Text("a:1", "The river"), Text("a:2", "The river<eos>")])
    assert list(plain.ids) == [*tokenizer("The river")["input_ids"], tokenizer.eos_token_id]
    assert list(ended.ids) == list(plain.ids)
    assert all(plain.labelled)


def test_text_without_an_end_token_in_the_tokenizer() -> None:
    without = tiny.tokenizer(eos_token=None)
    (row,) = Encoder(without).encode([Text("a:1", "The river")])
    assert list(row.ids) == without("The river")["input_ids"]


def test_prompt_is_masked_and_the_rest_is_not(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    (row,) = encoder.encode([Pair("a:1", "Who opens the gate?\n", "He counted the stones.")])
    whole = tokenizer("Who opens the gate?\nHe counted the stones.<eos>")["input_ids"]
    prompt = tokenizer("Who opens the gate?\n")["input_ids"]
    assert list(row.ids) == whole
    assert list(row.labelled) == [False] * len(prompt) + [True] * (len(whole) - len(prompt))
    assert encoder.warnings == []


def test_prompt_that_is_no_prefix_is_warned_about_with_its_row(tokenizer: Any) -> None:
    text = "The river"
    cut = next(at for at in range(1, len(text)) if not is_prefix(tokenizer, text[:at], text))
    encoder = Encoder(tokenizer)
    (row,) = encoder.encode([Pair("a.jsonl:7", text[:cut], text[cut:])])
    (warning,) = encoder.warnings
    assert "a.jsonl:7" in warning
    assert row.labelled.count(False) == len(tokenizer(text[:cut])["input_ids"])


def is_prefix(tokenizer: Any, prompt: str, whole: str) -> bool:
    ids = tokenizer(prompt)["input_ids"]
    return bool(tokenizer(whole)["input_ids"][: len(ids)] == ids)


def test_loss_on_prompts_when_asked(tokenizer: Any) -> None:
    (row,) = Encoder(tokenizer, completion_only_loss=False).encode([Pair("a:1", "Who", " counted")])
    assert all(row.labelled)


TALK = Messages(
    "a:1",
    [
        {"role": "user", "content": "Who opens the gate?"},
        {"role": "assistant", "content": "He."},
        {"role": "user", "content": "Again?"},
        {"role": "assistant", "content": "The sea."},
    ],
)


@pytest.mark.parametrize("template", [tiny.MARKED, tiny.PLAIN], ids=["markers", "prefixes"])
def test_assistant_turns_carry_the_loss(template: str) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    (row,) = Encoder(tokenizer).encode([TALK])
    whole = tokenizer.apply_chat_template(TALK.messages, tokenize=False)
    assert list(row.ids) == tokenizer(whole, add_special_tokens=False)["input_ids"]
    assert labelled_text(tokenizer, row) == "He.<eos>The sea.<eos>"
    (everything,) = Encoder(tokenizer, assistant_only_loss=False).encode([TALK])
    assert list(everything.ids) == list(row.ids) and all(everything.labelled)


def test_template_that_rewrites_earlier_turns_is_refused() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ messages | length }}" + tiny.PLAIN
    with pytest.raises(InputError, match="a:1.*generation markers.*assistant_only_loss"):
        Encoder(tokenizer).encode([TALK])


def test_messages_without_a_template_are_refused(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="a:1.*chat_template_path"):
        Encoder(tokenizer).encode([TALK])


def test_a_template_that_raises_is_named_with_its_row() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(InputError, match="a:1.*no such role"):
        Encoder(tokenizer).encode([TALK])


def test_template_from_a_file_or_a_directory(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    (tmp_path / "chat_template.jinja").write_text(tiny.PLAIN)
    chat.set_template(tokenizer, str(tmp_path / "chat_template.jinja"))
    assert tokenizer.chat_template == tiny.PLAIN
    tokenizer.chat_template = None
    chat.set_template(tokenizer, str(tmp_path))
    assert tokenizer.chat_template == tiny.PLAIN
    with pytest.raises(InputError, match="no chat template"):
        chat.set_template(tokenizer, str(tiny.model_directory(tmp_path / "without")))
