"""Chromium, driven through its debugging pipe, with the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PATIENCE = 120.0  # seconds for an answer


class Tab:
    """One tab of a browser of its own, which ends with the context."""

    def __init__(self, profile: Path, width: int = 1100, height: int = 700) -> None:
        self._in, theirs_out = os.pipe()
        theirs_in, self._out = os.pipe()
        self._count, self._buffer = 0, b""
        high_in, high_out = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (theirs_in, theirs_out))
        command = [PROGRAM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "--hide-scrollbars"]
        # The browser reads descriptor 3 and writes descriptor 4.
        script = f'exec "$@" 3<&{high_in} 4>&{high_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *command, f"--window-size={width},{height}", "about:blank"],
            pass_fds=(high_in, high_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (theirs_in, theirs_out, high_in, high_out):
            os.close(each)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        self._process.kill()
        self._process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._count:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait_for(self, expression: str) -> Any:
        """The first value that is true."""
        end = time.monotonic() + PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"it does not come: {expression}"
            self.evaluate("new Promise((done) => setTimeout(done, 50))")
        return value

    def screenshot(self, picture: Path) -> None:
        picture.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], PATIENCE)[0], "the browser does not answer"
            content = os.read(self._in, 1 << 16)
            assert content, "the browser has ended"
            self._buffer += content
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
