"""Columns with content that no example uses. A notice names each of them."""

from __future__ import annotations

from collections.abc import Sequence

from spillway.data.columns import Columns
from spillway.data.files import Record
from spillway.data.labels import LabelColumns

REASONS = {
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"), "training takes text alone"),
    **dict.fromkeys(("tools", "functions", "documents", "chat_template_kwargs"), "they belong to messages"),
    **dict.fromkeys(("system", "history"), "they belong to messages and to instruction and output"),
    **dict.fromkeys(("chosen", "rejected"), "pairs need `objective: dpo`, `orpo`, `cpo` or `reward`"),
    **dict.fromkeys(
        ("label", "labels", "kto_tag"),
        "judgements of completions need `objective: kto`, and classes of rows `text-classification`",
    ),
    "ner_tags": "labels of words need `objective: token-classification`",
    **dict.fromkeys(("completions", "rewards", "old_logprobs"), "groups of completions need `objective: grpo`"),
    **dict.fromkeys(("input_ids", "attention_mask", "assistant_masks", "completion_mask"), "rows are encoded here"),
    **dict.fromkeys(("parallel_tool_calls", "tool_choice", "function_call"), "the chat template has no such option"),
}
OPTIONS = "chat template variables belong into chat_template_kwargs"
NAMES_SHOWN = 20


class UnusedColumns:
    """The columns of one source that no example reads, in the order of their first row."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def note(self, record: Record, columns: Columns | LabelColumns, also: Sequence[str] = ()) -> None:
        """`also`: further columns that are used."""
        rest = record.row.keys() - columns.used_names(record) - self.names.keys() - {*also}
        for name in record.row if rest else ():
            if name in rest and record.row[name] not in (None, "", [], {}):
                self.names[name] = None

    def sentence(self, variables: set[str]) -> str | None:
        """The notice of the columns, with a reason for each known name. `variables`: names that the template reads."""
        if not self.names:
            return None
        descriptions = [self.describe(name, variables) for name in list(self.names)[:NAMES_SHOWN]]
        more = len(self.names) - len(descriptions)
        return f"columns not used: {', '.join(descriptions)}" + (f" and {more} more" if more else "")

    def describe(self, name: str, variables: set[str]) -> str:
        reason = OPTIONS if name in variables and name not in REASONS else REASONS.get(name)
        return f"{name} ({reason})" if reason else name
