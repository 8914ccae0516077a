"""Breaks production code on purpose, one rule or check at a time, and shows that the test named for it fails.

tests/mutations/*.toml lists the edits. A copy of the tree is edited and built; the tree itself stays as it is.

    mutations.py [WORD ...]   those whose name has one of these words, or of a list of that name; without any, all
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutations"
PLACE = ROOT / "build" / "mutations"
PYTHON = "python"  # the program of tests that pytest runs
SECONDS = 600  # that a test may take: one that hangs has failed, too


@dataclass(frozen=True)
class Edit:
    file: str
    find: str
    replace: str

    def apply(self, tree: Path) -> str:
        """The file's content before. ValueError where the text is not there once."""
        path = tree / self.file
        before = path.read_text(encoding="utf-8")
        if before.count(self.find) != 1:
            raise ValueError(f"{self.file} has {before.count(self.find)} times: {self.find.strip()}")
        path.write_text(before.replace(self.find, self.replace), encoding="utf-8")
        return before


@dataclass(frozen=True)
class Mutation:
    name: str
    list: str  # that it stands in
    edits: tuple[Edit, ...]
    program: str  # of tests
    tests: str  # which of them, as GoogleTest's filter or pytest has it; of the stress driver its arguments
    environment: dict[str, str]


def mutations() -> list[Mutation]:
    out = []
    for path in sorted(LISTS.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
            edits = [entry, *entry.get("also", [])]
            program, tests = entry["test"].split(" ", 1)
            edited = tuple(Edit(it["file"], it["find"], it["replace"]) for it in edits)
            out.append(Mutation(entry["name"], path.stem, edited, program, tests, entry.get("environment", {})))
    return out


def copy_tree() -> Path:
    """The files that git knows or would know. Those that have not changed keep their time, so little is built anew."""
    tree = PLACE / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    names = [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        to = tree / name
        content = (ROOT / name).read_bytes()
        if to.is_file() and to.read_bytes() == content:
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)
        shutil.copymode(ROOT / name, to)
    for path in list(tree.rglob("*")):
        name = path.relative_to(tree)
        if path.is_file() and name.parts[0] != "build" and str(name) not in names:
            path.unlink()
    return tree


def configure(tree: Path) -> Path:
    """As the package is built, so that a compiler's cache knows it; but each file of the rooms with most of the edits
    by itself: an edit of one costs that one."""
    build = tree / "build" / "wheel"
    if not (build / "build.ninja").exists():
        words = [
            "cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            "-DSPILLWAY_TESTS=ON", "-DSPILLWAY_EXAMPLES=OFF", "-DSPILLWAY_STRICT=OFF",
            "-DSPILLWAY_APART=spillway_storage;spillway_journal", "--log-level=WARNING",
        ]  # fmt: skip
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return build


def target(program: str) -> str:
    return program if program == "stress" else f"{program}_test"


def make(build: Path, programs: set[str]) -> str:
    """What the compiler says where it fails."""
    if not programs - {PYTHON}:
        return ""
    words = ["cmake", "--build", str(build), "--target", *sorted(target(program) for program in programs - {PYTHON})]
    ended = subprocess.run(words, capture_output=True, text=True)
    return "" if ended.returncode == 0 else ended.stdout[-3000:] + ended.stderr[-1000:]


def run(build: Path, tree: Path, mutation: Mutation) -> tuple[bool, str]:
    """Whether the tests passed, and the first that did not."""
    environment = os.environ | mutation.environment
    if mutation.program == PYTHON:
        environment["PYTHONPATH"] = str(package(tree))
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests.split()]
    else:
        words = [str(build / "tests" / target(mutation.program))]
        filtered = [f"--gtest_filter={mutation.tests}", "--gtest_brief=1"]
        words += mutation.tests.split() if mutation.program == "stress" else filtered
    try:
        ended = subprocess.run(
            words, cwd=tree, capture_output=True, text=True, errors="replace", timeout=SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return False, "it takes no end"
    told = [line for line in ended.stdout.splitlines() if line.startswith(("[  FAILED  ]", "FAILED", "stress: round"))]
    return ended.returncode == 0, told[0] if told else f"status {ended.returncode}"


def package(tree: Path) -> Path:
    """Where Python finds the edited package, with the engine that is installed."""
    there = importlib.util.find_spec("spillway")
    assert there is not None and there.origin is not None, "the package is not installed: make install"
    place = PLACE / "python"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(Path(there.origin).parent, place / "spillway", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tree / "python" / "spillway").rglob("*.py"):
        shutil.copyfile(path, place / path.relative_to(tree / "python"))
    return place


def try_one(build: Path, tree: Path, mutation: Mutation) -> str:
    """What is wrong with it; empty: its test notices."""
    before: dict[str, str] = {}
    try:
        for edit in mutation.edits:
            content = edit.apply(tree)
            before.setdefault(edit.file, content)
        if words := make(build, {mutation.program}):
            return f"does not compile:\n{words}"
        passed, told = run(build, tree, mutation)
        print(f"    {'passes' if passed else told}", flush=True)
        return "its test passes all the same" if passed else ""
    finally:
        for file, content in before.items():
            (tree / file).write_text(content, encoding="utf-8")


def unbroken(build: Path, tree: Path, chosen: list[Mutation]) -> list[str]:
    """Tests that fail without any mutation, and so show nothing."""
    if words := make(build, {mutation.program for mutation in chosen}):
        sys.exit(f"the tests do not compile:\n{words}")
    asked = {(it.program, it.tests, tuple(it.environment.items())): it for it in chosen}
    return [f"{it.program} {it.tests}" for it in asked.values() if not run(build, tree, it)[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    chosen = [it for it in mutations() if not words or any(word == it.list or word in it.name for word in words)]
    tree = copy_tree()
    build = configure(tree)
    began = time.monotonic()
    if failing := unbroken(build, tree, chosen):
        print("these fail without a mutation: " + ", ".join(failing))
        return 1
    missed = []
    for number, mutation in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {mutation.name}", flush=True)
        if wrong := try_one(build, tree, mutation):
            missed.append(f"{mutation.name}: {wrong}")
    make(build, {mutation.program for mutation in chosen})  # unbroken again
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutations make a test fail, {time.monotonic() - began:.0f} s")
    for line in missed:
        print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
