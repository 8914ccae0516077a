"""Holds comments, messages and identifiers to the field's words, and prints each line with a word that was given up.

A word stands for itself, its plural, and what it is in identifiers: `control group` for ControlGroup and
control_groups, too. What users type or have on their drives keeps its name, which KEPT lists with the reason.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import checking


class Word(NamedTuple):
    gone: str
    write: str
    under: tuple[str, ...] = ("",)  # folders where it means what was renamed; elsewhere it is another word


# The methods of other systems have words of their own.
OURS = ("spillway", "python", "tests/plan", "tests/execute", "tests/contract", "docs", "ARCHITECTURE.md", "README.md")
CODE = ("spillway", "python", "tests", "research", "bench", "ARCHITECTURE.md")
PAGES = ("docs/how-to", "docs/reference", "docs/formats", "docs/decisions", "README.md", "CONTRIBUTING.md")
ENGINE = ("spillway/device", "spillway/execute", "spillway/machine", "spillway/memory", "spillway/sys", *OURS[1:])

WORDS = (
    Word("bookkeeper", "journal state"),
    Word("books", "journal"),
    Word("border", "boundary activation", OURS),
    Word("bury", "reap"),
    Word("buried", "reaped"),
    Word("calm", "unclipped streak"),
    Word("control group", "cgroup"),
    Word("core bytes", "gradient value bytes", CODE),
    Word("crew", "parallel-for"),
    Word("data set", "dataset"),
    Word("deal", "distribute, or striping"),
    Word("dealer", "striping policy, or distribution"),
    Word("dealing", "distribution"),
    Word("dealt", "distributed"),
    Word("far drive", "remote drive", ("spillway/plan", "spillway/machine")),
    Word("fit record", "refit record", CODE),
    Word("homeless", "unplaced write"),
    Word("has rest", "has remainder", CODE),
    Word("image", "chunk snapshot", ("spillway/journal", "docs/decisions")),
    Word("learning chunk", "trainable chunk", CODE),
    Word("learning element", "trainable element", CODE),
    Word("learns", "is trainable, or is trained", ("spillway", "research/study", "ARCHITECTURE.md", *PAGES)),
    Word("living", "device-resident", ("spillway", "tests/plan", "tests/contract", "docs/decisions")),
    Word("to the last bit", "bit for bit, or bit-identical"),
    Word("memory node", "NUMA node", ENGINE),
    Word("mourn", "fail all pending"),
    Word("pair fields", "projector fields", CODE),
    Word("passing", "device-updated", ("spillway/plan", "spillway/execute", "tests/plan", "tests/contract")),
    Word("patient", "idle priority"),
    Word("pretend", "use a fake"),
    Word("pretended", "fake"),
    Word("processor", "CPU", ("spillway", "python", *PAGES)),
    Word("rehearsal", "dry run"),
    Word("rehearse", "profile a dry run"),
    Word("rehearsed", "profiled by a dry run"),
    Word("residency", "placement", CODE),
    Word("residual", "remainder", ("spillway", "tests/kernels", "tests/execute", "tests/device")),
    Word("seal", "publish"),
    Word("sealed", "published"),
    Word("skeleton", "meta model"),
    Word("small granule", "unquantised granule", CODE),
    Word("team", "thread pool", CODE),
    Word("twin", "fake, simulated, copy, or duplicate"),
    Word("unlearned", "without projectors", CODE),
    Word("visit", "pass, or block pass", ("spillway", "python", "tests", "research", "bench", "ARCHITECTURE.md")),
    Word("visiting", "device groups", ("spillway",)),
    Word("tick", "update slot", ("spillway/plan", "spillway/execute", "tests/plan", "tests/execute")),
)

# Files in which a word keeps its place, and why.
KEPT = {
    ("python/spillway/report/page.py", "border"): "CSS has borders",
    ("python/spillway/run/session.py", "rehearsed"): "a key of the plan that a run leaves in its directory",
    ("bench/tiers.cc", "dealt"): "a name in files of results",
    ("bench/table.toml", "dealt"): "a name in files of results",
    ("research/claims.toml", "dealt"): "a name in files of results",
    ("docs/notes/measurements.md", "dealt"): "a name in files of results",
    ("python/spillway/base/files.py", "processor"): "the library's processors and their files",
    ("python/spillway/data/batches.py", "processor"): "the library's processors",
    ("python/spillway/data/images.py", "processor"): "the library's processors",
    ("python/spillway/run/described_images.py", "processor"): "the library's processors",
    ("python/spillway/model/measure/tower_operations.py", "processor"): "the library's processors",
    ("docs/how-to/plan-elsewhere.md", "processor"): "the library's processors",
    ("docs/reference/data.md", "processor"): "the library's processors",
    ("docs/how-to/trainer.md", "processor"): "the library's processors",
    ("docs/how-to/loop.md", "processor"): "the library's processors",
    ("python/spillway/data/order.py", "visit"): "an epoch visits rows",
    ("python/spillway/integrations/streamed_saves.py", "processor"): "the library's processors",
    ("python/spillway/model/source/source.py", "processor"): "the library's processors",
    ("spillway/device/staging_ring.cc", "visit"): "std::visit",
    ("spillway/device/cuda_launch.cc", "visit"): "std::visit",
    ("spillway/device/work.cc", "visit"): "std::visit",
    ("spillway/base/field_json.h", "visit"): "std::visit",
    ("tests/python/project/test_engine_stub.py", "visit"): "a method of Python's ast",
    ("scripts/make_stubs.py", "visit"): "methods of Python's ast",
    ("spillway/optimizer.h", "residual"): "a name in files",
    ("spillway/plan/summary.cc", "far drive"): "a key of plan.json",
    ("spillway/plan/summary.h", "far drive"): "a key of plan.json",
    ("spillway/plan/summary_fields.h", "far drive"): "a key of plan.json",
    ("spillway/state/checkpoint.h", "residual"): "a name of a file",
    ("spillway/kernels/element.h", "residual"): "a name in files",
    ("spillway/state/rule.h", "residual"): "a name in files",
    ("scripts/check_words.py", ""): "this list",
    ("tests/python/project/test_check_words.py", ""): "its test",
    ("tests/python/data/test_order.py", "visit"): "an epoch visits rows",
    ("tests/python/model/test_saved.py", "rehearsed"): "a key of the plan that a run leaves in its directory",
}

FOLDERS = ("spillway", "python", "tests", "docs", "bench", "research", "scripts", "examples")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".pyi", ".md", ".toml", ".txt"}


def pattern(phrase: str) -> re.Pattern[str]:
    """Finds the words of a phrase in text and as parts of identifiers, in snake_case and in CamelCase."""
    first, *others = phrase.split()
    begins = rf"(?:(?<![A-Za-z]){first[0]}|{first[0].upper()}){first[1:]}"
    follows = "".join(rf"(?:[ _]{word[0]}|[ _]?{word[0].upper()}){word[1:]}" for word in others)
    return re.compile(rf"{begins}{follows}s?(?![a-z])")


def sources(root: Path) -> Iterator[Path]:
    """Paths from the root, sorted, of all files that people write."""
    found = [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in SUFFIXES]
    for file in sorted([*root.glob("*.md"), *found]):
        yield file.relative_to(root)


def violations(root: Path) -> Iterator[str]:
    """One line per word in the tree under `root`, as FILE:LINE: what to write instead."""
    patterns = {word: pattern(word.gone) for word in WORDS}
    for path in map(str, sources(root)):
        if (path, "") in KEPT:
            continue
        here = [w for w in WORDS if any(map(path.startswith, w.under)) and (path, w.gone) not in KEPT]
        for number, line in enumerate((root / path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for word in here:
                if patterns[word].search(line):
                    yield f"{path}:{number}: write {word.write} instead of {word.gone!r}"


if __name__ == "__main__":
    wrong = "that were given up for the field's"
    sys.exit(checking.main(violations, "spillway", "words", wrong, "all are the field's"))
