"""Conversations through the tokenizer's chat template, and which tokens are the assistant's.

The template's own generation markers decide where it has them; else the difference between the conversation up to an
assistant's turn and with it; a template that rewrites earlier turns allows neither and is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spillway.base.documents import read_text
from spillway.data.columns import Messages
from spillway.errors import InputError, first_line


def set_template(tokenizer: Any, path: str) -> None:
    """Takes the template from a Jinja file, or from a directory with a tokenizer."""
    file = Path(path, "chat_template.jinja") if Path(path).is_dir() else Path(path)
    if file.exists() and not file.is_dir():
        try:
            tokenizer.chat_template = read_text(file)
        except (OSError, ValueError) as error:
            raise InputError(f"chat_template_path: {file}: {first_line(error)}") from None
        return
    from transformers import AutoTokenizer

    try:
        template = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False).chat_template
    except Exception as error:  # the library raises whatever its readers raise
        raise InputError(f"chat_template_path: no tokenizer can be loaded from {path}: {first_line(error)}") from None
    if template is None:
        raise InputError(f"chat_template_path: {path} has no chat template")
    tokenizer.chat_template = template


def encode_messages(tokenizer: Any, chat: Messages, assistant_only: bool) -> tuple[list[int], list[bool]]:
    """Token ids of the whole conversation, and which carry loss."""
    if not tokenizer.chat_template:
        raise InputError(f"{chat.where}: messages need a chat template, the tokenizer has none; set chat_template_path")
    if not assistant_only:
        ids = template_ids(tokenizer, chat, chat.messages)
        return ids, [True] * len(ids)
    if re.search(r"\{%-?\s*generation\b", tokenizer.get_chat_template()):
        return by_markers(tokenizer, chat)
    return by_prefixes(tokenizer, chat)


def applied(tokenizer: Any, chat: Messages, messages: list[dict[str, Any]], **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
    except Exception as error:  # templates raise what they like
        raise InputError(f"{chat.where}: the chat template refuses these messages: {error}") from None


def template_ids(tokenizer: Any, chat: Messages, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    return list(applied(tokenizer, chat, messages, **options)["input_ids"])


def by_markers(tokenizer: Any, chat: Messages) -> tuple[list[int], list[bool]]:
    encoded = applied(tokenizer, chat, chat.messages, return_assistant_tokens_mask=True)
    return list(encoded["input_ids"]), [bool(flag) for flag in encoded["assistant_masks"]]


def by_prefixes(tokenizer: Any, chat: Messages) -> tuple[list[int], list[bool]]:
    ids = template_ids(tokenizer, chat, chat.messages)
    labelled = [False] * len(ids)
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        before = template_ids(tokenizer, chat, chat.messages[:index], add_generation_prompt=True) if index else []
        turn = template_ids(tokenizer, chat, chat.messages[: index + 1])
        if ids[: len(turn)] != turn or turn[: len(before)] != before:
            raise InputError(
                f"{chat.where}: the chat template has no generation markers and rewrites earlier turns, so the "
                "assistant's tokens cannot be told; add {% generation %} markers (chat_template_path), or set "
                "assistant_only_loss: false"
            )
        labelled[len(before) : len(turn)] = [True] * (len(turn) - len(before))
    return ids, labelled
