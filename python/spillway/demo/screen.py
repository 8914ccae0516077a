"""What the tour prints: numbered headings, short lines, and promises that were kept or not."""

import sys
import textwrap
import time
from collections.abc import Iterable

WIDTH = 110


class Screen:
    """Prints as it goes and remembers which promises were broken."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._colour = sys.stdout.isatty()
        self._section = 0
        self._start = time.monotonic()

    def heading(self, text: str) -> None:
        self._section += 1
        self._print(f"\n{self._paint('1', f'{self._section}. {text}')}")

    def line(self, text: str = "") -> None:
        self._print(f"   {text}".rstrip())

    def command(self, words: Iterable[str]) -> None:
        self._print(self._paint("2", f"   $ {' '.join(words)}"))

    def quote(self, text: str, lines: int | None = None) -> None:
        """Words of a program or a model, set apart; at most `lines` lines of them, long ones folded."""
        for line in text.strip().splitlines()[:lines]:
            for part in textwrap.wrap(line, WIDTH) or [""]:
                self._print(f"   | {part}")

    def promise(self, kept: bool, text: str) -> None:
        mark = self._paint("32", "yes") if kept else self._paint("31;1", "NO ")
        self._print(f"   {mark} {text}")
        if not kept:
            self.broken.append(text)

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def _print(self, text: str) -> None:
        print(text, flush=True)


def mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB" if count < 10 * 2**30 else f"{count / 2**30:,.1f} GiB"
