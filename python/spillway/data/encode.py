"""What a row becomes: token ids, and which of them carry loss."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from spillway.config.objectives import ANSWERS
from spillway.data.chat import encode_messages, template_ids
from spillway.data.columns import Example, Judged, Messages, Pair, Preferred, Ranked, Text
from spillway.data.fitting import TemplateFit
from spillway.data.groups import Group, check_lengths
from spillway.data.images import ImageReader, ImageTokenizer, Picture, digest_tensors
from spillway.data.stops import StopTokens
from spillway.errors import InputError
from spillway.model.batches.batch import count_bytes


@dataclass(frozen=True)
class Encoded:
    """One row. Position t of `labelled` says whether token t, predicted from those before it, carries loss."""

    ids: Sequence[int]
    labelled: Sequence[bool]
    picture: Picture | None = None


@dataclass(frozen=True)
class EncodedPair:
    """One row of preferences; the prompt is what both begin with."""

    chosen: Encoded
    rejected: Encoded


@dataclass(frozen=True)
class EncodedAnswer:
    """One judged row."""

    answer: Encoded
    label: bool


@dataclass(frozen=True)
class EncodedRanked:
    """A pair of rows without labels; `where`: its row."""

    where: str
    chosen: Encoded
    rejected: Encoded
    margin: float | None


@dataclass(frozen=True)
class EncodedGroup:
    """One row of sampled completions, each with its prompt; `old`: log-probabilities of their tokens."""

    where: str
    rows: tuple[Encoded, ...]
    rewards: tuple[float, ...]
    old: tuple[tuple[float, ...], ...]


@dataclass
class Encoder:
    """The rules of one run, applied to rows of any kind."""

    tokenizer: Any
    completion_only_loss: bool = True
    assistant_only_loss: bool = True
    template: str | None = None  # a chat template that replaces the tokenizer's
    is_framed: bool = False  # pairs begin with the tokenizer's first token and end with its end token
    warnings: list[str] = field(default_factory=list)  # one a row, naming the row
    reader: ImageReader | None = None  # of images; None: rows have none
    image_tokens: Collection[int] = ()  # that stand for images
    fitting: TemplateFit = field(init=False)
    stops: StopTokens = field(init=False)

    def __post_init__(self) -> None:
        self.fitting = TemplateFit(self.tokenizer, self.template)
        self.stops = StopTokens(self.tokenizer, self.template)

    def encode(self, examples: list[Example]) -> list[Encoded]:
        """Rows of one source: texts, prompts with completions, or messages."""
        if not examples:
            return []
        if len({type(example) for example in examples}) > 1:
            first = next(example for example in examples if type(example) is not type(examples[0]))
            raise InputError(f"{first.where}: its columns are of other types than those of {examples[0].where}")
        if isinstance(examples[0], Text):
            return self.encode_texts([example.text for example in examples if isinstance(example, Text)])
        if isinstance(examples[0], Pair):
            return self.encode_pairs([example for example in examples if isinstance(example, Pair)])
        chats = [example for example in examples if isinstance(example, Messages)]
        return [self.encode_chat(self.fitting.fit(chat)) for chat in chats]

    def encode_chat(self, chat: Messages) -> Encoded:
        if chat.images:
            return self.encode_with_images(chat)
        return self.encode_turns(self.tokenizer, chat)

    def encode_turns(self, tokenizer: Any, chat: Messages) -> Encoded:
        if not chat.prompt_turns or not self.completion_only_loss:
            row = Encoded(*encode_messages(tokenizer, chat, self.assistant_only_loss, self.template))
        else:
            row = self.encode_completion(tokenizer, chat)
        self.stops.note(row.ids, row.labelled)
        return row

    def encode_with_images(self, chat: Messages) -> Encoded:
        """Images have the tokens that the model's own code gives them, which carry no loss."""
        assert self.reader is not None
        tokenizer = ImageTokenizer(self.tokenizer, self.reader, chat)
        row = self.encode_turns(tokenizer, chat)
        options = {**chat.options, "chat_template": self.template}
        text = tokenizer.apply_chat_template(chat.messages, tokenize=False, **options)
        ids, others = tokenizer.make(text, len(chat.images))
        if ids != list(row.ids):
            raise InputError(f"{chat.where}: the model's own code gives the row other tokens the second time")
        labelled = [flag and token not in self.image_tokens for flag, token in zip(row.labelled, ids, strict=True)]
        picture = Picture(chat.where, text, chat.images, digest_tensors(others), count_bytes(others))
        return Encoded(ids, labelled, picture)

    def encode_completion(self, tokenizer: Any, chat: Messages) -> Encoded:
        """The tokens of a prompt and its completion. The completion begins where the prompt alone and both together
        first differ. With assistant_only_loss, the assistant's turns alone carry loss."""
        others = any(message["role"] != "assistant" for message in chat.messages[chat.prompt_turns :])
        only_answers = bool(chat.silent) or (others and self.assistant_only_loss)
        if chat.silent and not self.assistant_only_loss:
            raise InputError(f"{chat.where}: a turn has weight 0, which needs `assistant_only_loss: true`")
        ids, answers = encode_messages(tokenizer, chat, only_answers, self.template)
        prompt_messages = chat.messages[: chat.prompt_turns]
        options = {"add_generation_prompt": True, "chat_template": self.template}
        prompt = template_ids(tokenizer, chat, prompt_messages, **options)
        first = common(prompt, ids)
        if first < len(prompt):
            self.warn_of_boundary(chat.where, first, len(prompt))
        return Encoded(ids, [False] * first + answers[first:])

    def warn_of_boundary(self, where: str, first: int, length: int) -> None:
        self.warnings.append(
            f"{where}: the prompt's tokens are not the first tokens of prompt and completion together; the completions "
            f"begin after {first} of {length} tokens, where they differ"
        )

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

    def encode_preferences(self, rows: list[Preferred]) -> list[EncodedPair]:
        """Encodes pairs as TRL does: the completions begin where the prompt alone and the prompt with one of them first
        differ."""
        conversations = isinstance(rows[0].prompt, list)
        wholes = self.encoded_messages(rows) if conversations else self.encoded_strings(rows)
        return [self.pair(row, *ids) for row, ids in zip(rows, wholes, strict=True)]

    def encoded_strings(self, rows: list[Preferred]) -> list[tuple[list[int], list[int], list[int]]]:
        """Prompt, and with each of the completions, which end with an end token."""
        prompts = self.ids_of([row.prompt for row in rows])
        chosen = self.ids_of([row.prompt + self.end(row.chosen) for row in rows])
        rejected = self.ids_of([row.prompt + self.end(row.rejected) for row in rows])
        return list(zip(prompts, chosen, rejected, strict=True))

    def end(self, text: str) -> str:
        """The text with an end token."""
        end = self.tokenizer.eos_token or ""
        return text if text.endswith(end) else text + end

    def encoded_messages(self, rows: list[Preferred]) -> list[tuple[list[int], list[int], list[int]]]:
        self.require_template(rows[0].where)
        return [self.encode_preferred(row) for row in rows]

    def require_template(self, where: str) -> None:
        if not self.tokenizer.chat_template:
            raise InputError(f"{where}: messages need a chat template, the tokenizer has none; set chat_template_path")

    def encode_preferred(self, row: Preferred) -> tuple[list[int], list[int], list[int]]:
        """Tokens of the prompt, of the prompt with the chosen and of the prompt with the rejected completion."""
        turns = len(row.prompt)
        chosen, rejected = (
            self.fitting.fit(Messages(row.where, row.prompt + completion, row.options))
            for completion in (row.chosen, row.rejected)
        )
        prompt = template_ids(self.tokenizer, chosen, chosen.messages[:turns], add_generation_prompt=True)
        with_chosen, with_rejected = (template_ids(self.tokenizer, chat, chat.messages) for chat in (chosen, rejected))
        return prompt, with_chosen, with_rejected

    def encode_judged(self, rows: list[Judged]) -> list[EncodedAnswer]:
        """Encodes answers as TRL's KTOTrainer does."""
        if isinstance(rows[0].prompt, list):
            self.require_template(rows[0].where)
            wholes = [self.encode_judged_messages(row) for row in rows]
        else:
            answers = self.ids_of([row.prompt + self.end(row.completion) for row in rows])
            wholes = list(zip(self.ids_of([row.prompt for row in rows]), answers, strict=True))
        return [EncodedAnswer(self.divide(row.where, *ids), row.label) for row, ids in zip(rows, wholes, strict=True)]

    def encode_judged_messages(self, row: Judged) -> tuple[list[int], list[int]]:
        chat = self.fitting.fit(Messages(row.where, row.prompt + row.completion, row.options))
        prompt = template_ids(self.tokenizer, chat, chat.messages[: len(row.prompt)], add_generation_prompt=True)
        return prompt, template_ids(self.tokenizer, chat, chat.messages)

    def encode_groups(self, groups: list[Group]) -> list[EncodedGroup]:
        """Encodes completions as `encode_judged` does; token ids stand for themselves."""
        return [self.encode_group(group) for group in groups]

    def encode_group(self, group: Group) -> EncodedGroup:
        if group.ids is not None:
            prompt, completions = group.ids
            rows = [Encoded([*prompt, *ids], [False] * len(prompt) + [True] * len(ids)) for ids in completions]
        else:
            judged = [Judged(group.where, group.prompt, each, True, group.options) for each in group.completions]
            rows = [each.answer for each in self.encode_judged(judged)]
        check_lengths(group, [sum(row.labelled) for row in rows])
        return EncodedGroup(group.where, tuple(rows), group.rewards, group.old)

    def encode_ranked(self, rows: list[Ranked]) -> list[EncodedRanked]:
        """Encodes pairs as TRL's RewardTrainer does: whole rows, texts with an end token."""
        if isinstance(rows[0].chosen, list):
            self.require_template(rows[0].where)
            wholes = [[self.encode_whole(row, each) for row in rows] for each in ANSWERS]
        else:
            wholes = [self.ids_of([row.prompt + self.end(getattr(row, each)) for row in rows]) for each in ANSWERS]
        chosen, rejected = ([Encoded(ids, [False] * len(ids)) for ids in side] for side in wholes)
        return [
            EncodedRanked(row.where, *pair, row.margin)
            for row, pair in zip(rows, zip(chosen, rejected, strict=True), strict=True)
        ]

    def encode_whole(self, row: Ranked, name: str) -> list[int]:
        chat = self.fitting.fit(Messages(row.where, row.prompt + getattr(row, name), row.options))
        return template_ids(self.tokenizer, chat, chat.messages)

    def divide(self, where: str, prompt: list[int], ids: list[int]) -> Encoded:
        """The row whose completion begins where it and the prompt alone first differ."""
        first = common(prompt, ids)
        if first < len(prompt):
            self.warn_of_boundary(where, first, len(prompt))
        return Encoded(ids, [False] * first + [True] * (len(ids) - first))

    def pair(self, row: Preferred, prompt: list[int], chosen: list[int], rejected: list[int]) -> EncodedPair:
        first = min(common(prompt, chosen), common(prompt, rejected))
        if first < len(prompt):
            self.warn_of_boundary(row.where, first, len(prompt))
        rows = (Encoded(ids, [False] * first + [True] * (len(ids) - first)) for ids in (chosen, rejected))
        return EncodedPair(*(map(self.frame, rows) if self.is_framed else rows))

    def frame(self, row: Encoded) -> Encoded:
        """The row with the tokenizer's first token and its end token, as TRL's ORPOTrainer and CPOTrainer add them."""
        ids, labelled = list(row.ids), list(row.labelled)
        first, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if first is not None and (labelled[:1] != [False] or ids[0] != first):
            ids, labelled = [first, *ids], [False, *labelled]
        if end is not None and (not labelled[-1:] == [True] or ids[-1] != end):
            ids, labelled = [*ids, end], [*labelled, True]
        return Encoded(ids, labelled)


def common(one: list[int], other: list[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
