"""Rows of conversations: each part of a row is used or named. The templates are those that TRL ships."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from folders import REPOSITORY
from needs import package
from spillway.config import resolve
from spillway.data import loading
from spillway.errors import InputError

ASK = {"role": "user", "content": "Rome?"}
ANSWER = {"role": "assistant", "content": "Sunny."}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
CALLS = [ASK, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "sun"}, ANSWER]
TOOL = {"type": "function", "function": {"name": "weather", "description": "tells", "parameters": {"type": "object"}}}


def read_template(name: str) -> str:
    trl = package("trl", "TRL is not installed: its templates stay untried")
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


class EncodedRows:
    """The encoded rows of one file."""

    def __init__(self, tmp_path: Path, template: str | None, *rows: dict[str, Any], **keys: Any) -> None:
        path = tiny.jsonl(tmp_path / "rows.jsonl", list(rows))
        self.tokenizer = tiny.tokenizer(chat_template=template)
        self.lines: list[str] = []
        config = resolve({"model": "m", "dataset": str(path), "max_length": 100_000, **keys}, {})
        self.rows: Any = loading.load(config, self.tokenizer, "dataset", self.lines.append)

    def text(self, row: int = 0) -> str:
        batch = self.rows.batch(np.array([row]))
        return str(self.tokenizer.decode(batch.input_ids[0].tolist()))

    def labelled_text(self, row: int = 0) -> str:
        batch = self.rows.batch(np.array([row]))
        return str(self.tokenizer.decode([token for token in batch.labels[0].tolist() if token != -100]))


def read_refusal(tmp_path: Path, template: str | None, *rows: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        EncodedRows(tmp_path, template, *rows, **keys)
    assert "rows.jsonl:" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ["qwen3_training", "qwen2_5"])
def test_tools_are_in_the_prompt(tmp_path: Path, as_json: bool, name: str) -> None:
    tools = json.dumps([TOOL]) if as_json else [TOOL]
    encoded = EncodedRows(tmp_path, read_template(name), {"messages": [ASK, ANSWER], "tools": tools})
    assert encoded.text() == encoded.tokenizer.apply_chat_template([ASK, ANSWER], tools=[TOOL], tokenize=False)
    assert "Sunny." in encoded.labelled_text() and "weather" not in encoded.labelled_text()


def test_documents_and_template_variables_reach_the_template(tmp_path: Path) -> None:
    template = "{{ documents[0].text }} {{ mood }} " + tiny.MARKED
    row = {"messages": [ASK, ANSWER], "documents": [{"text": "Page one."}], "chat_template_kwargs": {"mood": "mild"}}
    assert EncodedRows(tmp_path, template, row).text().startswith("Page one. mild ")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tools", {"name": "weather"}), ("tools", "[oh"), ("tools", ["weather"]), ("documents", 3),
        ("chat_template_kwargs", [1]), ("chat_template_kwargs", {"tokenize": False}), ("system", ["Be exact."]),
    ],
)  # fmt: skip
def test_column_of_a_wrong_type_is_refused_by_name(tmp_path: Path, column: str, value: Any) -> None:
    assert column in read_refusal(tmp_path, tiny.MARKED, {"messages": [ASK, ANSWER], column: value})


def test_unread_template_option_is_named(tmp_path: Path) -> None:
    row = {"messages": [ASK, ANSWER], "tools": [TOOL], "chat_template_kwargs": {"mood": "mild"}}
    lines = " ".join(EncodedRows(tmp_path, tiny.MARKED, row, row).lines)
    assert lines.count("does not read tools") == 1 and lines.count("does not read chat_template_kwargs, mood") == 1


SHAREGPT: dict[str, Any] = {
    "system": "Be exact.",
    "tools": json.dumps([TOOL["function"]]),
    "conversations": [
        {"from": "human", "value": "5x3?"},
        {"from": "function_call", "value": '{"name": "times", "arguments": {"a": 5, "b": 3}}'},
        {"from": "observation", "value": "15"},
        {"from": "gpt", "value": "15."},
    ],
}


def test_sharegpt_tool_turns_are_calls_and_tool_answers(tmp_path: Path) -> None:
    encoded = EncodedRows(tmp_path, read_template("qwen2_5"), SHAREGPT)
    call = {"type": "function", "function": {"name": "times", "arguments": {"a": 5, "b": 3}}}
    messages = [
        {"role": "system", "content": "Be exact."}, {"role": "user", "content": "5x3?"},
        {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "15"},
        {"role": "assistant", "content": "15."},
    ]  # fmt: skip
    assert encoded.text() == encoded.tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    assert (
        '"times"' in encoded.labelled_text()
        and "15." in encoded.labelled_text()
        and "<tool_response>" not in encoded.labelled_text()
    )


@pytest.mark.parametrize("value", ["{}", '{"name": "times", "arguments": {}}'])
def test_sharegpt_call_carries_loss_with_a_template_without_calls(tmp_path: Path, value: str) -> None:
    turns = [
        {**turn, "value": value} if turn["from"] == "function_call" else turn for turn in SHAREGPT["conversations"]
    ]
    encoded = EncodedRows(tmp_path, tiny.PLAIN, {"conversations": turns, "system": "Be exact."})
    assert encoded.text().startswith("<bos>system: Be exact.<eos><bos>user: 5x3?<eos>")
    assert "<bos>tool: 15<eos>" in encoded.text() and encoded.labelled_text() == f"{value}<eos>15.<eos>"


def test_system_column_beside_another_system_turn_is_refused(tmp_path: Path) -> None:
    first = {"role": "system", "content": "Be brief."}
    assert "'system'" in read_refusal(tmp_path, tiny.PLAIN, {"messages": [first, ASK, ANSWER], "system": "Be exact."})


def test_alpaca_system_and_history_are_in_the_prompt(tmp_path: Path) -> None:
    row = {"instruction": "I", "input": "N", "output": "O", "system": "S", "history": [["Q", "A"]]}
    encoded = EncodedRows(tmp_path, None, row, {**row, "system": "", "history": []})
    assert (encoded.text(0), encoded.labelled_text(0)) == ("S\nQ\nA\nI\nN\nO<eos>", "O<eos>")
    assert encoded.text(1) == "I\nN\nO<eos>"
    assert "'history'" in read_refusal(tmp_path, None, {**row, "history": "Q"})


ALPACA = "Below is an instruction that describes a task"  # the prompt of Axolotl's `type: alpaca`, written by hand
REQUEST = "Write a response that appropriately completes the request.\n\n"


def test_alpaca_template_is_that_of_stanford_and_axolotl(tmp_path: Path) -> None:
    row = {"instruction": "I", "input": "N", "output": "O"}
    rows = (row, {**row, "input": ""}, {**row, "input": None, "system": "S"})
    encoded = EncodedRows(tmp_path, None, *rows, prompt_template="alpaca")
    given = f"{ALPACA}, paired with an input that provides further context. {REQUEST}"
    assert encoded.text(0) == f"{given}### Instruction:\nI\n\n### Input:\nN\n\n### Response:\nO<eos>"
    assert encoded.text(1) == f"{ALPACA}. {REQUEST}### Instruction:\nI\n\n### Response:\nO<eos>"
    assert encoded.text(2) == "S\n\n### Instruction:\nI\n\n### Response:\nO<eos>"
    assert [encoded.labelled_text(number) for number in range(3)] == ["O<eos>"] * 3
    refusal = read_refusal(tmp_path, None, {**row, "history": [["Q", "A"]]}, prompt_template="alpaca")
    assert "'history'" in refusal and "prompt_template: chat" in refusal


@pytest.mark.parametrize("name", ["qwen3_training", "qwen2_5"])
def test_instructions_are_turns_of_the_chat_template(tmp_path: Path, name: str) -> None:
    row = {"instruction": "I", "input": "N", "output": "O", "system": "S", "history": [["Q", "A"]]}
    encoded = EncodedRows(tmp_path, read_template(name), row, prompt_template="chat")
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "I\nN"},
        {"role": "assistant", "content": "O"},
    ]
    assert encoded.text() == EncodedRows(tmp_path, read_template(name), {"messages": turns}).text()
    assert "O" in encoded.labelled_text() and "N" not in encoded.labelled_text()


def test_call_without_content_is_content_null(tmp_path: Path) -> None:
    encoded = EncodedRows(tmp_path, read_template("qwen3_training"), {"messages": CALLS})
    null: list[dict[str, Any]] = [{**message, "content": message.get("content")} for message in CALLS]
    assert encoded.text() == encoded.tokenizer.apply_chat_template(null, tokenize=False)
    assert "None" not in encoded.text() and "weather" in encoded.labelled_text()


@pytest.mark.parametrize("name", ["qwen2_5_training", "qwen3_training", "qwen3_5_think_training", "glm4moe_training"])
def test_arguments_as_json_text_are_not_quoted_twice(tmp_path: Path, name: str) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    texts = [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}, *CALLS[2:]]
    objects = [ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]}, *CALLS[2:]]
    encoded = EncodedRows(tmp_path, read_template(name), {"messages": texts}, {"messages": objects})
    assert encoded.text(0) == encoded.text(1)


@pytest.mark.parametrize("template", [tiny.MARKED, tiny.PLAIN], ids=["markers", "prefixes"])
def test_turn_of_weight_zero_carries_no_loss(tmp_path: Path, template: str) -> None:
    messages = [ASK, {**ANSWER, "weight": 0}, ASK, {"role": "assistant", "content": "Warm.", "weight": 1}]
    encoded = EncodedRows(tmp_path, template, {"messages": messages})
    assert encoded.labelled_text() == "Warm.<eos>" and "Sunny." in encoded.text()
    assert "weight" in read_refusal(tmp_path, template, {"messages": [ASK, {**ANSWER, "weight": 0.5}]})
    assert "weight" in read_refusal(tmp_path, template, {"messages": messages}, assistant_only_loss=False)


def test_openai_keys_of_older_forms_are_mapped(tmp_path: Path) -> None:
    older = [
        {"role": "developer", "content": "Be exact."}, ASK,
        {"role": "assistant", "function_call": CALL["function"]},
        {"role": "function", "name": "weather", "content": "sun"}, {"role": "assistant", "refusal": "No."},
    ]  # fmt: skip
    encoded = EncodedRows(
        tmp_path, read_template("qwen3_training"), {"messages": older, "functions": [TOOL["function"]]}
    )
    messages = [
        {"role": "system", "content": "Be exact."}, ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "sun"}, {"role": "assistant", "content": "No."},
    ]  # fmt: skip
    assert encoded.text() == encoded.tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    lines = " ".join(encoded.lines)
    assert "'developer'" in lines and "'name' of tool turns" in lines


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ({"role": "assistant", "content": None}, "content is null"),
        ({"role": "user", "content": None}, "content is null"),
        ({"role": "user", "content": 3}, "int"),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "'file'"),
        ({"role": "assistant", "content": "A", "audio": {"id": "a"}}, "audio"),
        ({"role": "assistant", "tool_calls": [{"type": "function"}]}, "tool_calls"),
        ({"role": "assistant", "content": "A", "reasoning_content": "R"}, "'reasoning_content'"),
        ({"role": "assistant", "tool_calls": [CALL]}, "tool_calls"),
    ],
)
def test_unusable_message_is_refused_with_its_row(tmp_path: Path, message: dict[str, Any], part: str) -> None:
    assert part in read_refusal(tmp_path, tiny.PLAIN, {"messages": [ASK, message]})


def test_reasoning_is_moved_to_the_key_that_the_template_reads(tmp_path: Path) -> None:
    row = {"messages": [ASK, {**ANSWER, "thinking": "Warm there."}]}
    encoded = EncodedRows(tmp_path, read_template("qwen3_training"), row)
    assert "<think>\nWarm there.\n</think>" in encoded.labelled_text()


@pytest.mark.parametrize("name", ["phi3_training", "cohere2_training", "llama3_training"])
def test_turn_that_the_template_leaves_out_is_refused(tmp_path: Path, name: str) -> None:
    message = read_refusal(tmp_path, read_template(name), {"messages": CALLS})
    assert "leaves out" in message or "refuses" in message


def test_template_that_rewrites_turns_trains_by_trls(tmp_path: Path) -> None:
    trl = package("trl", "TRL is not installed")
    assert trl
    from trl.chat_template_utils import get_training_chat_template

    talk = [ASK, ANSWER, ASK, {**ANSWER, "content": "Warm.", "reasoning_content": "Warm there."}]
    for name in ("qwen3", "qwen3_5_think", "qwen3_6"):
        encoded = EncodedRows(tmp_path, read_template(name), {"messages": talk})
        expected = encoded.tokenizer.apply_chat_template(
            talk, chat_template=get_training_chat_template(encoded.tokenizer), return_dict=True,
            return_assistant_tokens_mask=True,
        )  # fmt: skip
        batch = encoded.rows.batch(np.array([0]))
        assert batch.input_ids[0].tolist() == list(expected["input_ids"])
        assert (batch.labels[0] != -100).int().tolist() == list(expected["assistant_masks"])
        assert any("TRL's training template" in line for line in encoded.lines)
        assert encoded.tokenizer.chat_template == read_template(name)


@pytest.mark.parametrize("name", ["qwen3_training", "qwen3"])
def test_prompt_and_completion_of_messages_equal_trl(tmp_path: Path, name: str) -> None:
    encoded = EncodedRows(tmp_path, read_template(name), {"prompt": [ASK], "completion": [ANSWER]})
    assert encoded.text() == encoded.tokenizer.apply_chat_template([ASK, ANSWER], tokenize=False)
    prompt = encoded.tokenizer.apply_chat_template([ASK], tokenize=False, add_generation_prompt=True)
    assert encoded.labelled_text() == encoded.text()[len(prompt) :]


def test_stop_token_without_loss_is_named(tmp_path: Path) -> None:
    rows = [{"messages": [ASK, ANSWER]}, {"messages": [ASK, ANSWER, ASK, ANSWER]}]
    lines = [line for line in EncodedRows(tmp_path, read_template("glm4moe"), *rows).lines if "learn to stop" in line]
    assert len(lines) == 1 and "<|user|>" in lines[0] and "'<eos>'" in lines[0]
    assert not EncodedRows(tmp_path, tiny.PLAIN, *rows).lines


def test_unused_columns_are_named_once(tmp_path: Path) -> None:
    row = {"text": "T one", "id": 7, "images": ["a.png"], "note": None}
    encoded = EncodedRows(tmp_path, None, row, {**row, "tools": [TOOL]})
    (line,) = encoded.lines
    assert line.startswith("dataset: columns not used: id, images (") and "tools (" in line and "note" not in line


@pytest.mark.parametrize(
    "row",
    [
        {"text": "cut \ud83d here"},
        {"messages": [ASK, {"role": "assistant", "content": "\ud800"}]},
        {"messages": [ASK, ANSWER], "tools": '[{"name": "\\ud800"}]'},
        {"prompt": "\ud800", "completion": "A"},
        {"prompt": [ASK], "completion": [{"role": "assistant", "content": "\udc00"}]},
        {"instruction": "I", "output": "O", "system": "\ud800"},
    ],
)
def test_lone_surrogate_is_refused_with_its_row(tmp_path: Path, row: dict[str, Any]) -> None:
    assert "lone surrogate" in read_refusal(tmp_path, tiny.MARKED, row)


@pytest.mark.parametrize("name", ["prompt", "chosen", "rejected"])
def test_null_in_a_pair_is_refused_with_its_row(tmp_path: Path, name: str) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c", name: None}
    assert f"{name} is null" in read_refusal(tmp_path, None, row, objective="dpo")


PAGE = REPOSITORY / "docs" / "reference" / "data.md"
TURNS = {
    "USER": ASK, "ANSWER": ANSWER, "CALL": {"role": "assistant", "content": "", "tool_calls": [CALL]},
    "HUMAN": {"from": "human", "value": "Rome?"}, "GPT": {"from": "gpt", "value": "Sunny."},
}  # fmt: skip


def read_page_table() -> list[Any]:
    """The lines of the page's table, each a row and its expected outcome."""
    lines = re.findall(r"^\| (?:TRL|ShareGPT|Alpaca|OpenAI|any) \| `(\{.*\})` \| (.*) \|$", PAGE.read_text(), re.M)
    assert len(lines) > 45
    return [pytest.param(row, fate, id=f"{number}-{fate.split(';')[0]}") for number, (row, fate) in enumerate(lines)]


