"""What a row becomes: token ids, and which of them carry loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spillway.chat import encode_messages
from spillway.columns import Example, Messages, Pair, Text


@dataclass(frozen=True)
class Encoded:
    """One row. Position t of `labelled` says whether token t, predicted from those before it, carries loss."""

    ids: Sequence[int]
    labelled: Sequence[bool]


@dataclass
class Encoder:
    """The rules of one run, applied to rows of any kind."""

    tokenizer: Any
    completion_only_loss: bool = True
    assistant_only_loss: bool = True
    warnings: list[str] = field(default_factory=list)  # one a row, naming the row

    def encode(self, examples: list[Example]) -> list[Encoded]:
        """All of one kind, since they come from one source."""
        if not examples:
            return []
        if isinstance(examples[0], Text):
            return self.encode_texts([example.text for example in examples if isinstance(example, Text)])
        if isinstance(examples[0], Pair):
            return self.encode_pairs([example for example in examples if isinstance(example, Pair)])
        chats = [example for example in examples if isinstance(example, Messages)]
        return [Encoded(*encode_messages(self.tokenizer, chat, self.assistant_only_loss)) for chat in chats]

    def ids_of(self, texts: list[str]) -> list[list[int]]:
        return list(self.tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"])

    def encode_texts(self, texts: list[str]) -> list[Encoded]:
        """The tokenizer's own encoding, and one end token if none is there."""
        end = self.tokenizer.eos_token_id
        rows = self.ids_of(texts)
        for ids in rows:
            if end is not None and ids[-1:] != [end]:
                ids.append(end)
        return [Encoded(ids, [True] * len(ids)) for ids in rows]

    def encode_pairs(self, pairs: list[Pair]) -> list[Encoded]:
        """Prompt, completion and end token as one string; the tokens of the prompt alone are masked."""
        end = self.tokenizer.eos_token or ""
        wholes = self.ids_of([pair.prompt + pair.completion + end for pair in pairs])
        if not self.completion_only_loss:
            return [Encoded(ids, [True] * len(ids)) for ids in wholes]
        prompts = self.ids_of([pair.prompt for pair in pairs])
        return [self.masked(*row) for row in zip(pairs, wholes, prompts, strict=True)]

    def masked(self, pair: Pair, whole: list[int], prompt: list[int]) -> Encoded:
        if whole[: len(prompt)] != prompt:
            self.warnings.append(
                f"{pair.where}: the prompt's tokens are not the first tokens of prompt and completion together; "
                f"the first {len(prompt)} tokens are masked all the same"
            )
        masked = min(len(prompt), len(whole))
        return Encoded(whole, [False] * masked + [True] * (len(whole) - masked))
