"""A hub on this machine: it speaks as much of the Hugging Face Hub's HTTP API as fetching models and data, and
uploading a model in one commit, takes.

Repositories are directories under `models/` and `datasets/` of one place; each has one commit, and the branch `main`
points to it. Large files are redirected to, as the hub's are, and every answer to a download takes ranges.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

API = re.compile(r"/api/(models|datasets)/(.+?)(?:/(revision|tree|paths-info|preupload|commit)/([^/]+)(?:/(.*))?)?")
FILE = re.compile(r"/(datasets/)?(.+?)/resolve/([^/]+)/(.+)")
LARGE = 4096  # bytes from which a file is somewhere else
LFS = 1 << 20  # bytes from which an upload is a file of its own
OBJECTS, OBJECT = re.compile(r"/(.+?)\.git/info/lfs/objects/batch"), re.compile(r"/lfs/([0-9a-f]{64})")


@dataclass
class Hub:
    """What tests set and see."""

    place: Path
    asked: list[str] = field(default_factory=list)  # "GET /path", as they came
    tokens: set[str | None] = field(default_factory=set)  # that came along
    gated: dict[str, str] = field(default_factory=dict)  # repository -> the token that opens it
    private: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # what it says of a file, whatever is true
    missing: Path | None = None  # a file that it lists and has not
    writers: dict[str, str] = field(default_factory=dict)  # token -> the user who may write with it
    made: dict[str, Any] = field(default_factory=dict)  # repository -> what was asked for it
    commits: list[dict[str, Any]] = field(default_factory=list)  # repository, summary and files of each
    full: bool = False  # it takes no commit
    endpoint: str = ""

    def repository(self, kind: str, name: str) -> Path:
        return self.place / kind / name

    def files(self, repository: Path) -> dict[str, Path]:
        return {str(path.relative_to(repository)): path for path in sorted(repository.rglob("*")) if path.is_file()}

    def commit(self, repository: Path) -> str:
        content = [(name, digest(path)) for name, path in self.files(repository).items()]
        return hashlib.sha1(json.dumps(content).encode()).hexdigest()

    def downloaded(self) -> set[str]:
        """Names of the files that were fetched."""
        found = (FILE.fullmatch(line.partition(" ")[2]) for line in self.asked if line.startswith("GET "))
        return {match[4] for match in found if match}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization")
        self.hub.asked.append(f"{self.command} {path}")
        if path.startswith("/elsewhere/"):
            assert token is None, "the token went to another host"
            self.content(self.hub.place / path.removeprefix("/elsewhere/"))
            return
        if match := API.fullmatch(path):
            self.about(match[1], match[2], match[3], match[4], match[5] or "")
        elif match := FILE.fullmatch(path):
            self.file("datasets" if match[1] else "models", match[2], match[3], match[4])
        else:
            self.refuse(404, "EntryNotFound")

    def do_POST(self) -> None:
        """A new repository, a commit, or which of some paths there are."""
        content = self.body()
        path = unquote(urlsplit(self.path).path)
        match = API.fullmatch(path)
        self.hub.asked.append(f"POST {self.path}")
        if path == "/api/repos/create":
            return self.create(json.loads(content))
        if OBJECTS.fullmatch(path):
            return self.name_places(json.loads(content)["objects"])
        if path == "/api/validate-yaml":  # of a model card
            return self.say({"errors": [], "warnings": []})
        if match is not None and match[3] in ("preupload", "commit"):
            return self.write(match[2], match[3], content)
        asked = json.loads(content)
        if match is None or match[3] != "paths-info" or (found := self.found(match[1], match[2], match[4])) is None:
            return self.refuse(404, "EntryNotFound")
        files = self.hub.files(found)
        self.say([self.entry(name, files[name]) for name in asked["paths"] if name in files])

    def do_PUT(self) -> None:
        """The content of a large file, in pieces."""
        match, left = OBJECT.fullmatch(self.path), int(self.headers["Content-Length"])
        if match is None:
            return self.refuse(404, "EntryNotFound")
        (self.hub.place / "lfs").mkdir(exist_ok=True)
        with open(self.hub.place / "lfs" / match[1], "wb") as file:
            while left:
                file.write(piece := self.rfile.read(min(left, LFS)))
                left -= len(piece)
        self.say({})

    def name_places(self, objects: list[dict[str, Any]]) -> None:
        """The places that large files are sent to."""
        made = [{**each, "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{each['oid']}"}}} for each in objects]
        self.say({"transfer": "basic", "objects": made})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def create(self, asked: dict[str, Any]) -> None:
        user = self.hub.writers.get(self.token())
        if user is None:
            return self.refuse(401, "Invalid username or password.")
        name = f"{asked.get('organization') or user}/{asked['name']}"
        if asked.get("organization") not in (None, user):
            return self.refuse(403, f"no rights in {asked['organization']}")
        place = {"url": f"{self.hub.endpoint}/{name}", "name": name, "id": name}
        if name in self.hub.made:
            return self.answer(409, json.dumps(place).encode(), {"Content-Type": "application/json"})
        self.hub.made[name] = asked
        self.hub.repository("models", name).mkdir(parents=True)
        return self.say(place)

    def write(self, name: str, what: str, content: bytes) -> None:
        if self.hub.writers.get(self.token()) != name.partition("/")[0]:
            return self.refuse(403, "no rights")
        if what == "preupload":
            files = [(entry["path"], entry["size"] >= LFS) for entry in json.loads(content)["files"]]
            modes = [{"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}
                     for path, large in files]  # fmt: skip
            return self.say({"files": modes})
        if self.hub.full:
            return self.refuse(507, "no room")
        lines = [json.loads(line) for line in content.splitlines()]
        repository = self.hub.repository("models", name)
        written = {line["value"]["path"]: line["value"]["content"] for line in lines if line["key"] == "file"}
        for path, encoded in written.items():
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).write_bytes(base64.b64decode(encoded))
        large = {line["value"]["path"]: line["value"]["oid"] for line in lines if line["key"] == "lfsFile"}
        for path, oid in large.items():
            shutil.move(self.hub.place / "lfs" / oid, repository / path)
        summary = next(line["value"]["summary"] for line in lines if line["key"] == "header")
        self.hub.commits.append({"repository": name, "summary": summary, "files": sorted([*written, *large])})
        commit = self.hub.commit(repository)
        return self.say({"commitUrl": f"{self.hub.endpoint}/{name}/commit/{commit}", "commitOid": commit})

    def about(self, kind: str, name: str, what: str | None, revision: str | None, under: str) -> None:
        if (found := self.found(kind, name, revision or "main")) is None:
            return
        files = self.hub.files(found)
        if what == "tree":
            inside = {file: path for file, path in files.items() if not under or file.startswith(f"{under}/")}
            return self.say([self.entry(file, path) for file, path in inside.items()])
        listed = [{"rfilename": file, "size": self.size(file, path)} for file, path in files.items()]
        gated = "manual" if name in self.hub.gated else False
        self.say({"id": name, "sha": self.hub.commit(found), "siblings": listed, "gated": gated, "private": False,
                  "tags": [], "downloads": 0, "likes": 0})  # fmt: skip

    def file(self, kind: str, name: str, revision: str, file: str) -> None:
        if (found := self.found(kind, name, revision)) is None:
            return
        if name in self.hub.gated and self.hub.gated[name] != self.token():
            return self.refuse(403, "GatedRepo")
        path = found / file
        commit = {"X-Repo-Commit": self.hub.commit(found)}
        if not path.is_file() or path == self.hub.missing:
            return self.refuse(404, "EntryNotFound", commit)
        if path.stat().st_size < LARGE:
            return self.content(path, commit)
        about = {"X-Linked-Size": str(path.stat().st_size), "X-Linked-Etag": f'"{digest(path)}"'}
        store = self.hub.endpoint.replace("127.0.0.1", "localhost")  # another host: the token does not go there
        place = {"Location": f"{store}/elsewhere/{path.relative_to(self.hub.place)}"}
        self.answer(302, b"", {**commit, **about, **place})

    def found(self, kind: str, name: str, revision: str) -> Path | None:
        """The directory of a repository at a revision; None: it was refused."""
        self.hub.tokens.add(self.token() or None)
        found = self.hub.repository(kind, name)
        hidden = name in self.hub.private and self.hub.private[name] != self.token()
        if not found.is_dir() or hidden:
            self.refuse(401, "RepoNotFound")
        elif revision not in ("main", self.hub.commit(found)):
            self.refuse(404, "RevisionNotFound")
        else:
            return found
        return None

    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def entry(self, name: str, path: Path) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": self.size(name, path), "oid": digest(path)[:40]}

    def size(self, name: str, path: Path) -> int:
        return self.hub.sizes.get(name, path.stat().st_size)

    def content(self, path: Path, headers: dict[str, str] | None = None) -> None:
        data, asked = path.read_bytes(), self.headers.get("Range")
        about = {"ETag": f'"{digest(path)}"', "Accept-Ranges": "bytes", **(headers or {})}
        if asked and (match := re.fullmatch(r"bytes=(\d+)-(\d*)", asked)):
            first, last = int(match[1]), int(match[2] or len(data) - 1)
            part = data[first : last + 1]
            about["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
            return self.answer(206, part, about)
        self.answer(200, data, about)

    def say(self, content: Any) -> None:
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})})

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def serving(place: Path) -> Iterator[Hub]:
    """Inside, the hub answers at `endpoint`; afterwards nobody does."""
    hub = Hub(place)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfThisHub", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
