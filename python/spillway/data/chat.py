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


class RewrittenTurns(InputError):
    """The template rewrites earlier turns, so the difference between two prefixes is not the assistant's turn."""


def load_training_template(tokenizer: Any, refusal: RewrittenTurns) -> str:
    """TRL's template for training in place of the refused one. InputError where TRL has none."""
    try:
        from trl.chat_template_utils import get_training_chat_template
    except ImportError:
        advice = "TRL has training templates for many models: install it with `pip install trl`"
        raise InputError(f"{refusal}. {advice}") from None
    try:
        template = get_training_chat_template(tokenizer)
    except Exception:  # the library renders its own conversations, and a template may raise any error
        template = None
    if template is None:
        raise InputError(f"{refusal}. TRL has no training template for it") from None
    return str(template)


def encode_messages(
    tokenizer: Any, chat: Messages, assistant_only: bool, template: str | None = None
) -> tuple[list[int], list[bool]]:
    """Token ids of the whole conversation, and which carry loss. `template` stands for the tokenizer's own."""
    if not tokenizer.chat_template:
        raise InputError(f"{chat.where}: messages need a chat template, the tokenizer has none; set chat_template_path")
    if not assistant_only:
        if chat.silent:
            raise InputError(f"{chat.where}: a turn has weight 0, which needs `assistant_only_loss: true`")
        ids = template_ids(tokenizer, chat, chat.messages, chat_template=template)
        return ids, [True] * len(ids)
    if has_markers(tokenizer, chat, template):
        return encode_by_markers(tokenizer, chat, template)
    return encode_by_prefixes(tokenizer, chat, template)


def has_markers(tokenizer: Any, chat: Messages, template: str | None) -> bool:
    text = tokenizer.get_chat_template(template, tools=chat.options.get("tools"))
    return re.search(r"\{%-?\s*generation\b", text) is not None


def applied(tokenizer: Any, chat: Messages, messages: list[dict[str, Any]], **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **chat.options, **options)
    except InputError:
        raise
    except Exception as error:  # templates raise what they like
        raise InputError(f"{chat.where}: the chat template refuses these messages: {error}") from None


def template_ids(tokenizer: Any, chat: Messages, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    return list(applied(tokenizer, chat, messages, **options)["input_ids"])


def encode_by_markers(tokenizer: Any, chat: Messages, template: str | None) -> tuple[list[int], list[bool]]:
    encoded = applied(tokenizer, chat, chat.messages, chat_template=template, return_assistant_tokens_mask=True)
    labelled = [bool(flag) for flag in encoded["assistant_masks"]]
    if chat.silent:
        silence_turns(chat, labelled)
    return list(encoded["input_ids"]), labelled


def silence_turns(chat: Messages, labelled: list[bool]) -> None:
    """Takes the loss from turns of weight 0: the template's spans are the assistant's turns in order."""
    begins = [place for place, flag in enumerate(labelled) if flag and not (place and labelled[place - 1])]
    turns = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
    if len(begins) != len(turns):
        raise InputError(
            f"{chat.where}: a turn has weight 0, but the chat template marks {len(begins)} spans for {len(turns)} "
            "assistant turns; leave such rows out"
        )
    for begin, index in zip(begins, turns, strict=True):
        place = begin
        while index in chat.silent and place < len(labelled) and labelled[place]:
            labelled[place] = False
            place += 1


def encode_by_prefixes(tokenizer: Any, chat: Messages, template: str | None) -> tuple[list[int], list[bool]]:
    more = {"chat_template": template}
    ids = template_ids(tokenizer, chat, chat.messages, **more)
    labelled = [False] * len(ids)
    for index, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        prefix = chat.messages[:index]
        before = template_ids(tokenizer, chat, prefix, add_generation_prompt=True, **more) if index else []
        turn = template_ids(tokenizer, chat, chat.messages[: index + 1], **more)
        if ids[: len(turn)] != turn or turn[: len(before)] != before:
            raise RewrittenTurns(
                f"{chat.where}: the chat template has no generation markers and rewrites earlier turns, so the "
                "assistant's tokens cannot be told; add {% generation %} markers (chat_template_path), or set "
                "assistant_only_loss: false"
            )
        if index not in chat.silent:
            labelled[len(before) : len(turn)] = [True] * (len(turn) - len(before))
    return ids, labelled
