"""Digests of the inputs of a run's tokens, one for each input, and the clock that templates read.

The digest of all tokens shows that an input changed; the digests here show which one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

ROWS, TOKENIZER, TEMPLATE = "rows", "tokenizer", "template"


class RowsDigest:
    """The digest of rows as they are read, in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, row: dict[str, Any]) -> None:
        self._digest.update(json.dumps(row, sort_keys=True, default=describe_value).encode() + b"\n")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def describe_value(value: Any) -> str:
    """A text for a value that JSON has no form for. The text of a Pillow image has an address, so its type stands for
    it."""
    return type(value).__name__ if hasattr(value, "tobytes") else repr(value)


def digest_tokenizer(tokenizer: Any) -> dict[str, str]:
    """The digests of a tokenizer and of its chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    special = json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str)
    template = json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True)
    return {TOKENIZER: digest_text(content + special), TEMPLATE: digest_text(template)}


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Clock:
    """The time that chat templates render (`strftime_now`): the start of the run. So a resume renders the same text."""

    def __init__(self, started: datetime) -> None:
        self.started = started
        self.is_read = False  # a template has read the time

    def now(self) -> Clock:
        """The clock itself, in place of `datetime.now()`."""
        return self

    def strftime(self, form: str) -> str:
        self.is_read = True
        return self.started.strftime(form)

    def give_to(self, tokenizer: Any) -> None:
        """Makes the tokenizer render this time in every later conversation."""
        tokenizer.apply_chat_template = partial(self._apply, tokenizer.apply_chat_template)

    def _apply(self, apply: Callable[..., Any], *positional: Any, **named: Any) -> Any:
        with self._replace_clock():
            return apply(*positional, **named)

    @contextmanager
    def _replace_clock(self) -> Iterator[None]:
        """Replaces `datetime` in the library's module, since templates take no function from a caller."""
        from transformers.utils import chat_template_utils

        library: Any = chat_template_utils
        original, library.datetime = library.datetime, self
        try:
            yield
        finally:
            library.datetime = original
