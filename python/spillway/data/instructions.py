"""Rows of instructions, as Alpaca's datasets have them: what stands around instruction, input and output."""

from __future__ import annotations

from spillway.data.files import Record
from spillway.data.turns import Messages, read_column_text
from spillway.errors import InputError

# The prompt of Stanford's Alpaca (github.com/tatsu-lab/stanford_alpaca), which Axolotl's `type: alpaca` and
# LLaMA-Factory's `template: alpaca` write, too.
REQUEST = "Write a response that appropriately completes the request."
TASK = "Below is an instruction that describes a task"
ALONE = f"{TASK}. {REQUEST}"
WITH_INPUT = f"{TASK}, paired with an input that provides further context. {REQUEST}"


def read_optional(record: Record, name: str) -> str:
    """The text of a column that may be missing, null or empty."""
    return read_column_text(record, name) if record.row.get(name) else ""


def read_history(record: Record) -> list[list[str]]:
    """Questions and answers that precede the instruction."""
    history = record.row.get("history") or []
    if not isinstance(history, list):
        raise InputError(f"{record.where}: the column 'history' is {type(history).__name__}; expects a list of pairs")
    for pair in history:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise InputError(
                f"{record.where}: the column 'history' holds something else than pairs [question, answer] of texts"
            )
    return history


def write_alpaca_prompt(record: Record) -> str:
    """Alpaca's prompt. The row's system text stands in place of its first sentences."""
    if read_history(record):
        raise InputError(
            f"{record.where}: the column 'history' has no place in the prompt of `prompt_template: alpaca`; "
            "`prompt_template: chat` writes it as turns"
        )
    given, system = read_optional(record, "input"), read_optional(record, "system")
    parts = [system or (WITH_INPUT if given else ALONE), f"### Instruction:\n{read_column_text(record, 'instruction')}"]
    parts += [f"### Input:\n{given}"] if given else []
    return "\n\n".join([*parts, "### Response:\n"])


def read_as_chat(record: Record) -> Messages:
    """The row as a conversation: history, then instruction and input in one turn of the user, then the output."""
    system, given = read_optional(record, "system"), read_optional(record, "input")
    asked = "\n".join(text for text in (read_column_text(record, "instruction"), given) if text)
    turns = [{"role": "system", "content": system}] if system else []
    for question, answer in [*read_history(record), [asked, read_column_text(record, "output")]]:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Messages(record.where, turns)
