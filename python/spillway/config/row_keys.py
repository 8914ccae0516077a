"""The keys of rows: where they come from, which columns they have, and what becomes of them."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import FLAG, TEXT, choice, whole

LINES, ALPACA, CHAT = TEMPLATES = ("lines", "alpaca", "chat")  # values of `prompt_template`
ROWS = [
    Key(
        "dataset",
        TEXT,
        None,
        "file (.jsonl, .json, .csv, .tsv, .txt, .parquet), directory of data, or dataset on the hub",
        required=True,
    ),
    Key("dataset_config", TEXT, None, "configuration of a named dataset"),
    Key("dataset_split", TEXT, "train", "split of a named dataset"),
    Key("dataset_revision", TEXT, None, "branch, tag or commit of a named dataset", "main"),
    Key("eval_dataset", TEXT, None, "held-out file or dataset name"),
    Key("eval_dataset_split", TEXT, "test", "split of a named `eval_dataset`"),
    Key("eval_dataset_revision", TEXT, None, "branch, tag or commit of a named `eval_dataset`", "main"),
    Key("dataset_text_field", TEXT, None, "column with the text", "found by name"),
    Key("prompt_field", TEXT, None, "column with the prompt", "found by name"),
    Key("completion_field", TEXT, None, "column with the completion", "found by name"),
    Key("messages_field", TEXT, None, "column with the messages", "found by name"),
    Key("prompt_template", choice(*TEMPLATES), LINES, "prompt of rows with `instruction`, `input` and `output`"),
    Key("completion_only_loss", FLAG, True, "the loss counts the completion and not the prompt"),
    Key("assistant_only_loss", FLAG, True, "in messages, the loss counts only the assistant's turns"),
    Key(
        "max_length",
        whole(2),
        1024,
        "largest number of tokens in a row. Longer rows are cut, or refused if no part may be missing",
    ),
    Key("packing", FLAG, False, "rows are joined and cut into pieces of `max_length`"),
    Key("eval_packing", FLAG, None, "`packing` for `eval_dataset`", "as `packing`"),
]
