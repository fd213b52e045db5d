"""A small server of the Hub's protocol: models that are folders, each at one commit."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """models: org/name -> folder; gated: names that need a token; cut: file -> bytes after which its first download breaks off."""

    def __init__(self, models: dict[str, Path]):
        super().__init__(("127.0.0.1", 0), _Answers)
        self.models, self.gated, self.cut = models, set[str](), dict[str, int]()
        self.ranges: list[str] = []  # what was asked for from the middle on

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)(/.*)?", path):
            name, what, revision = found[1], found[2], found[3]
            if not self._refused(name, revision):
                self._json({"id": name, "sha": COMMIT, "siblings": []} if what == "revision" else self._tree(name))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if not self._refused(found[1], found[2]):
                self._file(self.server.models[found[1]] / found[3])
        else:
            self._send(404, b"", {})

    do_HEAD = do_GET

    def _refused(self, name: str, revision: str) -> bool:
        code = None
        if name not in self.server.models:
            code = (404, "RepoNotFound")
        elif name in self.server.gated:
            code = (403, "GatedRepo")
        elif revision not in (COMMIT, "main"):
            code = (404, "RevisionNotFound")
        if code:
            self._send(code[0], b"", {"X-Error-Code": code[1], "X-Error-Message": code[1]})
        return code is not None

    def _tree(self, name: str) -> list[dict[str, Any]]:
        folder = self.server.models[name]
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [
            {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": hashlib.sha1(p.read_bytes()).hexdigest()}
            for p in files
        ]

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        facts = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start = 0
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start = int(asked[1])
            self.server.ranges.append(path.name)
            facts["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.server.cut.pop(path.name, None) if self.command == "GET" else None
        self._send(206 if asked else 200, content[start:], facts, cut)

    def _json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
            self.close_connection = cut is not None

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(models: dict[str, Path]) -> Iterator[Hub]:
    """A Hub that answers until the block ends."""
    with Hub(models) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
