"""A server for the page of a run, for browsers of this machine."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from spillway.errors import InputError
from spillway.report.live import SCRIPT, SCRIPT_PATH, STATE_PATH, LivePage, as_json

HOST, PORT = "127.0.0.1", 8765
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'"
HTML, JSON, JAVASCRIPT = "text/html", "application/json", "text/javascript"


class Server(ThreadingHTTPServer):
    """Answers with the page of one run. InputError if the address cannot be taken."""

    daemon_threads = True

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.page, self.is_local = page, ipaddress.ip_address(host).is_loopback
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise InputError(describe_refusal(host, port, error)) from None

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that has closed its connection is no error."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds; a silent connection does not keep its thread

    def do_GET(self) -> None:
        if not self._is_for_this_server():
            self._answer(403, "text/plain", b"This server answers for its own address only.\n")
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._answer(200, HTML, self.server.page.document().encode())
        elif asked.path == SCRIPT_PATH:
            self._answer(200, JAVASCRIPT, SCRIPT.encode())
        elif asked.path == STATE_PATH:
            version = parse_qs(asked.query).get("version", [""])[0]
            self._answer(200, JSON, as_json(self.server.page.describe(version)))
        else:
            self._answer(404, "text/plain", b"There is only the page at /.\n")

    do_HEAD = do_GET

    def _is_for_this_server(self) -> bool:
        """False for a name that somebody else's page has pointed at this machine."""
        if not self.server.is_local:
            return True
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return name in ("localhost", self.server.server_address[0])

    def _answer(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def describe_refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port: {port} of {host} is in use by another program; name another one, or --port 0 for any free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host: {host} is no address of this machine"
    return f"port: {port} of {host} cannot be taken ({error.strerror})"


def parse_address(host: str | None, port: str | None) -> tuple[str, int]:
    """Host and port of options. InputError if they are none."""
    try:
        address = str(ipaddress.IPv4Address(HOST if host in (None, "localhost") else host))
    except ValueError:
        raise InputError(f"host: got {host!r}, expects an IPv4 address of this machine, like {HOST}") from None
    if port is not None and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise InputError(f"port: got {port!r}, expects a whole number, 0 to 65535")
    return address, PORT if port is None else int(port)


def serve(
    output_dir: Path,
    address: tuple[str, int] = (HOST, PORT),
    profile: str | None = None,
    tell: Callable[[str], object] = str,
) -> None:
    """Serves the page of the run in `output_dir`, which may not exist yet, until KeyboardInterrupt. `tell` gets the
    URL when the server answers. `profile`: predictions are for the machine of that file."""
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"output_dir: {output_dir} is a file, and a run has a directory")
    with Server(LivePage(output_dir, profile), *address) as server:
        tell(f"The report of {output_dir} is at {server.url} (Ctrl-C ends it).")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
