"""The keys of the upload to the Hub."""

from __future__ import annotations

from spillway.config.key import Key
from spillway.config.values import FLAG, TEXT, choice

STRATEGIES = ("end", "every_save", "checkpoint", "all_checkpoints")  # transformers'


def describe_other_strategy(value: object) -> str:
    return "" if value == "end" else f"{value} is not available in this release; there is end"


UPLOAD = [
    Key("push_to_hub", FLAG, False, "uploads the model to the Hugging Face Hub at the end of the run"),
    Key("hub_model_id", TEXT, None, "repository of the upload, such as `USER/NAME`", "the name of `output_dir`"),
    Key("hub_private_repo", FLAG, None, "whether a new repository is private", "as its owner's settings say"),
    Key(
        "hub_token",
        TEXT,
        None,
        "token for the upload. config.yaml does not keep it, so a resume needs it again",
        "HF_TOKEN, or that of `hf auth login`",
    ),
    Key(
        "hub_strategy",
        choice(*STRATEGIES),
        "end",
        "upload at the `end` of the run. The other values are refused",
        absent=describe_other_strategy,
    ),
]
SECRET = ("hub_token",)
