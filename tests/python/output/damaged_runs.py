"""Commands over damaged files, one after another in a process of its own: `python damaged_runs.py CASES OUTCOMES`.

SPILLWAY_DAMAGES_REPORT names a file to which each test appends its counts and what it has found.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from damages import Damage
from real_runs import apart

LIMIT = 7000  # seconds of all commands together
ALARM = 60  # seconds of one
CODES = (0, 1, 2, 3)


def as_case(name: str, file: Path, damage: Damage, command: list[str], **more: Any) -> dict[str, Any]:
    """`out`: removed before the command. `whole`, `place`: a tree, and where a copy of it is made first. `head`: the
    damage replaces only the first bytes of the file. `listed`: lists of digests stay in the copy."""
    title = f"{name}: {damage.name}: {command[0]}"
    case = {"name": title, "file": str(file), "content": damage.content.hex(), "kind": damage.kind, "words": command}
    return case | {key: str(value) if isinstance(value, Path) else value for key, value in more.items()}


def find_unexplained(cases: list[dict[str, Any]], place: Path) -> list[tuple[str, int, str]]:
    """Damages that end without a sentence, by their names, exit codes and errors."""
    cases_file, outcomes_file = place / "cases.json", place / "outcomes.json"
    cases_file.write_text(json.dumps(cases))
    process = apart(__file__, str(cases_file), str(outcomes_file), forked=True)
    _, error = process.communicate(timeout=LIMIT)
    outcomes = json.loads(outcomes_file.read_text()) if outcomes_file.exists() else []
    if len(outcomes) < len(cases):  # it hung, or ended without a word
        outcomes.append([cases[len(outcomes)]["name"], process.returncode, f"Traceback {error}"])
    found = [(name, code, words[-2000:]) for name, code, words in outcomes if not is_explained(code, words)]
    if report := os.environ.get("SPILLWAY_DAMAGES_REPORT"):
        with open(report, "a") as stream:
            stream.write(json.dumps({"outcomes": len(outcomes), "of": len(cases), "found": found}) + "\n")
    return found


def is_explained(code: int, words: str) -> bool:
    if "shows where" in words or "Traceback" in words or code not in CODES:
        return False
    return code not in (2, 3) or any(line.startswith("spillway: ") for line in words.splitlines())


@contextlib.contextmanager
def damage_file(case: dict[str, Any]) -> Iterator[None]:
    """A context in which the file of a case is damaged."""
    file = Path(case["file"])
    if case.get("place"):
        shutil.rmtree(case["place"], ignore_errors=True)
        shutil.copytree(case["whole"], case["place"])
    if not case.get("listed", True):
        for path in Path(case["place"]).rglob("files.json"):
            path.unlink()
    before = None if case.get("place") else file.read_bytes()
    put(file, case["kind"], bytes.fromhex(case["content"]), bool(case.get("head")))
    try:
        yield
    finally:
        if before is not None:
            remove(file)
            file.write_bytes(before)


def put(file: Path, kind: str, content: bytes, is_head: bool) -> None:
    if is_head:
        with open(file, "r+b") as stream:
            stream.write(content)
        return
    remove(file)
    if kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a directory":
        file.mkdir()
    elif kind == "a link to itself":
        file.symlink_to(file)
    elif kind == "a socket":  # its name has a hundred bytes at most
        short = tempfile.mktemp(prefix="socket")
        socket.socket(socket.AF_UNIX).bind(short)
        shutil.move(short, file)
    elif not kind:
        file.write_bytes(content)


def remove(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)


def outcomes(cases: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int, str]]:
    for case in cases:
        with damage_file(case):
            if case.get("out"):
                remove(Path(case["out"]))
            yield case["name"], *outcome(case["words"])


def outcome(words: list[str]) -> tuple[int, str]:
    """Exit code and errors of a command. One that waits is ended, and the process with it where nothing ends the
    wait."""
    from spillway.cli import main as command

    error = io.StringIO()
    signal.signal(signal.SIGALRM, wake)
    signal.alarm(ALARM)
    faulthandler.dump_traceback_later(2 * ALARM, exit=True)
    try:
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
            code = command(words)
    except Waited:
        return -signal.SIGALRM, f"{error.getvalue()}\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    return code, error.getvalue()


class Waited(BaseException):
    """The command waits for something that does not come."""


def wake(*_: object) -> None:
    raise Waited


def main() -> None:
    import once

    told = []
    with once.is_enough(forked=True):
        for outcome in outcomes(json.loads(Path(sys.argv[1]).read_text())):
            told.append(outcome)
            Path(sys.argv[2]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
