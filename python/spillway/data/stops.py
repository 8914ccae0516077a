"""Tokens that end an assistant's turn. A model learns to stop only if one of them carries loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spillway.data.fitting import ASK, MARK


class StopTokens:
    """A check over the encoded conversations of one source."""

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self.conversations = 0
        self.has_stop = False  # at least one conversation has a labelled stop token
        self._tokenizer = tokenizer
        self._template = template
        self._tokens: frozenset[int] | None = None

    def note(self, ids: Sequence[int], labelled: Sequence[bool]) -> None:
        """Looks for a stop token at the end of a run of labelled tokens."""
        self.conversations += 1
        for place, flag in enumerate(() if self.has_stop else labelled):
            is_last = place + 1 == len(ids) or not labelled[place + 1]
            if flag and is_last:
                self.has_stop |= self.ends_with_stop(ids, labelled, place)

    def ends_with_stop(self, ids: Sequence[int], labelled: Sequence[bool], last: int) -> bool:
        """True if a run of labelled tokens ends with a stop token, with or without whitespace after it."""
        for place in range(last, -1, -1):
            if not labelled[place] or ids[place] in self.tokens():
                return labelled[place]
            if self._tokenizer.decode([ids[place]]).strip():
                return False
        return False

    def tokens(self) -> frozenset[int]:
        if self._tokens is None:
            added = self._tokenizer.added_tokens_decoder  # Gemma's end of a turn is a special token without a name
            special = {index for index, token in added.items() if token.special}
            self._tokens = frozenset(special | {*self._tokenizer.all_special_ids})
        return self._tokens

    def sentence(self) -> str | None:
        """The warning for conversations without a labelled stop token; None if one has it."""
        if not self.conversations or self.has_stop:
            return None
        next_text = self.text_after_turn()
        after = f"; after a turn the chat template writes {next_text!r}" if next_text else ""
        return (
            "no token that ends an assistant's turn carries loss, so the model does not learn to stop (the tokenizer's "
            f"end token is {self._tokenizer.eos_token!r}{after}). Set chat_template_path to a template that ends turns "
            "with such a token inside {% generation %}, as TRL's *_training templates do"
        )

    def text_after_turn(self) -> str:
        """The special token, else the text, that the template writes after an assistant's turn."""
        messages = [ASK, {"role": "assistant", "content": MARK}, ASK]
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, chat_template=self._template)
        except Exception:  # a template may raise any error
            return ""
        rest = str(text).rpartition(MARK)[2].partition(ASK["content"])[0].strip()
        special = [token for token in self._tokenizer.convert_ids_to_tokens(sorted(self.tokens())) if token in rest]
        return min(special, key=rest.index) if special else rest.partition("\n")[0]
