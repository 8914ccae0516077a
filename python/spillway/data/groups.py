"""Rows of sampled completions: a prompt, a group of completions, a reward and log-probabilities of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from spillway.data.files import Record
from spillway.data.turns import read_column, read_system_turns, read_template_options, read_turns
from spillway.errors import InputError

IDS = ("prompt_ids", "completion_ids")  # columns that stand in place of prompt and completions


@dataclass(frozen=True)
class Group:
    """One row. `prompt` and each of `completions` are texts, or all are messages."""

    where: str
    prompt: Any
    completions: list[Any]
    ids: tuple[list[int], list[list[int]]] | None  # tokens of the prompt and of each completion; None: to be encoded
    rewards: tuple[float, ...]
    old: tuple[tuple[float, ...], ...]  # of each completion: the log-probability of each token when it was sampled
    options: dict[str, Any]  # of the chat template


def read_group(record: Record) -> Group:
    """InputError for a row whose columns do not belong together."""
    where = record.where
    ids = read_ids(record) if any(name in record.row for name in IDS) else None
    name = "completion_ids" if ids else "completions"
    completions = read_lists(record, name)
    rewards = tuple(read_number(where, "rewards", value) for value in read_lists(record, "rewards"))
    old = tuple(read_old(where, number, each) for number, each in enumerate(read_lists(record, "old_logprobs"), 1))
    for column, values in (("rewards", rewards), ("old_logprobs", old)):
        if len(values) != len(completions):
            raise InputError(
                f"{where}: {column} has {len(values)} items, {name} has {len(completions)}; expects one for each "
                "completion"
            )
    if len(completions) < 2:
        raise InputError(
            f"{where}: {name} holds one completion, and an advantage compares those of a group; expects 2 or more"
        )
    if ids is not None:
        return Group(where, "", [], ids, rewards, old, {})
    return read_answers(record, completions, rewards, old)


def read_answers(
    record: Record, completions: list[Any], rewards: tuple[float, ...], old: tuple[tuple[float, ...], ...]
) -> Group:
    """A group of texts or of messages."""
    prompt = read_column(record, "prompt")
    if isinstance(prompt, str) and all(isinstance(each, str) for each in completions):
        return Group(record.where, prompt, completions, None, rewards, old, {})
    if not isinstance(prompt, list) or not all(isinstance(each, list) for each in completions):
        raise InputError(
            f"{record.where}: prompt and completions are of different kinds; expects a text and texts, or messages and "
            "lists of messages"
        )
    turns = read_turns(record, "prompt")
    answers = [read_turns(Record(record.where, {"completions": each}), "completions") for each in completions]
    return Group(
        record.where, read_system_turns(record, turns) + turns, answers, None, rewards, old,
        read_template_options(record),
    )  # fmt: skip


def read_ids(record: Record) -> tuple[list[int], list[list[int]]]:
    for name in IDS:
        if name not in record.row:
            raise InputError(f"{record.where}: the column {name!r} is missing; tokens are given by {' and '.join(IDS)}")
    prompt, completions = (read_lists(record, name) for name in IDS)
    for name, ids in ((IDS[0], prompt), *((IDS[1], each) for each in completions)):
        if not isinstance(ids, list) or not ids or not all(is_token(token) for token in ids):
            raise InputError(f"{record.where}: {name} holds something else than lists of tokens, numbers of 0 or more")
    return prompt, completions


def is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def read_lists(record: Record, name: str) -> list[Any]:
    value = read_column(record, name)
    if not isinstance(value, list) or not value:
        kind = "null" if value is None else "empty" if value == [] else type(value).__name__
        raise InputError(f"{record.where}: the column {name!r} is {kind}; expects a list")
    return value


def read_old(where: str, number: int, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise InputError(f"{where}: old_logprobs of completion {number} is {type(values).__name__}; expects a list")
    return tuple(read_number(where, f"old_logprobs of completion {number}", value) for value in values)


def read_number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: {name} holds {'null' if value is None else repr(value)}; expects finite numbers")
    return float(value)


def check_lengths(group: Group, tokens: list[int]) -> None:
    """InputError where a completion and its log-probabilities differ in length. `tokens`: those of each completion."""
    for number, (count, old) in enumerate(zip(tokens, group.old, strict=True), start=1):
        if count != len(old):
            advice = "expects one a token" if group.ids else "expects one a token, the end token included; record " \
                "prompt_ids and completion_ids where the tokens are others"  # fmt: skip
            raise InputError(
                f"{group.where}: old_logprobs of completion {number} holds {len(old)} numbers, the completion has "
                f"{count} tokens; {advice}"
            )