@pytest.mark.parametrize(("written", "fate"), read_page_table())
def test_table_of_the_page_has_the_outcome_of_each_row(tmp_path: Path, written: str, fate: str) -> None:
    for name, turn in TURNS.items():
        written = re.sub(rf"\b{name}\b", lambda _, turn=turn: json.dumps(turn), written)  # type: ignore[misc]
    row = json.loads(written.replace("T!", "Zebra"))
    verb, _, rest = fate.partition(":")
    if verb == "refused":
        (name,) = re.findall(r"`([^`]+)`", rest.split(";")[0])
        assert name.partition(":")[0] in read_refusal(tmp_path, read_template("qwen3"), row)
        return
    encoded = EncodedRows(tmp_path, read_template("qwen3"), row)
    if verb == "used":
        assert "Zebra" in encoded.text()
        assert ("Zebra" in encoded.labelled_text()) or "with loss" not in fate
        assert ("Zebra" not in encoded.labelled_text()) or "no loss" not in fate and "without loss" not in fate
        assert not any("not used" in line for line in encoded.lines if "'name'" not in line)
    else:
        assert verb == "named" and "Zebra" not in encoded.text()
        (name,) = re.findall(r"`([^`]+)`", rest.split(";")[0])
        assert any(name in line and ("not used" in line or "does not read" in line) for line in encoded.lines)
