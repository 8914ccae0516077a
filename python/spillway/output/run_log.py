"""output_dir/spillway/log.txt: messages of a run that has lost its terminal."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

from spillway.base.files import no_link
from spillway.output.identity import LOG


class RunLog(io.TextIOBase):
    """A stream that holds its text until the run has a directory, then appends. A full disk loses text, not the run."""

    def __init__(self) -> None:
        self._text = ""
        self._path: Path | None = None

    def append_to(self, output_dir: Path) -> None:
        """Appends the text to the log in the run's directory, now that a fresh start has cleared it."""
        self._path = output_dir / LOG
        self.flush()

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        if self._path is None or not self._text:
            return
        with suppress(OSError), open(self._path, "a", encoding="utf-8", errors="replace", opener=no_link) as stream:
            stream.write(self._text)
        self._text = ""
