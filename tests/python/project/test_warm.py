"""Processes that are forked from one that has imported PyTorch: as those of `python` are, but for the imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import warm
from needs import lacks

LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")
TELLS = """
import json, os, sys
mask = os.umask(0)
print(json.dumps([sys.argv, __name__, os.environ.get("TOLD"), os.getcwd(), mask, os.getpid(), sys.stdin.read()]))
print("wrong", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["words", "file"])
def test_it_has_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    script, given = tmp_path / "script.py", tmp_path / "given"
    script.write_text(TELLS)
    given.write_text("read")
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o027)
    try:
        with open(given) as stdin:
            first = ("-c", TELLS) if how == "words" else (script,)
            process = warm.python(*first, "one", "--two", env={"TOLD": "yes"}, stdin=stdin.fileno())
    finally:
        os.umask(mask)
    shown, error = process.communicate()
    assert (process.returncode, error) == (3, "wrong\n")
    expected = ["-c" if how == "words" else str(script), "one", "--two"]
    assert json.loads(shown) == [expected, "__main__", "yes", str(tmp_path), 0o027, process.pid, "read"]


def test_the_next_one_has_nothing_of_it() -> None:
    first = warm.python("-c", "import os, torch; os.environ['A'] = torch.a = 'b'", env={"TOLD": "yes"})
    assert first.communicate() == ("", "") and first.returncode == 0
    second = warm.python("-c", "import os, torch; print('A' in os.environ, 'TOLD' in os.environ, hasattr(torch, 'a'))")
    assert second.communicate()[0] == "False False False\n"


def test_signals_end_it_and_waiting_has_a_limit() -> None:
    for number, code in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
        process = warm.python("-c", "import signal; signal.pause()")
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0)
        process.send_signal(number)
        assert process.wait() == code == process.poll()


def test_what_is_raised_ends_it_with_one() -> None:
    process = warm.python("-c", "raise ValueError('no')")
    _, error = process.communicate()
    assert process.returncode == 1 and error.endswith("ValueError: no\n")


def test_it_has_its_own_end_and_not_that_of_an_earlier_one_with_its_number() -> None:
    first = warm.python("-c", "raise SystemExit(3)", forked=True)
    assert first.wait() == 3
    for _ in range(100):  # another process of the machine may take the number
        try:
            LAST_NUMBER.write_text(str(first.pid - 1))
        except OSError as why:
            lacks("root", str(why))
        second = warm.python("-c", "import time; time.sleep(0.1); raise SystemExit(4)", forked=True)
        assert second.wait() == 4
        if second.pid == first.pid:
            return
    pytest.fail("the number was never given again")
