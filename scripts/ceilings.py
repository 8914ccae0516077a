"""Counts of faults by folder and rule, held under ceilings that only fall.

check_X.py [TREE]           fails if a count exceeds its ceiling, and lists the lines
check_X.py --list [PATH]    lists every fault of the files that begin with PATH
check_X.py --lower          writes the counts that fell as the ceilings
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import checking

Key = tuple[str, str]  # folder, rule
ROOT = Path(__file__).resolve().parent.parent


class Fault(NamedTuple):
    page: str  # the file's path in the tree
    line: int
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.rule}: {self.words}"


@dataclass(frozen=True)
class Check:
    name: str  # check_NAME.py, NAME.toml
    rules: dict[str, str]  # what breaks each, in words
    find: Callable[[Path], Iterable[Fault]]
    folder_of: Callable[[str], str]  # the folder whose ceiling counts a file
    remedy: str  # a sentence

    @property
    def file(self) -> str:
        return f"scripts/{self.name}.toml"

    def count(self, faults: Iterable[Fault]) -> Counter[Key]:
        return Counter((self.folder_of(fault.page), fault.rule) for fault in faults)

    def read(self, root: Path) -> dict[Key, int]:
        path = root / self.file
        table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {(folder, rule): number for folder, rules in table.items() for rule, number in rules.items()}

    def lower(self, root: Path) -> None:
        """Writes the counts that fell. Without a file each count is its ceiling."""
        counts, old = self.count(self.find(root)), self.read(root)
        ceilings = {key: min(old.get(key, counts[key]), counts[key]) for key in old or counts}
        script = f"scripts/check_{self.name}.py"
        lines = [f"# Lines that break a rule of {script}, at most, by folder. Written by its --lower."]
        for folder in sorted({folder for folder, _ in ceilings}):
            lines += ["", f'["{folder}"]', *(f"{rule} = {ceilings.get((folder, rule), 0)}" for rule in self.rules)]
        (root / self.file).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def violations(self, root: Path) -> Iterator[str]:
        """A line for each folder and rule over its ceiling, and for each of its faults."""
        faults = list(self.find(root))
        counts, ceilings = self.count(faults), self.read(root)
        for key in sorted(counts):
            folder, rule = key
            number, most = counts[key], ceilings.get(key, 0)
            if number > most:
                yield from (str(it) for it in faults if (self.folder_of(it.page), it.rule) == key)
                yield f"{folder}: {number} {self.rules[rule]}, and the ceiling is {most}. {self.remedy}"
        if low := [f"{folder} ({rule})" for (folder, rule), most in ceilings.items() if counts[folder, rule] < most]:
            print(f"{self.name}: better than the ceiling in {', '.join(low)}: run scripts/check_{self.name}.py --lower")

    def main(self) -> int:
        if sys.argv[1:2] == ["--lower"]:
            self.lower(ROOT)
            return 0
        if sys.argv[1:2] == ["--list"]:
            prefix = sys.argv[2] if len(sys.argv) > 2 else ""
            print(*(fault for fault in self.find(ROOT) if fault.page.startswith(prefix)), sep="\n")
            return 0
        return checking.main(self.violations, "spillway", self.name, "lines to read", "no folder exceeds its ceiling")
