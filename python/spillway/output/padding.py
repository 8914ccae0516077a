"""The padding token in a saved configuration, by which a classifier finds the last token of each row."""

from __future__ import annotations

from pathlib import Path

from spillway.base.documents import read_json
from spillway.base.files import write_json


def name_padding(path: Path, token: int) -> None:
    """Writes the token into the config.json at `path`."""
    content = read_json(path)
    content["pad_token_id"] = token
    write_json(path, content)
