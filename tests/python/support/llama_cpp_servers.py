"""Real servers of llama.cpp that take the weights which a trainer hands over: llama.cpp's converter makes a GGUF file
of the directory, and the server starts again with it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from needs import lacks, package
from spillway.integrations.server import Server
from spillway.run.gguf import CONVERTERS, convert

CONTEXT = 128  # tokens of a prompt and its completion


def find_converter() -> str:
    found = next(filter(None, map(shutil.which, CONVERTERS)), None)
    return found or lacks("converter", f"llama.cpp's {CONVERTERS[0]} is not on PATH")


def list_words(kind: str, model: Path, port: int) -> list[str]:
    """The command line of a server. It keeps one conversation at a time, so that a seed gives the same tokens again."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    if kind == "llama-server":
        program = shutil.which(kind) or lacks("llama_server", "llama.cpp's llama-server is not on PATH")
        return [program, "--model", str(model), *where, "--ctx-size", str(CONTEXT), "--parallel", "1"]
    package("llama_cpp", "llama-cpp-python is not installed")
    package("uvicorn", "the server of llama-cpp-python needs its extra `server`")
    return [sys.executable, "-m", kind, "--model", str(model), *where, "--n_ctx", str(CONTEXT)]


class LlamaServer:
    """One server. `kind`: llama-server, or llama_cpp.server, which is that of llama-cpp-python."""

    def __init__(self, kind: str, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.kind, self.log = kind, log
        self.handed: list[Path] = []  # directories, in the order in which they were loaded
        self._process: subprocess.Popen[bytes] | None = None
        list_words(kind, log, self.port)  # skips the test where there is none

    def load(self, directory: Path) -> None:
        """Serves the weights of a directory."""
        self.stop()
        model = convert(find_converter(), directory, "f32")
        with self.log.open("ab") as log:
            words = list_words(self.kind, model, self.port)
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.log.parent)
        self.handed.append(directory)
        self.describe().wait()

    def describe(self) -> Server:
        return Server(f"http://127.0.0.1:{self.port}", update=self.load)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(kind: str, directory: Path, place: Path) -> Iterator[LlamaServer]:
    """A server that has begun with the model of a directory. `place`: for its log and a copy of the model."""
    server = LlamaServer(kind, place / f"{kind}.log")
    first = place / "first"
    shutil.copytree(directory, first)
    try:
        server.load(first)
        yield server
    finally:
        server.stop()
