"""`spillway report --serve`: over HTTP beside a run that goes on, and in Chromium."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import browser
import real_runs
from needs import needs
from spillway import report
from spillway.output.directory_lock import DirectoryLock, is_held
from spillway.report.live import LivePage
from test_report import Figures

PATIENCE = 240  # seconds; nothing here takes as long
STEPS = 24


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def finished(given: Path) -> Path:
    assert real_runs.here(given, given / "out", "--max_steps", "3") == 0
    return given / "out"


def start(given: Path, out: Path, *more: str, verb: str = "train") -> Any:
    """A run in another process."""
    words = real_runs.words(given, out, "--max_steps", str(STEPS), *more) if verb == "train" else [verb, str(out)]
    return real_runs.apart("-m", "spillway", *words)


@contextmanager
def serve_run(out: Path, *words: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Port and process of the command, which serves the run of `out`."""
    command = [sys.executable, "-m", "spillway", "report", str(out), "--serve", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at http://127\.0\.0\.1:(\d+)/ ", line)
        assert found, line + process.communicate()[1]
        yield int(found[1]), process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def state(port: int, version: str = "") -> dict[str, Any]:
    code, _, text = get(port, f"/state.json?version={version}")
    assert code == 200, text
    return dict(json.loads(text))


def steps_shown(told: dict[str, Any]) -> int:
    return int(Figures(told["body"]).found.get("steps", "0"))


def follow(port: int, run: Any) -> list[tuple[str, int]]:
    """State and steps of each version of the page until the run has ended."""
    seen, version = [], ""
    while run.poll() is None:
        told = state(port, version)
        if "body" in told:
            seen.append((told["state"], steps_shown(told)))
            version = told["version"]
    return seen


def test_page_follows_a_run_from_before_its_start_to_its_end(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve_run(out) as (port, server):
        first = state(port)
        assert first["state"] == "waiting" and "no run yet" in first["words"]
        assert not out.exists()
        run = start(given, out)
        seen = follow(port, run)
        assert run.returncode == 0, run.communicate()
        running = [steps for name, steps in seen if name == "running"]
        assert running == sorted(running) and len(set(running) - {0}) > 2, seen
        last = state(port)
        assert last["state"] == "ended" and last["words"] == "The run has ended." and steps_shown(last) == STEPS
        assert "body" not in state(port, last["version"])
        assert f"<main>{last['body']}</main>" in report.write(out).read_text(), "the page of the file"
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=PATIENCE)
        assert server.returncode == 0 and not errors


def test_killed_run_is_called_interrupted_until_it_goes_on(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve_run(out) as (port, _):
        run = start(given, out, "--save_strategy", "steps", "--save_steps", "2")
        while not (out / "checkpoint-2").exists():
            assert run.poll() is None, run.communicate()
        run.kill()
        run.wait(PATIENCE)
        killed = state(port)
        assert killed["state"] == "interrupted" and "spillway resume" in killed["words"]
        assert "interrupted" in killed["body"] and "still running" not in killed["body"]
        again = start(given, out, verb="resume")
        seen = follow(port, again)
        assert again.returncode == 0, again.communicate()
        assert "running" in [name for name, _ in seen]
        assert state(port)["state"] == "ended"


def test_answers_are_for_this_machine_alone(finished: Path) -> None:
    with serve_run(finished) as (port, server):
        listening = Path(f"/proc/{server.pid}/net/tcp").read_text()
        assert f"0100007F:{port:04X}" in listening and f"00000000:{port:04X}" not in listening
        for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
            assert get(port, "/", Host=host)[0] == 200
        assert get(port, "/", Host=f"evil.example:{port}")[0] == 403
        assert get(port, "/state.json", Host="evil.example")[0] == 403
        assert get(port, "/../../etc/passwd")[0] == get(port, "/config.yaml")[0] == 404
        code, headers, text = get(port, "/")
        assert code == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Cache-Control"] == "no-store" and "http://" not in text and "https://" not in text
        assert get(port, "/", "HEAD")[2] == "" and get(port, "/", "POST")[0] == 501
        assert get(port, "/live.js")[1]["Content-Type"] == "text/javascript; charset=utf-8"


def test_page_shows_damage_and_goes_on(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    page = LivePage(out)
    whole = page.describe()
    assert whole["state"] == "ended"
    (out / "plan.json").write_text("{")
    assert "plan.json cannot be read" in page.describe(whole["version"])["body"]
    shutil.copy(finished / "plan.json", out)
    assert page.describe()["body"] == whole["body"]
    shutil.rmtree(out)
    assert page.describe()["state"] == "waiting"


def test_advice_is_planned_once_for_each_plan(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run needs the CPUs."""
    from spillway.report import advice

    out, planned = tmp_path / "out", []
    shutil.copytree(finished, out)
    find_options = advice.options
    monkeypatch.setattr(advice, "options", lambda facts: planned.append(1) or find_options(facts))
    page = LivePage(out)
    first = page.describe()
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert "body" in page.describe(first["version"]) and len(planned) == 1
    os.utime(out / "plan.json", ns=(1, 1))
    page.describe()
    assert len(planned) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--serve", "--port", "many"], "port: got 'many', expects a whole number, 0 to 65535"),
        (["--serve", "--port", "65536"], "port: got '65536'"),
        (["--serve", "--host", "example.org"], "host: got 'example.org', expects an IPv4 address"),
        (["--serve", "--host", "192.0.2.1", "--port", "0"], "host: 192.0.2.1 is no address of this machine"),
        (["--serve", "--to", "page.html"], "to: --serve writes no file"),
        (["--port", "80"], "port: it belongs to --serve"),
    ],
)
def test_words_that_make_no_sense_are_refused(
    finished: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_runs.main(["report", str(finished), *words]) == 2
    assert message in capsys.readouterr().err


def test_port_in_use_is_one_clear_error(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert real_runs.main(["report", str(finished), "--serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"spillway: port: {port} of 127.0.0.1 is in use by another program; name another one, "
        "or --port 0 for any free one\n"
    )
    assert real_runs.main(["report", str(finished / "plan.json"), "--serve"]) == 2
    assert "is a file, and a run has a directory" in capsys.readouterr().err


def test_lock_tells_who_works_on_a_directory(tmp_path: Path) -> None:
    assert is_held(tmp_path) is False
    lock = DirectoryLock(tmp_path)
    lock.take(0)
    assert is_held(tmp_path) is True
    lock.release()
    assert is_held(tmp_path) is False and not list(tmp_path.iterdir())


def test_browser_keeps_its_place_while_the_page_changes(given: Path, tmp_path: Path) -> None:
    """Without loading the page again; parts that are equal stay the same elements."""
    needs("chromium", browser.PROGRAM, "no Chromium here (apt-get install chromium): the page is not watched in one")
    out = tmp_path / "out"
    with serve_run(out) as (port, server), browser.Tab(tmp_path / "profile") as tab:
        tab.open(f"http://127.0.0.1:{port}/")
        assert "no run yet" in tab.evaluate("document.querySelector('#run-state').textContent")
        tab.evaluate("window.sameDocument = true")
        run = start(given, out, "--max_steps", "600")
        tab.wait_for("document.querySelector('#steps') !== null")
        tab.evaluate("document.querySelector('details').open = true; window.settings = document.querySelector('dl')")
        tab.evaluate("window.scrollTo(0, 300)")
        before = int(tab.evaluate("document.querySelector('#steps').textContent"))
        tab.wait_for(f"+document.querySelector('#steps').textContent > {before}")
        assert tab.evaluate("document.querySelector('#run-state').dataset.state") == "running"
        assert tab.evaluate("window.scrollY") == 300
        assert tab.evaluate("document.querySelector('details').open")
        assert tab.evaluate("window.settings === document.querySelector('dl')"), "equal parts are not replaced"
        if pictures := os.environ.get("SPILLWAY_SCREENSHOTS"):
            tab.evaluate("window.scrollTo(0, 0)")
            tab.screenshot(Path(pictures) / "report-serve.png")
        run.send_signal(signal.SIGINT)
        run.wait(PATIENCE)
        tab.wait_for("document.querySelector('#run-state').dataset.state === 'interrupted'")
        titles = "[...document.querySelectorAll('h2')].map((each) => each.textContent).join('|')"
        assert len(set(tab.evaluate(titles).split("|"))) == len(tab.evaluate(titles).split("|"))
        assert tab.evaluate("[...document.querySelector('main').children].at(-1).tagName") == "FOOTER"
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0
        tab.wait_for("document.querySelector('#run-state').dataset.state === 'gone'")
        assert tab.evaluate("window.sameDocument === true && document.querySelector('#steps') !== null")
